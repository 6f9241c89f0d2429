#pragma once
// RandomScope: one comparison of the ranks' random generators for many draws.
//
//   torch::manual_seed(7);      // on every rank
//   RandomScope scope(mesh);    // one message of 8 bytes to each rank: all have the same generator
//   model->forward(x);          // dropout sends nothing

#include <vector>

#include <ATen/core/Generator.h>

#include "intarsia/core/mesh.h"

namespace intarsia {

// Note [One agreement]
// Without a scope, ranks compare their generators before every draw, see Note [One generator]. With a RandomScope, the
// program says that all ranks do the same. They compare once. From then on nothing is sent: each rank knows the state
// that the last draw has left, and which ranks took part in it. A rank that finds another state has seeded or used the
// generator outside such draws, and raises an error that names it, before it draws. So does a rank that has drawn on a
// part of the mesh and then draws on more of it: it cannot know what the others did meanwhile.

// A scope for draws on the mesh and on parts of it, on this thread. All ranks of the mesh enter and leave it together.
// A generator that the program passes is compared when it is first drawn from.
class RandomScope {
 public:
  explicit RandomScope(const DeviceMesh& mesh);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // Makes ranks compare their generators again. All ranks call it after the program has seeded or used its generators
  // directly, or on parts of the mesh.
  void agree();

  // Call this after all ranks have set the generator back to a state that they had before, as a recomputation does.
  static void follow(const at::Generator& generator);

  // Call this after the ranks of the mesh have drawn from it together, or have agreed on it.
  static void follow(const at::Generator& generator, const DeviceMesh& mesh);

 private:
  friend class AgreedDraw;
  struct Known {
    at::Generator generator;
    std::vector<int64_t> ranks;  // that have it in this state
    at::Tensor state;
  };
  static RandomScope* around(const DeviceMesh& mesh);  // the innermost one that contains it; null for none
  void check(const at::Generator& generator, const DeviceMesh& mesh);
  void remember(const at::Generator& generator, const DeviceMesh& mesh);

  DeviceMesh mesh_;
  std::vector<Known> known_;  // what was learned last comes last
  RandomScope* outer_;
};

}  // namespace intarsia
