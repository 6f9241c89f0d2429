#include "intarsia/dispatch/watch.h"

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

thread_local bool inside_op = false;

struct Inside {
  Inside() { inside_op = true; }
  ~Inside() { inside_op = false; }
};

}  // namespace

std::atomic<OpWatch*> OpWatch::current_{nullptr};

OpWatch::OpWatch(See see) : see_(std::move(see)) {
  OpWatch* none = nullptr;
  TORCH_CHECK(current_.compare_exchange_strong(none, this), "[OpWatch] ops are being watched already. End that first.");
}

OpWatch::~OpWatch() { current_ = nullptr; }

void OpWatch::run(const c10::FunctionSchema& schema, std::vector<c10::IValue>& stack, const std::function<void()>& op) {
  auto* watch = current_.load();
  if (!watch || inside_op) return op();
  std::vector<c10::IValue> arguments(stack.end() - schema.arguments().size(), stack.end());
  {
    Inside inside;
    op();
  }
  watch->see_({schema, arguments, c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - schema.returns().size())});
}

}  // namespace intarsia
