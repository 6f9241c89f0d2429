#include "intarsia/transport/gloo/collective_group.h"

#include <algorithm>
#include <atomic>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/bytes.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/transport/gloo/process_group_ops.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/flight_report.h"

namespace intarsia {
namespace {

MemberCounts in_bytes(MemberCounts counts, const at::Tensor& t) {
  for (auto& count : counts) count *= t.element_size();
  return counts;
}

// The backend matches messages by their order alone, whatever the calls.
class CollectiveGroup final : public Group {
 public:
  explicit CollectiveGroup(Members members) : members_(std::move(members)) {
    TORCH_INTERNAL_ASSERT(members_.whole());
    carrier_ = members_.backend->getBackendName();
    flights_ = recorded_line(members_.ranks[members_.position], members_.ranks, carrier_);
  }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool) const override {
    auto op = *call.op;
    result.copy_(mine);
    begin(call);
    if (auto wait = backend_all_reduce(members_, result, op)) return recorded(std::move(call), std::move(*wait));
    auto n = members_.size();
    auto values = at::empty({n, mine.numel()}, mine.options());
    all_gather(std::move(call), mine, values, MemberCounts(n, mine.numel()))();
    reduce_parts(values, n, result.view(-1), op);
    return {};
  }

  Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                  const MemberCounts& counts) const override {
    auto into = as_bytes(all), from = as_bytes(mine);
    begin(call);
    if (std::equal(counts.begin() + 1, counts.end(), counts.begin())) {
      c10d::AllgatherOptions options;
      options.timeout = members_.timeout;
      auto work = members_.backend->_allgather_base(into, from, options);
      return recorded(std::move(call), wait_for_work(members_, std::move(work), {into, from}));
    }
    // An all_to_all sends a part to each member, so our one part is repeated once per member.
    return all_to_all(std::move(call), from.repeat(members_.size()), MemberCounts(members_.size(), from.numel()), into,
                      in_bytes(counts, mine));
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    auto into = as_bytes(receive), from = as_bytes(send);
    auto into_counts = in_bytes(receive_counts, receive), from_counts = in_bytes(send_counts, send);
    c10d::AllToAllOptions options;
    options.timeout = members_.timeout;
    begin(call);
    auto work = members_.backend->alltoall_base(into, from, into_counts, from_counts, options);
    return recorded(std::move(call), wait_for_work(members_, std::move(work), {into, from}));
  }

  const char* carrier() const override { return carrier_.c_str(); }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    begin(call);
    return recorded(std::move(call), backend_broadcast(members_, buffer, source));
  }

 private:
  // Numbers the collective, unless another one that did so runs it.
  void begin(Collective& call) const {
    if (call.entry) return;
    call.number = next_number_++;
    begin_entry(flights_, call);
  }

  static Wait recorded(Collective call, Wait wait) {
    return [call = std::move(call), wait = std::move(wait)] {
      wait_for_entry(call);
      try {
        wait();
      } catch (const std::exception&) {
        end_entry(call, false);
        report_failure();
        throw;
      }
      end_entry(call);
    };
  }

  Members members_;
  std::string carrier_;
  const RecordedLine* flights_;
  mutable std::atomic<uint64_t> next_number_{0};
};

}  // namespace

std::unique_ptr<Group> make_collective_group(Members members) {
  return std::make_unique<CollectiveGroup>(std::move(members));
}

}  // namespace intarsia
