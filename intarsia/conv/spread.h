#pragma once
// Ops on images that are cut along their own dims. They run on all hosted ranks together, since they exchange rows.

#include <functional>
#include <string>
#include <vector>

#include "intarsia/conv/rows.h"
#include "intarsia/core/shards.h"
#include "intarsia/rules/table.h"

namespace intarsia {

// One call: the inputs have been brought to the chosen layouts.
struct Spread {
  const OpCall& call;
  DeviceMesh mesh;
  std::vector<const Layout*> in, out;  // null where a tensor is undefined
  std::vector<Shards> inputs;          // per tensor argument; empty where it is undefined
  std::vector<Shards> outputs;         // to be filled, one per result
  const std::vector<int64_t>& agreeing;  // axes along which ranks ask each other for errors

  at::Tensor input(size_t i, size_t slot) const { return inputs[i].empty() ? at::Tensor() : inputs[i][slot]; }
  size_t slots() const { return mesh.slots().size(); }
  // The local shape of result `i`.
  std::vector<int64_t> output_shape(size_t i, size_t slot) const;
};

struct SpreadOp {
  std::string name;                   // aten::convolution
  Rule rule;                          // its rows include those that cut dims of the image
  std::function<void(Spread&)> run;   // fills the outputs
  static constexpr int64_t kAllDims = -1, kAllButTwo = 0;
  int64_t image_dims = kAllButTwo;    // how many dims, the last ones, are those of the image
  // The forms of the results, where LibTorch cannot tell them without data.
  std::function<std::vector<TensorForm>(const OpCall&)> forms = nullptr;
  bool keeps_format = false;          // results have their channels last in memory if the image has
};

// Takes a call over if the cheapest choice of layouts cuts the image, for which `op.rule` has rows, or if the ordinary
// rules could not tell the form of the result. Else, and where a tensor is plain, the call is left to them.
Decomposition spread(SpreadOp op);

// For SpreadOp::run: the plain op on each rank, where the layouts let it be.
void plain_on_each_rank(Spread& run);

// Throws the plain op's own error if it refuses the call: it checks before it computes. For calls that look wrong.
void ask_plain(const OpCall& call);
[[noreturn]] void refuse_as_plain(const OpCall& call);  // for calls that are wrong

// The form of a dense tensor.
TensorForm dense_form(at::IntArrayRef shape, at::ScalarType dtype, at::MemoryFormat format = at::MemoryFormat::Contiguous);

}  // namespace intarsia
