#pragma once
// Random numbers are those that one device would draw, the same on all ranks.

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

// The generator that a random op with these arguments draws from: theirs, or else the default one.
at::Generator generator_of(const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args);

// Around a draw of `op` on the mesh: before it, all ranks have the same generator, see Note [One generator].
class AgreedDraw {
 public:
  AgreedDraw(const std::string& op, const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args);
  ~AgreedDraw();
  AgreedDraw(const AgreedDraw&) = delete;
  AgreedDraw& operator=(const AgreedDraw&) = delete;

 private:
  DeviceMesh mesh_;  // undefined where there is but one generator
  at::Generator generator_;
};

// Whether input `i` is only written by a random op, not read: nothing needs to be brought together.
bool only_written(const Call& call, const Decision& decision, size_t i);

// In a simulation the first rank has drawn; the others get the same numbers.
void share_random_results(const Call& call, const Decision& decision, c10::SmallVector<Shards, 4>& inputs,
                          std::vector<std::vector<c10::IValue>>& results);

}  // namespace intarsia
