#include "intarsia/nn/interposed_modules.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "intarsia/dispatch/factory_scope.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

GivenTensors given(std::initializer_list<at::Tensor> tensors) {
  GivenTensors result;
  for (auto& tensor : tensors) result.see(tensor);
  return result;
}

}  // namespace

bool linear_is_ours() {
  static const bool ours = is_first_definition(symbols::kLinear);
  return ours;
}

}  // namespace intarsia

at::Tensor torch::nn::LinearImpl::forward(const at::Tensor& input) {
  if (intarsia::is_dtensor(weight)) {
    return at::linear(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  return torch::nn::functional::linear(input, weight, bias);
}

at::Tensor torch::nn::CrossMapLRN2dImpl::forward(const at::Tensor& input) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !intarsia::is_dtensor(input), "CrossMapLRN2d writes into plain tensors that it allocates and ",
      "does not accept distributed ones. Use torch::nn::LocalResponseNorm, which sums over the channels ",
      "correctly.");
  using Forward = at::Tensor (*)(CrossMapLRN2dImpl*, const at::Tensor&);
  static const auto next = intarsia::next_definition<Forward>(intarsia::symbols::kCrossMapLRN2d);
  return next(this, input);
}

// It creates zeros for add_zero_attn.
std::tuple<at::Tensor, at::Tensor> torch::nn::MultiheadAttentionImpl::forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& key_padding_mask,
    bool need_weights, const at::Tensor& attn_mask, bool average_attn_weights) {
  using Forward =
      std::tuple<at::Tensor, at::Tensor> (*)(MultiheadAttentionImpl*, const at::Tensor&, const at::Tensor&,
                                             const at::Tensor&, const at::Tensor&, bool, const at::Tensor&, bool);
  static const auto next = intarsia::next_definition<Forward>(intarsia::symbols::kMultiheadAttention);
  auto given = intarsia::given({query, key, value, key_padding_mask, attn_mask});
  for (auto& parameter : parameters()) given.see(parameter);
  intarsia::FactoryScope scope(given);
  return next(this, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights);
}

// It draws a matrix and factorizes it.
at::Tensor torch::nn::init::orthogonal_(at::Tensor tensor, double gain) {
  static const auto next = intarsia::next_definition<decltype(&orthogonal_)>(intarsia::symbols::kOrthogonal);
  intarsia::FactoryScope scope(intarsia::given({tensor}));
  return next(tensor, gain);
}

// It draws the positions of the zeros.
at::Tensor torch::nn::init::sparse_(at::Tensor tensor, double sparsity, double std) {
  static const auto next = intarsia::next_definition<decltype(&sparse_)>(intarsia::symbols::kSparse);
  intarsia::FactoryScope scope(intarsia::given({tensor}));
  return next(tensor, sparsity, std);
}
