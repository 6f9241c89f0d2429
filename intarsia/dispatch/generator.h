#pragma once
// Generators of random ops: all ranks draw the numbers that one device would draw.

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

// The generator that a random op with these arguments draws from: the one among them, or else the default one.
at::Generator generator_of(const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args);

// A scope around a draw of `op` on the mesh: before it, all ranks have the same generator, see Note [One generator].
class AgreedDraw {
 public:
  AgreedDraw(const std::string& op, const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args);
  ~AgreedDraw();
  AgreedDraw(const AgreedDraw&) = delete;
  AgreedDraw& operator=(const AgreedDraw&) = delete;

 private:
  DeviceMesh mesh_;  // undefined if there is only one generator
  at::Generator generator_;
};

// Whether a random op only writes input `i` and does not read it, so that it need not be redistributed.
bool only_written(const Call& call, const Decision& decision, size_t i);

// In a simulation the first rank draws; this gives the others the same numbers.
void share_random_results(const Call& call, const Decision& decision, c10::SmallVector<Shards, 4>& inputs,
                          std::vector<std::vector<c10::IValue>>& results);

}  // namespace intarsia
