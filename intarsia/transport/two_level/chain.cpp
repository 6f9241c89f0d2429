#include "intarsia/transport/two_level/chain.h"

#include <algorithm>
#include <memory>

#include <ATen/ATen.h>

#include "intarsia/comm/reduce.h"

namespace intarsia {
namespace {

constexpr int64_t kPieceBytes = 512 << 10;
constexpr int64_t kAhead = 3;             // pieces in transit between two hosts
constexpr int64_t kBuffers = 2 * kAhead;  // one half receives while the other is sent

void cut(std::vector<ChainPiece>& pieces, int64_t length, int64_t begin, int64_t count, int64_t home) {
  for (auto end = begin + count; begin < end; begin += length)
    pieces.push_back({begin, std::min(length, end - begin), home});
}

// One rank's part of the running sum.
class Chain {
 public:
  Chain(const Levels& levels, const Collective& call, const at::Tensor& mine, const std::vector<ChainPiece>& pieces,
        const at::Tensor& sums, int64_t offset)
      : levels_(levels),
        call_(call),
        mine_(mine),
        pieces_(pieces),
        sums_(sums),
        offset_(offset),
        count_(pieces.size()),
        last_(levels.hosts() - 1),
        in_(count_),
        out_(count_),
        results_(count_) {}

  void run() {
    bool ends_here = levels_.host() == last_;
    auto lag = kAhead * (last_ - levels_.host());  // the sums of pieces come back while later ones leave
    if (levels_.leads()) {
      for (int64_t i = 0; i < kBuffers; ++i) buffers_.push_back(at::empty({longest()}, mine_.options()));
      for (int64_t i = 0; i < kAhead; ++i) expect(i);
    }
    for (int64_t i = 0; i < count_ + lag; ++i) {
      if (i < count_) levels_.leads() ? lead(i) : levels_.reduce(call_, 2 * i, part(i), {});
      if (i >= lag) take(i - lag);
    }
    for (int64_t i = 0; i < count_; ++i) finish(out_[i], levels_.leader(ends_here ? 0 : levels_.host() + 1));
  }

 private:
  using Mail = std::unique_ptr<Messages>;

  int64_t longest() const {
    int64_t most = 0;
    for (auto& piece : pieces_) most = std::max(most, piece.count);
    return most;
  }
  at::Tensor part(int64_t i) const { return mine_.narrow(0, pieces_[i].begin, pieces_[i].count); }
  at::Tensor place(int64_t i) const { return sums_.narrow(0, pieces_[i].begin - offset_, pieces_[i].count); }
  at::Tensor buffer(int64_t i) const { return buffers_[i % kBuffers].narrow(0, 0, pieces_[i].count); }
  bool needed(int64_t i) const { return pieces_[i].home == kAllHosts || pieces_[i].home == levels_.host(); }
  Mail mail(uint64_t step) const { return std::make_unique<Messages>(levels_.members(), call_, step); }
  Mail sums_mail(int64_t i) const { return mail(1 + 2 * i); }
  Mail results_mail(int64_t i) const { return mail(2 + 2 * i); }

  void finish(Mail& mail, int64_t member) const {
    if (!mail) return;
    levels_.wait_for(*mail, member);
    mail.reset();
  }

  // Receives the running sum of a piece from the host before us; its buffer has been sent on.
  void expect(int64_t i) {
    if (levels_.host() == 0 || i >= count_) return;
    if (i >= kBuffers) finish(out_[i - kBuffers], levels_.leader(levels_.host() == last_ ? 0 : levels_.host() + 1));
    in_[i] = sums_mail(i);
    in_[i]->receive(buffer(i), levels_.leader(levels_.host() - 1));
  }

  void lead(int64_t i) {
    auto own = part(i), sum = buffer(i);
    if (levels_.host() == 0) {
      if (i >= kBuffers) finish(out_[i - kBuffers], levels_.leader(1));
    } else {
      finish(in_[i], levels_.leader(levels_.host() - 1));
      reduce(sum, sum, own, *call_.op);
      own = sum;
    }
    if (levels_.host() == last_ && needed(i)) sum = place(i);
    levels_.reduce(call_, 2 * i, own, sum);
    levels_.host() == last_ ? send_home(i, sum) : send_on(i, sum);
    expect(i + kAhead);
  }

  void send_on(int64_t i, const at::Tensor& sum) {
    out_[i] = sums_mail(i);
    out_[i]->send(sum, levels_.leader(levels_.host() + 1));
    if (!needed(i)) return;
    results_[i] = results_mail(i);
    results_[i]->receive(place(i), levels_.leader(last_));
  }

  void send_home(int64_t i, const at::Tensor& sum) {
    auto home = pieces_[i].home;
    if (home == last_) return;
    out_[i] = results_mail(i);
    for (int64_t host = 0; host < last_; ++host) {
      if (home == kAllHosts || home == host) out_[i]->send(sum, levels_.leader(host));
    }
  }

  void take(int64_t i) {
    if (!needed(i)) return;
    finish(results_[i], levels_.leader(last_));
    if (pieces_[i].home == kAllHosts) levels_.spread(call_, 2 * i + 1, place(i));
  }

  const Levels& levels_;
  const Collective& call_;
  const at::Tensor& mine_;
  const std::vector<ChainPiece>& pieces_;
  const at::Tensor& sums_;
  int64_t offset_, count_, last_;
  std::vector<at::Tensor> buffers_;
  std::vector<Mail> in_, out_, results_;  // per piece: incoming sums, what we send, incoming results
};

}  // namespace

std::vector<ChainPiece> cut_for_chain(int64_t element_size, int64_t count, const std::vector<int64_t>& counts) {
  auto length = std::max<int64_t>(kPieceBytes / element_size, 1);
  std::vector<ChainPiece> pieces;
  if (counts.empty()) cut(pieces, length, 0, count, kAllHosts);
  int64_t begin = 0;
  for (size_t host = 0; host < counts.size(); ++host) {
    cut(pieces, length, begin, counts[host], static_cast<int64_t>(host));
    begin += counts[host];
  }
  return pieces;
}

void reduce_along_chain(const Levels& levels, const Collective& call, const at::Tensor& mine,
                        const std::vector<ChainPiece>& pieces, const at::Tensor& sums, int64_t offset) {
  Chain(levels, call, mine, pieces, sums, offset).run();
}

}  // namespace intarsia
