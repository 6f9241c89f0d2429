#include "intarsia/transport/mpi/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// Up to this size a reduction is fastest if every member sends all it has to all others: one exchange instead of two.
constexpr uint64_t kSendAllBytes = 16 << 10;  // that a member sends
// How much one member reduces at a time, while more is sent. Less with many members, so that its buffers do not grow.
constexpr uint64_t kLongestPiece = 256 << 10, kShortestPiece = 32 << 10, kPieceOfAll = 1 << 20;

class MpiGroup final : public Group {
 public:
  MpiGroup(std::shared_ptr<MpiProgressEngine> progress, std::shared_ptr<MpiEndpoint> side)
      : progress_(std::move(progress)),
        side_(std::move(side)),
        size_(side_->watched->size()),
        me_(side_->watched->position) {
    progress_->join(*side_);
    piece_ = std::clamp(kPieceOfAll / size_, kShortestPiece, kLongestPiece) / 64 * 64;  // whole elements
  }
  ~MpiGroup() override { progress_->leave(*side_); }

  const char* carrier() const override { return "mpi"; }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const override {
    uint64_t all = mine.nbytes();
    auto length = (mine.numel() + size_ - 1) / size_;
    MemberCounts counts(size_, mine.numel());
    bool whole = all * (size_ - 1) <= kSendAllBytes;
    for (int64_t j = 0; j < size_ && !whole; ++j) {  // the last parts may be short or empty
      counts[j] = std::clamp<int64_t>(mine.numel() - j * length, 0, length);
    }
    return run(std::move(call), later, {mine, result}, [&](MpiTask& task) {
      if (whole) return reduce_whole(task, memory(mine), memory(result), all);
      reduce_parts_of(task, mine, counts, part_of(result, counts, me_));
      spread(task, result, counts);
    });
  }

  Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                  const MemberCounts& counts) const override {
    return run(std::move(call), true, {mine, all}, [&](MpiTask& task) {
      auto width = mine.element_size();
      each_other([&](int64_t j) {
        task.send(j, memory(mine), counts[me_] * width);
        task.receive(j, part_of(all, counts, j), counts[j] * width);
      });
      carry_many(task);
      if (counts[me_]) std::memcpy(part_of(all, counts, me_), memory(mine), counts[me_] * width);
    });
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    return run(std::move(call), true, {send, receive}, [&](MpiTask& task) {
      auto width = send.element_size();
      each_other([&](int64_t j) {
        task.send(j, part_of(send, send_counts, j), send_counts[j] * width);
        task.receive(j, part_of(receive, receive_counts, j), receive_counts[j] * width);
      });
      carry_many(task);
      if (!send_counts[me_]) return;
      std::memcpy(part_of(receive, receive_counts, me_), part_of(send, send_counts, me_), send_counts[me_] * width);
    });
  }

  Wait reduce_scatter(Collective call, const at::Tensor& send, const MemberCounts& counts,
                      const at::Tensor& result) const override {
    return run(std::move(call), true, {send, result},
               [&](MpiTask& task) { reduce_parts_of(task, send, counts, memory(result)); });
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    return run(std::move(call), true, {buffer}, [&](MpiTask& task) {
      if (me_ != source) task.receive(source, memory(buffer), buffer.nbytes());
      each_other([&](int64_t j) {
        if (me_ == source) task.send(j, memory(buffer), buffer.nbytes());
      });
      carry_many(task);
    });
  }

 private:
  static char* memory(const at::Tensor& t) { return static_cast<char*>(t.data_ptr()); }
  static char* part_of(const at::Tensor& t, const MemberCounts& counts, int64_t member) {
    return memory(t) + std::accumulate(counts.begin(), counts.begin() + member, int64_t{0}) * t.element_size();
  }

  // Each member starts with another one, so that they do not all send to the same one at first.
  template <class Do>
  void each_other(Do action) const {
    for (int64_t d = 1; d < size_; ++d) action((me_ + d) % size_);
  }

  // What does not fit into heads is sent at once.
  static void carry_many(MpiTask& task) {
    MpiPiece piece;
    for (auto& parcel : task.outgoing) {
      if (!parcel.few()) piece.sends.push_back(parcel);
    }
    for (auto& parcel : task.incoming) {
      if (!parcel.few()) piece.receives.push_back(parcel);
    }
    if (piece.travels()) task.pieces.push_back(std::move(piece));
  }

  // Every member reduces everything that all have.
  void reduce_whole(MpiTask& task, char* mine, char* result, uint64_t bytes) const {
    if (!bytes) return;
    each_other([&](int64_t j) {
      task.send(j, mine, bytes);
      task.receive(j, nullptr, bytes);
    });
    carry_many(task);
    if (task.pieces.empty()) task.pieces.emplace_back();
    fill(task.pieces[0], mine, result, bytes);
    if (bytes > kFewBytes) task.pieces[0].room_bytes = bytes * (size_ - 1);
  }

  void fill(MpiPiece& piece, const char* own, char* result, uint64_t bytes) const {
    piece.values.resize(size_);
    piece.values[me_] = own;
    piece.result = result;
    piece.result_bytes = bytes;
  }

  // Member j reduces part j of all members, piece by piece.
  void reduce_parts_of(MpiTask& task, const at::Tensor& parts, const MemberCounts& counts, char* result) const {
    auto width = parts.element_size();
    uint64_t mine = counts[me_] * width, longest = *std::max_element(counts.begin(), counts.end()) * width;
    each_other([&](int64_t j) {
      task.send(j, part_of(parts, counts, j), counts[j] * width);
      task.receive(j, nullptr, mine);
    });
    for (uint64_t begin = 0; begin < longest; begin += piece_) {
      auto& piece = task.pieces.emplace_back();
      auto cut = [&](uint64_t all) { return begin < all ? std::min(piece_, all - begin) : 0; };
      each_other([&](int64_t j) {
        uint64_t all = counts[j] * width;
        if (all > kFewBytes && cut(all)) piece.sends.push_back({j, part_of(parts, counts, j) + begin, cut(all)});
        if (mine > kFewBytes && cut(mine)) piece.receives.push_back({j, nullptr, cut(mine)});
      });
      if (!cut(mine)) continue;
      fill(piece, part_of(parts, counts, me_) + begin, result + begin, cut(mine));
      if (mine > kFewBytes) piece.room_bytes = cut(mine) * (size_ - 1);
    }
  }

  // Sends what each member has reduced to all.
  void spread(MpiTask& task, const at::Tensor& result, const MemberCounts& counts) const {
    auto width = result.element_size();
    for (size_t i = 0; i < task.pieces.size(); ++i) {
      auto& piece = task.pieces[i];
      auto begin = i * piece_;
      piece.goes_on = piece.result_bytes > 0;
      each_other([&](int64_t j) {
        uint64_t all = counts[j] * width;
        if (begin < all)
          piece.reduced_receives.push_back({j, part_of(result, counts, j) + begin, std::min(piece_, all - begin)});
      });
    }
  }

  template <class Fill>
  Wait run(Collective call, bool later, std::initializer_list<at::Tensor> tensors, Fill fill) const {
    for (auto& t : tensors) {
      TORCH_CHECK_VALUE(t.is_cpu(), "MPI carries tensors in CPU memory here, not on ", t.device(),
                        ". Adopt a process group of that device with mesh_from_group.");
    }
    auto task = MpiProgressEngine::new_task();
    task->call = std::move(call);
    task->side = side_;
    task->tensors = tensors;
    fill(*task);
    if (later) return MpiProgressEngine::begin(progress_, std::move(task));
    progress_->finish(std::move(task));
    return {};
  }

  std::shared_ptr<MpiProgressEngine> progress_;
  std::shared_ptr<MpiEndpoint> side_;
  int64_t size_, me_;
  uint64_t piece_;  // bytes
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiProgressEngine> progress, std::shared_ptr<MpiEndpoint> side) {
  return std::make_unique<MpiGroup>(std::move(progress), std::move(side));
}

}  // namespace intarsia
