#pragma once
// A scope in which ranks fill their parts of a plain tensor with the random numbers that one device would draw for the
// whole.
//
//   torch::manual_seed(7);               // on every rank
//   LocalRandomScope scope(mesh["dp"]);  // rows of a batch
//   auto loss = loss_of(model, my_rows);  // dropout: each rank draws the masks of its rows
//   loss.backward();

#include <optional>

#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"

namespace intarsia {

// Note [Random numbers of local tensors]
// Ranks with the same seed draw the same numbers, so under data parallelism, where activations are plain tensors, all
// ranks would have the same dropout mask. Seeds that differ by rank would give numbers that depend on the number of
// ranks, and generators that no longer agree on distributed tensors. Here all ranks keep one seed: an op that fills a
// tensor with random numbers (uniform_, normal_, bernoulli_ and the like, and so rand, randn_like, dropout and
// multinomial of one sample) takes the tensor as this rank's part of a larger one, and draws that part of the numbers
// of one device. The generators of all ranks stay in one state, that of one device, and the numbers depend neither on
// the number of ranks nor on where a job was resumed.
//
// Before each draw the ranks exchange the shapes of their parts, so these may differ along the dims that are split;
// then, as for distributed tensors, they compare their generators. If a tensor lacks the dim of an axis, all ranks of
// that axis draw the same. Ops that draw in other ways (randperm, poisson, rrelu, multinomial of several samples)
// behave as outside the scope.
class LocalRandomScope {
 public:
  struct Parts {
    DeviceMesh mesh;
    Placements placements;
  };

  // For this thread; all ranks of the mesh enter it together. One Shard or Replicate per axis; by default rows along
  // every axis. The innermost scope decides.
  explicit LocalRandomScope(const DeviceMesh& mesh, Placements placements = {});
  // With the parts of another scope, or as without any: for code that runs again.
  explicit LocalRandomScope(std::optional<Parts> parts);
  ~LocalRandomScope();
  LocalRandomScope(const LocalRandomScope&) = delete;
  LocalRandomScope& operator=(const LocalRandomScope&) = delete;

  static std::optional<Parts> current();

 private:
  void open();

  std::optional<Parts> parts_;
  const LocalRandomScope* outer_ = nullptr;
  bool was_included_ = false, was_excluded_ = false;  // the key
};

}  // namespace intarsia
