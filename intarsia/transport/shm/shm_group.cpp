#include "intarsia/transport/shm/shm_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/core/copy_past_caches.h"

namespace intarsia {
namespace {

// Up to this size a reduction is fastest if every member reads all that the others have: one exchange instead of two.
constexpr uint64_t kReadAllBytes = 32 << 10;  // that a member reads

class ShmGroup final : public HostGroup {
 public:
  explicit ShmGroup(ShmLine line)
      : size_(line.watched->size()),
        me_(line.watched->position),
        segment_(line.segment),
        copy_(std::make_shared<RingCopy>()),
        to_all_(*segment_, segment_->ring_to_all(me_), all_but(me_), copy_),
        progress_(std::make_shared<ShmProgressEngine>(std::move(line))) {
    for (int64_t j = 0; j < size_; ++j) {
      to_.emplace_back(*segment_, segment_->ring(me_, j), std::vector<int64_t>{j}, copy_);
      from_.emplace_back(*segment_, segment_->ring(j, me_), j, std::vector<int64_t>{me_}, me_);
      from_all_.emplace_back(*segment_, segment_->ring_to_all(j), j, all_but(j), me_);
    }
  }

  ~ShmGroup() override { progress_->close(); }

  const char* carrier() const override { return "shm"; }
  bool reduces_in_place() const override { return true; }
  void give_up_because(const std::string& why, Farewell farewell) const override {
    progress_->give_up_because(why, farewell);
  }
  void tell_awaited(int64_t rank) const override { progress_->tell_awaited(rank); }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const override {
    auto bytes = mine.nbytes();
    if (bytes * (size_ - 1) > kReadAllBytes) return reduce_in_parts(std::move(call), mine, result, later);
    // In place, what others have not read yet would be overwritten; what is sent in parts has been read before its sum
    // arrives.
    auto from = bytes && data(mine) == data(result) ? mine.clone() : mine;
    return run(std::move(call), later, {from, result}, [&](Task& task) {
      push(task, to_all_, data(from), bytes);
      reduce(task, from_all_, data(from), data(result), bytes);
    });
  }

  Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                  const MemberCounts& counts) const override {
    return run(std::move(call), true, {mine, all}, [&](Task& task) {
      auto width = mine.element_size();
      push(task, to_all_, data(mine), counts[me_] * width);
      auto* to = data(all);
      for (int64_t j = 0; j < size_; ++j) {
        auto bytes = counts[j] * width;
        if (j != me_) pull(task, from_all_[j], to, bytes);
        if (j == me_ && bytes && to != data(mine)) copy_own(to, data(mine), bytes);
        to += bytes;
      }
    });
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    return run(std::move(call), true, {send, receive}, [&](Task& task) {
      auto width = send.element_size();
      push_parts(task, send, send_counts);
      auto* to = data(receive);
      for (int64_t j = 0; j < size_; ++j) {
        if (j != me_) pull(task, from_[j], to, receive_counts[j] * width);
        if (j == me_ && send_counts[j]) copy_own(to, part_of(send, send_counts, j), send_counts[j] * width);
        to += receive_counts[j] * width;
      }
    });
  }

  Wait reduce_scatter(Collective call, const at::Tensor& send, const MemberCounts& counts,
                      const at::Tensor& result) const override {
    return run(std::move(call), true, {send, result}, [&](Task& task) {
      push_parts(task, send, counts);
      reduce(task, from_, part_of(send, counts, me_), data(result), counts[me_] * send.element_size());
    });
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    return run(std::move(call), true, {buffer}, [&](Task& task) {
      if (me_ == source) {
        push(task, to_all_, data(buffer), buffer.nbytes());
      } else {
        pull(task, from_all_[source], data(buffer), buffer.nbytes());
      }
    });
  }

 private:
  std::vector<int64_t> all_but(int64_t member) const {
    std::vector<int64_t> members;
    for (int64_t j = 0; j < size_; ++j) {
      if (j != member) members.push_back(j);
    }
    return members;
  }

