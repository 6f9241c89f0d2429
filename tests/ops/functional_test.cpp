// torch::nn::functional with every cut of its inputs. What is a function of ATen by another name is in
// composites_nn.cpp.

#include "intarsia/tensor/policy.h"
#include "tests/ops/every_cut.h"

namespace intarsia::ops_functional_test {
namespace {

namespace F = torch::nn::functional;

template <class Body>
CutCase call(std::string name, Body body, Tensors inputs) {
  return {std::move(name), function(body), std::move(inputs)};
}

at::Tensor share(std::vector<int64_t> shape) { return waves(std::move(shape), 1.9).sigmoid(); }

TEST(Functional, Activations) {
  auto x = waves({5, 3});
  check_every_cut({
      call("celu", [](auto& t) { return F::celu(t[0], F::CELUFuncOptions().alpha(0.6)); }, {x}),
      call("elu", [](auto& t) { return F::elu(t[0], F::ELUFuncOptions().alpha(0.6)); }, {x}),
      call("gelu", [](auto& t) { return F::gelu(t[0]); }, {x}),
      call("glu", [](auto& t) { return F::glu(t[0], F::GLUFuncOptions(1)); }, {waves({5, 4})}),
      call("gumbel_softmax",
           [](auto& t) { return F::gumbel_softmax(t[0], F::GumbelSoftmaxFuncOptions().tau(0.7).dim(1)); }, {x}),
      call("gumbel_softmax hard",
           [](auto& t) { return F::gumbel_softmax(t[0], F::GumbelSoftmaxFuncOptions().hard(true).dim(1)); }, {x}),
      call("hardshrink", [](auto& t) { return F::hardshrink(t[0]); }, {x}),
      call("hardtanh", [](auto& t) { return F::hardtanh(t[0]); }, {x}),
      call("leaky_relu", [](auto& t) { return F::leaky_relu(t[0]); }, {x}),
      call("log_softmax", [](auto& t) { return F::log_softmax(t[0], 1); }, {x}),
      call("logsigmoid", [](auto& t) { return F::logsigmoid(t[0]); }, {x}),
      call("mish", [](auto& t) { return F::mish(t[0]); }, {x}),
      call("normalize", [](auto& t) { return F::normalize(t[0], F::NormalizeFuncOptions().p(3).dim(0)); }, {x}),
      call("prelu", [](auto& t) { return F::prelu(t[0], t[1]); }, {x, waves({3}, 0.4)}),
      call("relu6", [](auto& t) { return F::relu6(t[0] * 5); }, {x}),
      call("rrelu", [](auto& t) { return F::rrelu(t[0], F::RReLUFuncOptions().training(true)); }, {x}),
      call("selu", [](auto& t) { return F::selu(t[0]); }, {x}),
      call("silu", [](auto& t) { return F::silu(t[0]); }, {x}),
      call("softmax", [](auto& t) { return F::softmax(t[0], 0); }, {x}),
      call("softmin", [](auto& t) { return F::softmin(t[0], 1); }, {x}),
      call("softplus", [](auto& t) { return F::softplus(t[0]); }, {x}),
      call("softshrink", [](auto& t) { return F::softshrink(t[0]); }, {x}),
      call("softsign", [](auto& t) { return F::softsign(t[0]); }, {x}),
      call("tanhshrink", [](auto& t) { return F::tanhshrink(t[0]); }, {x}),
      call("threshold", [](auto& t) { return F::threshold(t[0], F::ThresholdFuncOptions(0.2, -3)); }, {x}),
  });
}

TEST(Functional, Losses) {
  auto x = waves({5, 3}), y = waves({5, 3}, 1.1), z = waves({5, 3}, 1.9);
  auto classes = at::arange(5) % 3;
  check_every_cut({
      call("binary_cross_entropy", [](auto& t) { return F::binary_cross_entropy(t[0].sigmoid(), t[1]); },
           {x, share({5, 3})}),
      call("binary_cross_entropy_with_logits", [](auto& t) { return F::binary_cross_entropy_with_logits(t[0], t[1]); },
           {x, share({5, 3})}),
      call("cosine_embedding_loss", [](auto& t) { return F::cosine_embedding_loss(t[0], t[1], t[2].sign()); },
           {x, y, waves({5})}),
      call("cross_entropy", [](auto& t) { return F::cross_entropy(t[0], t[1]); }, {x, classes}),
      call("hinge_embedding_loss", [](auto& t) { return F::hinge_embedding_loss(t[0], t[1].sign()); }, {x, y}),
      call("huber_loss", [](auto& t) { return F::huber_loss(t[0], t[1]); }, {x, y}),
      call("kl_div", [](auto& t) { return F::kl_div(t[0], t[1]); }, {x, share({5, 3})}),
      call("l1_loss", [](auto& t) { return F::l1_loss(t[0], t[1]); }, {x, y}),
      call("margin_ranking_loss", [](auto& t) { return F::margin_ranking_loss(t[0], t[1], t[2].sign()); },
           {waves({5}), waves({5}, 1.1), waves({5}, 2.3)}),
      call("mse_loss", [](auto& t) { return F::mse_loss(t[0], t[1]); }, {x, y}),
      call("multi_margin_loss", [](auto& t) { return F::multi_margin_loss(t[0], t[1]); }, {x, classes}),
      call("multilabel_margin_loss", [](auto& t) { return F::multilabel_margin_loss(t[0], t[1]); },
           {x, at::arange(15).reshape({5, 3}) % 3}),
      call("multilabel_soft_margin_loss", [](auto& t) { return F::multilabel_soft_margin_loss(t[0], t[1]); },
           {x, share({5, 3})}),
      call("nll_loss", [](auto& t) { return F::nll_loss(t[0], t[1]); }, {x, classes}),
      call("poisson_nll_loss", [](auto& t) { return F::poisson_nll_loss(t[0], t[1]); }, {x, share({5, 3})}),
      call("smooth_l1_loss", [](auto& t) { return F::smooth_l1_loss(t[0], t[1]); }, {x, y}),
      call("soft_margin_loss", [](auto& t) { return F::soft_margin_loss(t[0], t[1].sign()); }, {x, y}),
      call("triplet_margin_loss", [](auto& t) { return F::triplet_margin_loss(t[0], t[1], t[2]); }, {x, y, z}),
      call("triplet_margin_with_distance_loss",
           [](auto& t) { return F::triplet_margin_with_distance_loss(t[0], t[1], t[2]); }, {x, y, z}),
      call("pairwise_distance", [](auto& t) { return F::pairwise_distance(t[0], t[1]); }, {x, y}),
      call("cosine_similarity", [](auto& t) { return F::cosine_similarity(t[0], t[1]); }, {x, y}),
  });
}

TEST(Functional, Dropouts) {
  auto x = waves({5, 3, 2}), image = waves({5, 3, 2, 2}), volume = waves({5, 3, 2, 2, 2});
  check_every_cut({
      call("dropout", [](auto& t) { return F::dropout(t[0]); }, {x}),
      call("dropout2d", [](auto& t) { return F::dropout2d(t[0]); }, {image}),
      call("dropout3d", [](auto& t) { return F::dropout3d(t[0]); }, {volume}),
      call("alpha_dropout", [](auto& t) { return F::alpha_dropout(t[0], F::AlphaDropoutFuncOptions().training(true)); },
           {x}),
      call("feature_alpha_dropout",
           [](auto& t) { return F::feature_alpha_dropout(t[0], F::FeatureAlphaDropoutFuncOptions().training(true)); },
           {x}),
  });
}

TEST(Functional, Pools) {
  auto line = waves({3, 2, 6}), image = waves({3, 2, 5, 6}), volume = waves({3, 2, 4, 4, 4});
  auto first = [](const auto& pair) { return std::get<0>(pair); };
  check_every_cut({
      call("adaptive_max_pool2d_with_indices",
           [](auto& t) { return F::adaptive_max_pool2d_with_indices(t[0], F::AdaptiveMaxPool2dFuncOptions({3, 2})); },
           {image}),
      call("adaptive_max_pool3d",
           [](auto& t) { return F::adaptive_max_pool3d(t[0], F::AdaptiveMaxPool3dFuncOptions(2)); }, {volume}),
      call("fractional_max_pool2d",
           [](auto& t) { return F::fractional_max_pool2d(t[0], F::FractionalMaxPool2dFuncOptions(2).output_size(3)); },
           {image}),
      call("fractional_max_pool2d of one",
           [](auto& t) { return F::fractional_max_pool2d(t[0], F::FractionalMaxPool2dFuncOptions(2).output_size(3)); },
           {waves({3, 5, 6})}),
      call("fractional_max_pool3d",
           [first](auto& t) {
             return first(
                 F::fractional_max_pool3d_with_indices(t[0], F::FractionalMaxPool3dFuncOptions(2).output_ratio(0.5)));
           },
           {volume}),
      call("lp_pool1d", [](auto& t) { return F::lp_pool1d(t[0], F::LPPool1dFuncOptions(2, 2)); }, {line}),
      call("lp_pool2d", [](auto& t) { return F::lp_pool2d(t[0], F::LPPool2dFuncOptions(3, 2)); }, {image}),
      call("lp_pool3d", [](auto& t) { return F::lp_pool3d(t[0], F::LPPool3dFuncOptions(2, 2)); }, {volume}),
      call("max_unpool1d",
           [](auto& t) {
             auto [x, at] = F::max_pool1d_with_indices(t[0], F::MaxPool1dFuncOptions(2));
             return F::max_unpool1d(x, at, F::MaxUnpool1dFuncOptions(2));
           },
           {line}),
      call("max_unpool2d",
           [](auto& t) {
             auto [x, at] = F::max_pool2d_with_indices(t[0], F::MaxPool2dFuncOptions(2));
             return F::max_unpool2d(x, at, F::MaxUnpool2dFuncOptions(2));
           },
           {waves({3, 2, 4, 6})}),
      call("max_unpool3d",
           [](auto& t) {
             auto [x, at] = F::max_pool3d_with_indices(t[0], F::MaxPool3dFuncOptions(2));
             return F::max_unpool3d(x, at, F::MaxUnpool3dFuncOptions(2));
           },
           {volume}),
  });
}

TEST(Functional, ImagesAndTables) {
  auto image = waves({3, 2, 5, 6}), ids = at::arange(15).reshape({5, 3}) % 7;
  check_every_cut({
      call("fold", [](auto& t) { return F::fold(t[0], F::FoldFuncOptions({4, 5}, {2, 2})); }, {waves({3, 8, 12})}),
      call("unfold", [](auto& t) { return F::unfold(t[0], F::UnfoldFuncOptions({2, 3}).padding(1)); }, {image}),
      call("interpolate",
           [](auto& t) {
             return F::interpolate(t[0],
                                   F::InterpolateFuncOptions().size(std::vector<int64_t>{4, 7}).mode(torch::kBilinear));
           },
           {image}),
      call("interpolate area",
           [](auto& t) {
             return F::interpolate(t[0],
                                   F::InterpolateFuncOptions().size(std::vector<int64_t>{2, 3}).mode(torch::kArea));
           },
           {image}),
      call("local_response_norm", [](auto& t) { return F::local_response_norm(t[0], 2); }, {image}),
      call("instance_norm", [](auto& t) { return F::instance_norm(t[0]); }, {image}),
      call("pixel_shuffle", [](auto& t) { return F::pixel_shuffle(t[0], F::PixelShuffleFuncOptions(2)); },
           {waves({3, 4, 2, 3})}),
      call("pad circular", [](auto& t) { return F::pad(t[0], F::PadFuncOptions({1, 2}).mode(torch::kCircular)); },
           {waves({3, 2, 6})}),
      call("grid_sample",
           [](auto& t) { return F::grid_sample(t[0], t[1].tanh(), F::GridSampleFuncOptions().align_corners(true)); },
           {image, waves({3, 2, 3, 2})}),
      call("embedding_bag",
           [](auto& t) { return F::embedding_bag(t[0], t[1], F::EmbeddingBagFuncOptions().mode(torch::kSum)); },
           {ids, waves({7, 2})}),
      call("one_hot", [](auto& t) { return F::one_hot(t[0], 7); }, {ids}),
      call("bilinear", [](auto& t) { return F::bilinear(t[0], t[1], t[2], t[3]); },
           {waves({5, 3}), waves({5, 2}), waves({4, 3, 2}), waves({4})}),
  });
}

// It is inline in LibTorch's headers, so the zeros of add_zero_attn are made by the caller's own program, and want a
// scope; the module's do not.
TEST(Functional, MultiHeadAttentionForward) {
  for (bool zeros : {false, true}) {
    check_every_cut({call("multi_head_attention_forward",
                          [=](auto& t) {
                            PlainTensorScope scope(zeros ? PlainTensors::replicate : PlainTensors::error);
                            F::MultiheadAttentionForwardFuncOptions options(4, 2, t[1], t[2], {}, {}, zeros, 0.0, t[3],
                                                                            t[4]);
                            return F::multi_head_attention_forward(t[0], t[0], t[0], options.training(false));
                          },
                          {waves({3, 5, 4}), waves({12, 4}), waves({12}), waves({4, 4}), waves({4})})});
  }
}

}  // namespace
}  // namespace intarsia::ops_functional_test
