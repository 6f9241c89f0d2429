#pragma once
// What a c10d backend does by itself, and what its errors say.

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/c10d/members.h"
#include "intarsia/comm/wait.h"
#include "intarsia/core/placement.h"

namespace c10d {
class Work;
}

namespace intarsia {

// The backend's own all_reduce, in place, if it has one that gives the numbers of reduce() for this dtype and op.
std::optional<Wait> backend_all_reduce(const Members& members, const at::Tensor& buffer, ReduceOp op);

// The backend's own broadcast, in place.
Wait backend_broadcast(const Members& members, const at::Tensor& buffer, int64_t source);

// Waits for what the backend does; keeps the buffers until it is done.
Wait wait_for_work(const Members& members, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> buffers);

// What a backend's error says, without its stack trace, source line and advice.
std::string plain_text(const std::exception& error);

}  // namespace intarsia