  static char* data(const at::Tensor& t) { return static_cast<char*>(t.data_ptr()); }
  static char* part_of(const at::Tensor& t, const MemberCounts& counts, int64_t member) {
    return data(t) + std::accumulate(counts.begin(), counts.begin() + member, int64_t{0}) * t.element_size();
  }

  static void copy_own(char* to, const char* from, uint64_t bytes) {
    bytes < kPastCachesBytes ? (void)std::memcpy(to, from, bytes) : copy_past_caches(to, from, bytes);
  }

  // A count of zero is no message.
  static void push(Task& task, RingWriter& ring, const char* from, uint64_t bytes) {
    if (bytes) task.sends.push_back(SendStep{&ring, from, {.bytes = bytes}});
  }
  static void pull(Task& task, RingReader& ring, char* to, uint64_t bytes) {
    if (bytes) task.recvs.push_back(RecvStep{&ring, to, {.bytes = bytes}});
  }
  void reduce(Task& task, std::vector<RingReader>& from, const char* mine, char* to, uint64_t bytes) const {
    if (!bytes) return;
    auto& reduction = task.reduction.emplace();
    for (int64_t j = 0; j < size_; ++j) reduction.from.push_back(j == me_ ? nullptr : &from[j]);
    reduction.mine = mine;
    reduction.to = to;
    reduction.header.bytes = bytes;
    reduction.type = task.call.type;
    reduction.op = *task.call.op;
  }

  // Each member starts with another peer, so that they do not all write for the same one at first.
  void push_parts(Task& task, const at::Tensor& send, const MemberCounts& counts) const {
    for (int64_t d = 1; d < size_; ++d) {
      auto j = (me_ + d) % size_;
      push(task, to_[j], part_of(send, counts, j), counts[j] * send.element_size());
    }
  }

  // Member j reduces part j of all members, and all read it.
  Wait reduce_in_parts(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const {
    auto length = (mine.numel() + size_ - 1) / size_;
    MemberCounts counts;  // the last parts may be short or empty
    for (int64_t j = 0; j < size_; ++j) counts.push_back(std::clamp<int64_t>(mine.numel() - j * length, 0, length));
    return run(std::move(call), later, {mine, result}, [&](Task& task) {
      push_parts(task, mine, counts);
      auto width = mine.element_size();
      reduce(task, from_, part_of(mine, counts, me_), part_of(result, counts, me_), counts[me_] * width);
      if (task.reduction) task.reduction->onward = &to_all_;
      for (int64_t j = 0; j < size_; ++j) {
        if (j != me_) pull(task, from_all_[j], part_of(result, counts, j), counts[j] * width);
      }
    });
  }

  template <class Fill>
  Wait run(Collective call, bool later, std::initializer_list<at::Tensor> tensors, Fill fill) const {
    for (auto& t : tensors) {
      TORCH_CHECK_VALUE(t.is_cpu(), "shared memory carries tensors in CPU memory, not on ", t.device(),
                        ". Adopt a process group of that device with mesh_from_group.");
    }
    if (!later) {
      Task task;
      task.call = std::move(call);
      fill(task);
      progress_->finish(task);
      return {};
    }
    auto task = std::make_shared<Task>();
    task->call = std::move(call);
    task->tensors = tensors;
    fill(*task);
    return ShmProgressEngine::begin(progress_, std::move(task));
  }

  int64_t size_, me_;
  std::shared_ptr<Segment> segment_;
  // Used under the lock of the progress engine.
  std::shared_ptr<RingCopy> copy_;  // of all our rings
  mutable RingWriter to_all_;
  mutable std::vector<RingWriter> to_;               // per member
  mutable std::vector<RingReader> from_, from_all_;  // per member
  std::shared_ptr<ShmProgressEngine> progress_;
};

}  // namespace

std::unique_ptr<HostGroup> make_shm_group(ShmLine line) { return std::make_unique<ShmGroup>(std::move(line)); }

}  // namespace intarsia
