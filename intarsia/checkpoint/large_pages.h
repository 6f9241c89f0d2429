#pragma once
// Memory for a copy of everything that a rank saves.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace intarsia::checkpoint {

// Bytes, not set to anything. In large pages where the system has them: memory that is new to a process is cleared page by page
// when it is first written, and for small ones that takes longer than the copy.
at::Tensor memory_in_large_pages(int64_t bytes);

}  // namespace intarsia::checkpoint
