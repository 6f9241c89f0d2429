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

// Note [One agreement]
// Without a scope ranks compare their generators before every draw, see Note [One generator]. In a RandomScope the
// program says that all ranks do the same. They compare once. From then on nothing is sent: each rank knows the state
// that the last draw has left, and which ranks took part in it. A rank that finds another state has seeded or used the
// generator by itself, and raises an error that names it, before it draws. So does a rank that has drawn on a part of
// the mesh and then draws on more of it: it cannot know what the others did meanwhile.

// For draws on the mesh and on parts of it, on this thread. All ranks of the mesh make it, and leave it, together. A
// generator of the program's own is compared when it is first drawn from.
class RandomScope {
 public:
  explicit RandomScope(const DeviceMesh& mesh);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  // To be called, on all ranks, after the program has seeded or used its generators by itself, or on parts of the mesh:
  // ranks compare them again.
  void agree();

  // To be called after all ranks have put the generator into a state that they had before, as a recomputation does.
  static void follow(const at::Generator& generator);

  // To be called after the ranks of the mesh have drawn from it together, or have agreed on it.
  static void follow(const at::Generator& generator, const DeviceMesh& mesh);

 private:
  friend class AgreedDraw;
  struct Known {
    at::Generator generator;
    std::vector<int64_t> ranks;  // that have it in this state
    at::Tensor state;
  };
  static RandomScope* around(const DeviceMesh& mesh);  // the innermost one that the mesh lies in; null if there is none
  void check(const at::Generator& generator, const DeviceMesh& mesh);
  void remember(const at::Generator& generator, const DeviceMesh& mesh);

  DeviceMesh mesh_;
  std::vector<Known> known_;  // what was learned last comes last
  RandomScope* outer_;
};

}  // namespace intarsia
