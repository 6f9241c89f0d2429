#include "intarsia/watch/sticky_error.h"

#include <c10/util/Exception.h>

namespace intarsia {

bool StickyError::exists() const {
  std::lock_guard lock(mutex_);
  return !text_.empty();
}

void StickyError::check() const {
  std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, text_.empty(), "this group has failed before: ", text_);
}

void StickyError::set(const std::string& text) {
  std::lock_guard lock(mutex_);
  text_ = text;
}

void StickyError::fail(const std::string& text) {
  set(text);
  C10_THROW_ERROR(DistBackendError, text);
}

}  // namespace intarsia
