#pragma once
// One agreement on the random generator for many draws.
//
//   torch::manual_seed(7);      // on every rank
//   RandomScope scope(mesh);    // one message of 8 bytes to each rank: all have the same generator
//   model->forward(x);          // dropout sends nothing

#include <vector>

#include <ATen/core/Generator.h>

#include "intarsia/core/mesh.h"

namespace intarsia {

// Note [One generator]
// Ranks draw the numbers of one device, so before a draw they must have the generator of one device. Outside of a scope, a rank
// cannot know what others did to theirs, and each draw begins with the state of the first rank, 5 KB to each of the others. In a
// RandomScope the program says that all ranks do the same. They compare their generators once; a rank whose generator differs from
// the first one's is named, in an error on all ranks. From then on nothing is sent: each rank knows the state that the last draw
// has left. A rank that finds another state has seeded or used the generator by itself, and raises an error that names it, before
// it draws.

// For draws on the mesh and on parts of it, on this thread. All ranks of the mesh make it, and leave it, together. A generator of
// the program's own is compared when it is first drawn from.
class RandomScope {
 public:
  explicit RandomScope(const DeviceMesh& mesh);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // To be called, on all ranks, after the program has seeded or used its generators by itself: ranks compare them again.
  void agree();

  // To be called after all ranks have put the generator into a state that they had before, as a recomputation does.
  static void follow(const at::Generator& generator);

 private:
  friend class AgreedDraw;
  struct Known {
    at::Generator generator;
    at::Tensor state;
  };
  static RandomScope* around(const DeviceMesh& mesh);  // the innermost one that the mesh lies in; null if there is none
  void check(const at::Generator& generator);
  void remember(const at::Generator& generator);
  void compare(Known& known) const;

  DeviceMesh mesh_;
  std::vector<Known> known_;
  RandomScope* outer_;
};

}  // namespace intarsia
