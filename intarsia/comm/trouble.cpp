#include "intarsia/comm/trouble.h"

#include <c10/util/Exception.h>

namespace intarsia {

bool Trouble::exists() const {
  std::lock_guard lock(mutex_);
  return !text_.empty();
}

void Trouble::check() const {
  std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, text_.empty(), "this group has failed before: ", text_);
}

void Trouble::set(const std::string& text) {
  std::lock_guard lock(mutex_);
  text_ = text;
}

void Trouble::fail(const std::string& text) {
  set(text);
  C10_THROW_ERROR(DistBackendError, text);
}

}  // namespace intarsia
