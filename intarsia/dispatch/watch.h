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

// A scope in which `see` is called after each op of this process, but not for the ops that an op itself calls. There
// can be one at a time.
class OpWatch {
 public:
  using See = std::function<void(const SeenOp&)>;
  explicit OpWatch(See see);
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  OpWatch& operator=(const OpWatch&) = delete;

  static bool open() { return current_.load(std::memory_order_relaxed) != nullptr; }
  // Runs an op, given as `op`, whose arguments end the stack and whose results replace them.
  static void run(const c10::FunctionSchema& schema, std::vector<c10::IValue>& stack, const std::function<void()>& op);

 private:
  static std::atomic<OpWatch*> current_;
  See see_;
};

}  // namespace intarsia
