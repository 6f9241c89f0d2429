#pragma once
// Reports every op on distributed and per-rank tensors to a watcher.

#include <atomic>
#include <functional>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace intarsia {

struct SeenOp {
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> arguments, results;
};

// A scope in which `see` is called after each op of this thread; what an op does by means of other ops is not shown.
// One at a time.
class OpWatch {
 public:
  using See = std::function<void(const SeenOp&)>;
  explicit OpWatch(See see);
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;

  static bool open() { return C10_UNLIKELY(count_.load(std::memory_order_relaxed) > 0) && current(); }
  // Runs an op whose arguments end the stack and whose results take their place.
  static void run(const c10::FunctionSchema& schema, std::vector<c10::IValue>& stack, const std::function<void()>& op);

 private:
  static OpWatch* current();       // of this thread
  static std::atomic<int> count_;  // of all threads
  See see_;
};

}  // namespace intarsia
