#include "intarsia/comm/group.h"

#include <utility>

#include <ATen/ATen.h>

#include "intarsia/comm/reduce.h"

namespace intarsia {

Wait Group::reduce_scatter(Collective call, const at::Tensor& send, const MemberCounts& counts,
                           const at::Tensor& result) const {
  auto n = static_cast<int64_t>(counts.size());
  auto parts = at::empty({n * result.numel()}, send.options());
  auto op = *call.op;
  return then(all_to_all(std::move(call), send, counts, parts, MemberCounts(n, result.numel())),
              [parts, n, result, op] { reduce_parts(parts, n, result, op); });
}

}  // namespace intarsia
