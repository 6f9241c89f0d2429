#pragma once
// The collectives of c10d backends, and waits for them.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/wait.h"
#include "intarsia/core/placement.h"
#include "intarsia/transport/gloo/members.h"

namespace c10d {
class Work;
}

namespace intarsia {

// The backend's all_reduce, in place, if it has one that gives the numbers of reduce() for this dtype and op.
std::optional<Wait> backend_all_reduce(const Members& members, const at::Tensor& buffer, ReduceOp op);

// The backend's broadcast, in place.
Wait backend_broadcast(const Members& members, const at::Tensor& buffer, int64_t source);

// A wait for the backend's work; keeps the buffers until it is done.
Wait wait_for_work(const Members& members, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> buffers);

}  // namespace intarsia
