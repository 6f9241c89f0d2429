#include "intarsia/dispatch/watch.h"

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

thread_local bool inside_op = false;
thread_local OpWatch* watch_ = nullptr;

struct Inside {
  Inside() { inside_op = true; }
  ~Inside() { inside_op = false; }
};

}  // namespace

std::atomic<int> OpWatch::count_{0};

OpWatch* OpWatch::current() { return watch_; }

OpWatch::OpWatch(See see) : see_(std::move(see)) {
  TORCH_CHECK(!watch_, "[OpWatch] ops are being watched already. End that first.");
  watch_ = this;
  ++count_;
}

OpWatch::~OpWatch() {
  watch_ = nullptr;
  --count_;
}

void OpWatch::run(const c10::FunctionSchema& schema, std::vector<c10::IValue>& stack, const std::function<void()>& op) {
  auto* watch = current();
  if (!watch || inside_op) return op();
  std::vector<c10::IValue> arguments(stack.end() - schema.arguments().size(), stack.end());
  {
    Inside inside;
    op();
  }
  watch->see_({schema, arguments, c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - schema.returns().size())});
}

}  // namespace intarsia
