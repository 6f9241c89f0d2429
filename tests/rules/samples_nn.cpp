// Samples of the ops behind torch::nn: linear, attention, embedding, normalizations, losses.

#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {

void add_nn_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  using Args = std::vector<c10::IValue>;
  using Ints = std::vector<int64_t>;
  auto each = [&](std::initializer_list<const char*> ops, const Args& args) {
    for (std::string op : ops) list.push_back({"aten::" + op, args});
  };
  c10::List<bool> all({true, true, true});

  // linear, matmul
  each({"linear"}, {x({3, 5, 4}), x({2, 4}), x({2})});
  each({"linear"}, {x({5, 4}), x({3, 4}), none});
  each({"linear"}, {x({4}), x({3, 4}), x({3})});
  each({"matmul"}, {x({3, 5, 2}), x({2, 4})});
  each({"matmul"}, {x({3, 1, 5, 2}), x({4, 2, 3})});
  each({"matmul"}, {x({5, 2}), x({3, 2, 4})});
  list.push_back({"intarsia::contract", {x({3, 5, 2}), x({3, 5, 4})}});
  list.push_back({"intarsia::contract", {x({2}), x({5})}});

  // statistics
  each({"var.correction", "std.correction", "var_mean.correction", "std_mean.correction"},
       {x({5, 3, 4}), Ints{1}, 1, false});
  each({"var.correction", "var_mean.correction"}, {x({5, 3, 4}), Ints{0, -1}, 0, true});
  each({"linalg_vector_norm"}, {x({5, 3, 4}), 2, Ints{1}, false, none});
  each({"linalg_vector_norm"}, {x({5, 3, 4}), 3, Ints{0, -1}, true, none});
  each({"linalg__powsum"}, {x({5, 3, 4}), 3, Ints{0, -1}, true, none});
  each({"logsumexp"}, {x({5, 3, 4}), Ints{1}, false});

  // normalizations
  each({"native_layer_norm"}, {x({5, 3, 4}), Ints{4}, x({4}), x({4}), 1e-5});
  each({"native_layer_norm"}, {x({5, 3, 4}), Ints{3, 4}, none, none, 1e-5});
  each({"native_layer_norm_backward"},
       {x({5, 3, 4}), x({5, 3, 4}), Ints{4}, x({5, 3, 1}), pos({5, 3, 1}), x({4}), x({4}), all});
  each({"native_group_norm"}, {x({5, 4, 3}), x({4}), x({4}), 5, 4, 3, 2, 1e-5});
  each({"native_group_norm"}, {x({3, 6, 2, 2}), none, none, 3, 6, 4, 3, 1e-5});
  each({"native_group_norm_backward"}, {x({5, 4, 3}), x({5, 4, 3}), x({5, 2}), pos({5, 2}), x({4}), 5, 4, 3, 2, all});

  // embedding
  each({"embedding"}, {x({5, 3}), below(5, {2, 4}), -1, false, false});
  each({"embedding"}, {x({7, 3}), below(7, {4}), 2, false, false});
  each({"embedding_dense_backward"}, {x({2, 4, 3}), below(5, {2, 4}), 5, -1, false});
  each({"embedding_dense_backward"}, {x({2, 4, 3}), below(5, {2, 4}), 5, 2, true});

  // attention
  auto attention = [&](at::Tensor q, at::Tensor k, at::Tensor v, bool causal, const c10::IValue& mask) {
    each({"_scaled_dot_product_flash_attention_for_cpu"}, {q, k, v, 0.0, causal, mask, none});
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, mask.isNone() ? std::nullopt : std::optional(mask.toTensor()));
    each({"_scaled_dot_product_flash_attention_for_cpu_backward"},
         {unit(out.sizes().vec()), q, k, v, out, sums, 0.0, causal, mask, none});
  };
  auto small = [](Ints sizes) { return unit(std::move(sizes)); };
  attention(small({3, 4, 5, 2}), small({3, 4, 6, 2}), small({3, 4, 6, 2}), false, none);
  attention(small({2, 3, 5, 2}), small({2, 3, 5, 2}), small({2, 3, 5, 2}), true, none);
  attention(small({2, 3, 5, 2}), small({2, 3, 4, 2}), small({2, 3, 4, 2}), false, small({5, 4}));
  attention(small({2, 3, 5, 2}), small({2, 3, 4, 2}), small({2, 3, 4, 2}), false, small({2, 1, 5, 4}));

  // losses
  for (int64_t reduction : {at::Reduction::None, at::Reduction::Sum}) {
    auto grad = reduction == at::Reduction::None ? x({5, 3}) : at::tensor(1.5);
    auto p = unit({5, 3}).abs() + 0.1, target = unit({5, 3}).abs();
    each({"binary_cross_entropy"}, {p, target, none, reduction});
    each({"binary_cross_entropy"}, {p, target, pos({3}), reduction});
    each({"binary_cross_entropy_backward"}, {grad, p, target, pos({5, 3}), reduction});
  }
}

}  // namespace intarsia
