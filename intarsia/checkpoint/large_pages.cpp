#include "intarsia/checkpoint/large_pages.h"

#include <sys/mman.h>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/files.h"

namespace intarsia::checkpoint {

at::Tensor memory_in_large_pages(int64_t bytes) {
  auto room = bytes + 2 * kLargePage;  // for a beginning and an end that are multiples
  auto* mapped = static_cast<char*>(::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (mapped == MAP_FAILED) return at::empty({bytes}, at::kByte);  // which tells what is wrong
  auto* begin = mapped + -reinterpret_cast<uintptr_t>(mapped) % kLargePage;
#ifdef MADV_HUGEPAGE
  ::madvise(begin, (bytes + kLargePage - 1) / kLargePage * kLargePage, MADV_HUGEPAGE);  // a wish: without, pages are small
#endif
  return at::from_blob(begin, {bytes}, [mapped, room](void*) { ::munmap(mapped, room); }, at::kByte);
}

}  // namespace intarsia::checkpoint
