#pragma once
// The collectives of c10d backends, and waits for them.

#include <cstdint>
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

using BackendWork = c10::intrusive_ptr<c10d::Work>;

// The backend's own all_reduce, in place, if it has one that gives the numbers of reduce() for this dtype and op; else
// null.
BackendWork backend_all_reduce(const Members& members, const at::Tensor& buffer, ReduceOp op);

// The backend's own broadcast, in place.
BackendWork backend_broadcast(const Members& members, const at::Tensor& buffer, int64_t source);

// Waits for what the backend does in a collective; keeps the buffers until it is done.
Wait wait_for_work(SharedMembers members, Collective call, BackendWork work, std::vector<at::Tensor> buffers);

}  // namespace intarsia
