#pragma once
// Random numbers are those that one device would draw, the same on all ranks.

#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/call.h"

namespace intarsia {

// The generator that a random op with these arguments draws from: theirs, or else the default one.
at::Generator generator_of(const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args);

// Whether the ranks of the mesh, of which this process hosts one, draw from generators of their own.
bool have_several_generators(const DeviceMesh& mesh);

// All ranks go on from the state of the first one's generator.
void follow_first_rank(const DeviceMesh& mesh, at::Generator generator);

class RandomScope;

// Around a draw on the mesh: before it, all ranks have the same generator, see Note [One generator]. A simulation has but one.
class AgreedDraw {
 public:
  AgreedDraw(const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args);
  ~AgreedDraw();
  AgreedDraw(const AgreedDraw&) = delete;
  AgreedDraw& operator=(const AgreedDraw&) = delete;

 private:
  at::Generator generator_;  // where there are several
  RandomScope* scope_ = nullptr;
};

// Whether input `i` is only written by a random op, not read: nothing needs to be brought together.
bool only_written(const Call& call, const Decision& decision, size_t i);

// In a simulation the first rank has drawn; the others get the same numbers.
void share_random_results(const Call& call, const Decision& decision, c10::SmallVector<Shards, 4>& inputs,
                          std::vector<std::vector<c10::IValue>>& results);

}  // namespace intarsia
