#include "intarsia/watch/sticky_error.h"

#include <c10/util/Exception.h>

namespace intarsia {

std::string StickyError::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

void StickyError::check() const {
  TORCH_CHECK_WITH(DistBackendError, !exists(), "this group has failed before: ", text());
}

void StickyError::rethrow() const { TORCH_CHECK_WITH(DistBackendError, !exists(), text()); }

void StickyError::set(const std::string& text) {
  std::lock_guard lock(mutex_);
  text_ = text;
  exists_.store(true, std::memory_order_release);
}

}  // namespace intarsia
