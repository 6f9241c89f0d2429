#include "intarsia/transport/gloo/collective_group.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/bytes.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/transport/gloo/process_group_ops.h"

namespace intarsia {
namespace {

MemberCounts in_bytes(MemberCounts counts, const at::Tensor& t) {
  for (auto& count : counts) count *= t.element_size();
  return counts;
}

// The backend matches messages by their order alone, whatever the calls.
class CollectiveGroup final : public Group {
 public:
  explicit CollectiveGroup(SharedMembers members) : members_(std::move(members)) {
    TORCH_INTERNAL_ASSERT(members_->whole());
  }

  const char* carrier() const override { return members_->line->carrier.c_str(); }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool) const override {
    auto op = *call.op;
    result.copy_(mine);
    begin(call);
    if (auto work = backend_all_reduce(*members_, result, op)) return ended_by(work, std::move(call), {result});
    auto n = members_->size();
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
      options.timeout = members_->line->timeout;
      return ended_by(members_->backend->_allgather_base(into, from, options), std::move(call), {into, from});
    }
    // An all_to_all sends a part to each member, so our one part is laid out once per member.
    auto n = members_->size();
    return all_to_all(std::move(call), from.repeat(n), MemberCounts(n, from.numel()), into, in_bytes(counts, mine));
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    auto into = as_bytes(receive), from = as_bytes(send);
    auto into_counts = in_bytes(receive_counts, receive), from_counts = in_bytes(send_counts, send);
    c10d::AllToAllOptions options;
    options.timeout = members_->line->timeout;
    begin(call);
    auto work = members_->backend->alltoall_base(into, from, into_counts, from_counts, options);
    return ended_by(std::move(work), std::move(call), {into, from});
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    begin(call);
    return ended_by(backend_broadcast(*members_, buffer, source), std::move(call), {buffer});
  }

 private:
  // Numbers the collective, unless another one that did so runs it.
  void begin(Collective& call) const {
    if (call.entry) return;
    members_->line->error.check();
    members_->line->number(call);
  }

  Wait ended_by(BackendWork work, Collective call, std::vector<at::Tensor> buffers) const {
    return wait_for_work(members_, std::move(call), std::move(work), std::move(buffers));
  }

  SharedMembers members_;
};

}  // namespace

std::unique_ptr<Group> make_collective_group(SharedMembers members) {
  return std::make_unique<CollectiveGroup>(std::move(members));
}

}  // namespace intarsia
