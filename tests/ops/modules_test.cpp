// The modules of torch::nn and the functions of torch::nn::functional, with tensors, on a batch that is cut.

#include "tests/ops/module_table.h"

namespace intarsia {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

const char* kSum = "reduce";

#define MODULE(...) [] { return net(nn::__VA_ARGS__); }

Input rows(std::vector<int64_t> shape, double step = 0.7) { return {waves(std::move(shape), step)}; }
Input kept(std::vector<int64_t> shape, double step = 1.3) { return {waves(std::move(shape), step), -1}; }
Input numbers(int64_t below, std::vector<int64_t> shape, int64_t cut = 0) {
  return {(at::arange(c10::multiply_integers(shape)) * 3 % below).reshape(shape), cut};
}
Input second(std::vector<int64_t> shape, double step = 0.7) { return {waves(std::move(shape), step), 1}; }

TEST(Modules, Activations) {
  auto x = rows({5, 4, 6});
  check({
      {"ELU", MODULE(ELU(nn::ELUOptions().alpha(0.7))), {x}},
      {"SELU", MODULE(SELU()), {x}},
      {"Hardshrink", MODULE(Hardshrink(0.4)), {x}},
      {"Hardtanh", MODULE(Hardtanh(nn::HardtanhOptions().min_val(-0.6).max_val(0.8))), {x}},
      {"LeakyReLU", MODULE(LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.3))), {x}},
      {"LogSigmoid", MODULE(LogSigmoid()), {x}},
      {"Softmax", MODULE(Softmax(-1)), {x}},
      {"Softmin", MODULE(Softmin(1)), {x}},
      {"LogSoftmax", MODULE(LogSoftmax(1)), {x}},
      {"Softmax2d", MODULE(Softmax2d()), {rows({5, 3, 2, 2})}},
      {"PReLU", MODULE(PReLU()), {x}},
      {"PReLU per channel", MODULE(PReLU(nn::PReLUOptions().num_parameters(4))), {x}},
      {"ReLU", MODULE(ReLU()), {x}},
      {"ReLU6", MODULE(ReLU6()), {x}},
      {"CELU", MODULE(CELU(nn::CELUOptions().alpha(0.6))), {x}},
      {"GLU", MODULE(GLU(-1)), {x}},
      {"GELU", MODULE(GELU()), {x}},
      {"GELU tanh", MODULE(GELU(nn::GELUOptions().approximate("tanh"))), {x}},
      {"SiLU", MODULE(SiLU()), {x}},
      {"Mish", MODULE(Mish()), {x}},
      {"Sigmoid", MODULE(Sigmoid()), {x}},
      {"Softplus", MODULE(Softplus(nn::SoftplusOptions().beta(1.4).threshold(1.5))), {x}},
      {"Softshrink", MODULE(Softshrink(0.5)), {x}},
      {"Softsign", MODULE(Softsign()), {x}},
      {"Tanh", MODULE(Tanh()), {x}},
      {"Tanhshrink", MODULE(Tanhshrink()), {x}},
      {"Threshold", MODULE(Threshold(0.2, -3)), {x}},
      {"hardsigmoid, hardswish, logit",
       function([](auto& t) { return at::hardsigmoid(t[0]) + at::hardswish(t[0]) + at::logit(t[0].sigmoid()); }),
       {x}},
      {"normalize", function([](auto& t) { return F::normalize(t[0], F::NormalizeFuncOptions().p(2).dim(1)); }), {x}},
      {"RReLU in eval",
       [] {
         auto m = nn::RReLU(nn::RReLUOptions().lower(0.1).upper(0.3));
         m->eval();
         return net(m);
       },
       {x}},
      {"ReLU in place", function([](auto& t) { return F::relu(t[0] * 1, F::ReLUFuncOptions(true)); }), {x}},
  });
}

TEST(Modules, LinearAndShapes) {
  check({
      {"Identity", MODULE(Identity()), {rows({5, 4})}},
      {"Linear", MODULE(Linear(4, 3)), {rows({5, 4})}},
      {"Linear without bias", MODULE(Linear(nn::LinearOptions(4, 3).bias(false))), {rows({5, 2, 4})}},
      {"Linear on 3 dims", MODULE(Linear(4, 3)), {rows({5, 2, 4})}},
      {"Bilinear", MODULE(Bilinear(4, 3, 2)), {rows({5, 4}), rows({5, 3}, 1.1)}},
      {"Bilinear on 3 dims",
       MODULE(Bilinear(nn::BilinearOptions(4, 3, 2).bias(false))),
       {rows({5, 2, 4}), rows({5, 2, 3}, 1.1)}},
      {"Flatten", MODULE(Flatten()), {rows({5, 4, 3})}},
      {"Unflatten", MODULE(Unflatten(nn::UnflattenOptions(1, {2, 3}))), {rows({5, 6, 2})}},
      {"PixelShuffle", MODULE(PixelShuffle(2)), {rows({5, 8, 2, 3})}},
      {"PixelUnshuffle", MODULE(PixelUnshuffle(2)), {rows({5, 2, 4, 6})}},
      {"channel_shuffle", function([](auto& t) { return at::channel_shuffle(t[0], 2); }), {rows({5, 6, 2, 2})}},
      {"one_hot",
       function([](auto& t) { return F::one_hot(t[0], 7); }),
       {numbers(7, {5, 3})},
       "reduce"},  // the classes are looked at
      {"PairwiseDistance",
       MODULE(PairwiseDistance(nn::PairwiseDistanceOptions().p(2))),
       {rows({5, 4}), rows({5, 4}, 1.1)}},
      {"PairwiseDistance p 1",
       MODULE(PairwiseDistance(nn::PairwiseDistanceOptions().p(1).keepdim(true))),
       {rows({5, 4}), rows({5, 4}, 1.1)}},
      {"CosineSimilarity",
       MODULE(CosineSimilarity(nn::CosineSimilarityOptions().dim(1))),
       {rows({5, 4, 2}), rows({5, 4, 2}, 1.1)}},
      {"pdist", function([](auto& t) { return F::pdist(t[0]); }), {rows({5, 4})}, "gather"},
      {"cdist", function([](auto& t) { return at::cdist(t[0], t[1]); }), {rows({5, 4, 3}), rows({5, 2, 3}, 1.1)}},
      {"cdist p 3",
       function([](auto& t) { return at::cdist(t[0], t[1], 3); }),
       {rows({5, 4, 3}), rows({5, 2, 3}, 1.1)}},
      {"cdist of rows", function([](auto& t) { return at::cdist(t[0], t[1], 1.5); }), {rows({5, 3}), kept({4, 3})}},
      {"einsum",
       function([](auto& t) { return at::einsum("bij,bkj->bik", {t[0], t[1]}); }),
       {rows({5, 4, 3}), rows({5, 2, 3}, 1.1)}},
      {"baddbmm",
       function([](auto& t) { return at::baddbmm(t[0], t[1], t[2]); }),
       {rows({5, 4, 2}), rows({5, 4, 3}), rows({5, 3, 2})}},
  });
}

TEST(Modules, Embeddings) {
  auto table = [](auto options) { return [=] { return net(nn::Embedding(options)); }; };
  auto bag = [](auto options) { return [=] { return net(nn::EmbeddingBag(options)); }; };
  auto ids = numbers(7, {5, 3});
  check({
      {"Embedding", table(nn::EmbeddingOptions(7, 4)), {ids}},
      {"Embedding padding_idx", table(nn::EmbeddingOptions(7, 4).padding_idx(2)), {ids}},
      {"Embedding max_norm", table(nn::EmbeddingOptions(7, 4).max_norm(1.0)), {ids}, "gather"},
      {"Embedding by frequency", table(nn::EmbeddingOptions(7, 4).scale_grad_by_freq(true)), {ids}, "gather"},
      {"EmbeddingBag mean", bag(nn::EmbeddingBagOptions(7, 4).mode(torch::kMean)), {ids}, "gather"},
      {"EmbeddingBag sum", bag(nn::EmbeddingBagOptions(7, 4).mode(torch::kSum)), {ids}, "gather"},
      {"EmbeddingBag max", bag(nn::EmbeddingBagOptions(7, 4).mode(torch::kMax)), {ids}, "gather"},
      {"EmbeddingBag padding", bag(nn::EmbeddingBagOptions(7, 4).mode(torch::kMean).padding_idx(1)), {ids}, "gather"},
      {"EmbeddingBag weights",
       function([](auto& t) {
         return F::embedding_bag(t[0], t[1], F::EmbeddingBagFuncOptions().mode(torch::kSum).per_sample_weights(t[2]));
       }),
       {ids, kept({7, 4}), rows({5, 3})},
       "gather"},
      {"embedding_bag with offsets",
       function([](auto& t) {
         return F::embedding_bag(t[0], t[1], F::EmbeddingBagFuncOptions().mode(torch::kSum).offsets(t[2]));
       }),
       {numbers(7, {8}, -1), kept({7, 4}), Input{at::tensor({0, 2, 2, 5}, at::kLong), -1}}},
  });
}

TEST(Modules, Attention) {
  // Batch and heads are folded into one dim: a batch that does not divide would move. Equal inputs are looked for.
  auto transformer = nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6).dropout(0);
  auto decoder = nn::TransformerDecoderLayerOptions(4, 2).dim_feedforward(6).dropout(0);
  auto q = second({3, 60, 4}), k = second({2, 60, 4}, 1.1), v = second({2, 60, 4}, 1.7);
  check({
      {"MultiheadAttention", MODULE(MultiheadAttention(4, 2)), {q, k, v}, "reduce"},
      {"MultiheadAttention of itself",
       [] {
         auto m = nn::MultiheadAttention(4, 2);
         return Net{m.ptr(), [m](auto& t) mutable { return outputs_of(m->forward(t[0], t[0], t[0])); }};
       },
       {q},
       "reduce"},
      {"MultiheadAttention with masks",
       [] {
         auto m = nn::MultiheadAttention(4, 2);
         return Net{m.ptr(),
                    [m](auto& t) mutable { return outputs_of(m->forward(t[0], t[1], t[2], t[3], true, t[4])); }};
       },
       {q, k, v, Input{at::zeros({60, 2}, at::kBool)},
        Input{at::tensor({0, 1, 0, 0, 1, 0}).reshape({3, 2}).to(at::kBool), -1}},
       "reduce"},
      {"MultiheadAttention other sizes",
       [] {
         auto m = nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).kdim(3).vdim(3).add_zero_attn(true));
         return Net{m.ptr(), [m](auto& t) mutable { return outputs_of(m->forward(t[0], t[1], t[2])); }};
       },
       {q, second({2, 60, 3}), second({2, 60, 3})},
       "reduce"},
      {"MultiheadAttention bias_kv",
       MODULE(MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).add_bias_kv(true))),
       {q, k, v},
       "reduce"},
      {"TransformerEncoderLayer", [=] { return net(nn::TransformerEncoderLayer(transformer)); }, {q}, "reduce"},
      {"TransformerDecoderLayer", [=] { return net(nn::TransformerDecoderLayer(decoder)); }, {q, k}, "reduce"},
      {"TransformerEncoder",
       [=] {
         return net(nn::TransformerEncoder(nn::TransformerEncoderOptions(nn::TransformerEncoderLayer(transformer), 2)));
       },
       {q},
       "reduce"},
      {"TransformerDecoder",
       [=] {
         return net(nn::TransformerDecoder(nn::TransformerDecoderOptions(nn::TransformerDecoderLayer(decoder), 2)));
       },
       {q, k},
       "reduce"},
      {"Transformer",
       [] { return net(nn::Transformer(nn::TransformerOptions(4, 2, 1, 1).dim_feedforward(6).dropout(0))); },
       {q, k},
       "reduce"},
      {"scaled_dot_product_attention",
       function([](auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); }),
       {rows({5, 2, 3, 4}), rows({5, 2, 6, 4}), rows({5, 2, 6, 4}, 1.1)}},
      {"causal",
       function([](auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0., true); }),
       {rows({5, 2, 3, 4}), rows({5, 2, 3, 4}), rows({5, 2, 3, 4}, 1.1)}},
      {"causal on 3 dims",
       function([](auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0., true); }),
       {rows({5, 3, 4}), rows({5, 3, 4}), rows({5, 3, 4}, 1.1)}},
      {"causal math",
       function(
           [](auto& t) { return std::get<0>(at::_scaled_dot_product_attention_math(t[0], t[1], t[2], {}, 0., true)); }),
       {rows({5, 2, 3, 4}), rows({5, 2, 3, 4}), rows({5, 2, 3, 4}, 1.1)}},
  });
}

TEST(Modules, Recurrent) {
  auto x = second({3, 5, 4}), h = second({1, 5, 2}, 1.1), c = second({1, 5, 2}, 1.9);
  auto h2 = second({4, 5, 2}, 1.1);
  check({
      {"RNN", MODULE(RNN(4, 2)), {x}},
      {"RNN relu", MODULE(RNN(nn::RNNOptions(4, 2).nonlinearity(torch::kReLU))), {x, h}},
      {"GRU", MODULE(GRU(4, 2)), {x, h}},
      {"GRU two layers, both ways", MODULE(GRU(nn::GRUOptions(4, 2).num_layers(2).bidirectional(true))), {x, h2}},
      {"LSTM", MODULE(LSTM(4, 2)), {x}},
      {"LSTM with state",
       [] {
         auto m = nn::LSTM(4, 2);
         return Net{m.ptr(),
                    [m](auto& t) mutable { return outputs_of(m->forward(t[0], std::make_tuple(t[1], t[2]))); }};
       },
       {x, h, c}},
      {"LSTM batch first",
       MODULE(LSTM(nn::LSTMOptions(4, 2).batch_first(true).num_layers(2).bidirectional(true))),
       {rows({5, 3, 4})}},
      {"LSTM projected", MODULE(LSTM(nn::LSTMOptions(4, 3).proj_size(2))), {x}},
      {"RNNCell", MODULE(RNNCell(4, 2)), {rows({5, 4}), rows({5, 2}, 1.1)}},
      {"GRUCell", MODULE(GRUCell(4, 2)), {rows({5, 4}), rows({5, 2}, 1.1)}},
      {"LSTMCell",
       [] {
         auto m = nn::LSTMCell(4, 2);
         return Net{m.ptr(),
                    [m](auto& t) mutable { return outputs_of(m->forward(t[0], std::make_tuple(t[1], t[2]))); }};
       },
       {rows({5, 4}), rows({5, 2}, 1.1), rows({5, 2}, 1.9)}},
      {"LSTMCell without state", MODULE(LSTMCell(4, 2)), {rows({5, 4})}},
  });
}

template <class Holder>
std::function<Net()> in_eval(Holder m) {
  return [m] {
    m->eval();
    return net(m);
  };
}

TEST(Modules, Normalizations) {
  auto x = rows({5, 4, 3}), image = rows({5, 4, 2, 3}), volume = rows({5, 4, 2, 2, 2});
  check({
      {"LayerNorm", MODULE(LayerNorm(nn::LayerNormOptions({3}))), {x}},
      {"LayerNorm of two dims", MODULE(LayerNorm(nn::LayerNormOptions({4, 3}))), {x}},
      {"GroupNorm", MODULE(GroupNorm(2, 4)), {image}},
      {"LocalResponseNorm", MODULE(LocalResponseNorm(2)), {image}},
      {"rms_norm", function([](auto& t) { return at::rms_norm(t[0], {3}, t[1]); }), {x, kept({3})}},
      {"InstanceNorm1d", MODULE(InstanceNorm1d(4)), {x}},
      {"InstanceNorm2d", MODULE(InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true))), {image}},
      {"InstanceNorm2d tracking",
       MODULE(InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true))),
       {image},
       kSum},
      {"InstanceNorm3d", MODULE(InstanceNorm3d(4)), {volume}},
      {"InstanceNorm2d in eval",
       [] {
         auto m = nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).track_running_stats(true));
         m->eval();
         return net(m);
       },
       {image}},
      {"BatchNorm1d", MODULE(BatchNorm1d(4)), {rows({5, 4})}, kSum},
      {"BatchNorm1d on 3 dims", MODULE(BatchNorm1d(4)), {x}, kSum},
      {"BatchNorm2d", MODULE(BatchNorm2d(4)), {image}, kSum},
      {"BatchNorm2d without running",
       MODULE(BatchNorm2d(nn::BatchNorm2dOptions(4).track_running_stats(false))),
       {image},
       kSum},
      {"BatchNorm2d cumulative",
       MODULE(BatchNorm2d(nn::BatchNorm2dOptions(4).momentum(std::nullopt).affine(false))),
       {image},
       kSum},
      {"BatchNorm3d", MODULE(BatchNorm3d(4)), {volume}, kSum},
      {"BatchNorm2d in eval",
       [] {
         auto m = nn::BatchNorm2d(4);
         m->eval();
         return net(m);
       },
       {image}},
  });
}

TEST(Modules, CrossMapLRN2dSaysWhatToUseInstead) {
  auto plain = nn::CrossMapLRN2d(3)->forward(waves({2, 3, 2, 2}));
  EXPECT_EQ(plain.sizes(), c10::IntArrayRef({2, 3, 2, 2}));
  for_each_world({2}, [](int64_t n) {
    auto x = lay_out(waves({5, 3, 2, 2}), init_device_mesh(at::kCPU, {n}), {Shard(0)});
    EXPECT_THROW(nn::CrossMapLRN2d(3)->forward(x), c10::NotImplementedError);
  });
}

TEST(Modules, ConvolutionsPoolsAndPads) {
  auto x = rows({5, 4, 8}), image = rows({5, 4, 6, 6}), volume = rows({5, 2, 4, 4, 4});
  check({
      {"Conv1d", MODULE(Conv1d(nn::Conv1dOptions(4, 2, 3).padding(1))), {x}},
      {"Conv2d", MODULE(Conv2d(nn::Conv2dOptions(4, 6, 3).stride(2).groups(2))), {image}},
      {"Conv3d", MODULE(Conv3d(2, 3, 2)), {volume}},
      {"ConvTranspose1d", MODULE(ConvTranspose1d(nn::ConvTranspose1dOptions(4, 2, 3).stride(2))), {x}},
      {"ConvTranspose2d", MODULE(ConvTranspose2d(4, 2, 3)), {image}},
      {"ConvTranspose3d", MODULE(ConvTranspose3d(2, 2, 2)), {volume}},
      {"MaxPool1d", MODULE(MaxPool1d(2)), {x}},
      {"MaxPool2d", MODULE(MaxPool2d(2)), {image}},
      {"MaxPool3d", MODULE(MaxPool3d(2)), {volume}},
      {"AvgPool1d", MODULE(AvgPool1d(2)), {x}},
      {"AvgPool2d", MODULE(AvgPool2d(2)), {image}},
      {"AvgPool3d", MODULE(AvgPool3d(2)), {volume}},
      {"LPPool2d", MODULE(LPPool2d(nn::LPPool2dOptions(2, 2))), {image}},
      {"AdaptiveAvgPool1d", MODULE(AdaptiveAvgPool1d(3)), {x}},
      {"AdaptiveAvgPool2d", MODULE(AdaptiveAvgPool2d(4)), {image}},
      {"AdaptiveAvgPool3d", MODULE(AdaptiveAvgPool3d(3)), {volume}},
      {"ZeroPad2d", MODULE(ZeroPad2d(1)), {image}},
      {"ConstantPad1d", MODULE(ConstantPad1d(1, 0.5)), {x}},
      {"ReflectionPad2d", MODULE(ReflectionPad2d(1)), {image}},
      {"ReplicationPad2d", MODULE(ReplicationPad2d(1)), {image}},
      {"Upsample nearest", MODULE(Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}))), {image}},
      {"Upsample bilinear",
       MODULE(Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 1.5}).mode(torch::kBilinear))),
       {image}},
      {"Upsample bicubic",
       MODULE(
           Upsample(nn::UpsampleOptions().size(std::vector<int64_t>{5, 7}).mode(torch::kBicubic).align_corners(true))),
       {image}},
      {"grid_sample",
       function(
           [](auto& t) { return F::grid_sample(t[0], t[1].tanh(), F::GridSampleFuncOptions().align_corners(true)); }),
       {image, rows({5, 3, 4, 2})}},
      {"grid_sample nearest",
       function([](auto& t) {
         return F::grid_sample(
             t[0], t[1].tanh(),
             F::GridSampleFuncOptions().mode(torch::kNearest).padding_mode(torch::kReflection).align_corners(false));
       }),
       {image, rows({5, 3, 4, 2})}},
      {"grid_sample of volumes",
       function(
           [](auto& t) { return F::grid_sample(t[0], t[1].tanh(), F::GridSampleFuncOptions().align_corners(false)); }),
       {volume, rows({5, 2, 3, 2, 3})}},
      {"affine_grid", function([](auto& t) { return F::affine_grid(t[0], {5, 4, 3, 2}, true); }), {rows({5, 2, 3})}},
      {"affine_grid of volumes",
       function([](auto& t) { return F::affine_grid(t[0], {5, 4, 3, 2, 2}, false); }),
       {rows({5, 3, 4})}},
  });
}

TEST(Modules, Dropouts) {
  auto x = rows({5, 4, 3}), image = rows({5, 4, 2, 3}), volume = rows({5, 4, 2, 2, 2});
  std::vector<ModuleCase> cases;
  for (double p : {0.0, 0.5}) {
    auto name = [&](const char* text) { return std::string(text) + " " + std::to_string(p); };
    cases.push_back({name("Dropout"), [p] { return net(nn::Dropout(p)); }, {x}});
    cases.push_back({name("Dropout2d"), [p] { return net(nn::Dropout2d(p)); }, {image}});
    cases.push_back({name("Dropout3d"), [p] { return net(nn::Dropout3d(p)); }, {volume}});
    cases.push_back({name("AlphaDropout"), [p] { return net(nn::AlphaDropout(p)); }, {x}});
    cases.push_back({name("FeatureAlphaDropout"), [p] { return net(nn::FeatureAlphaDropout(p)); }, {image}});
  }
  cases.push_back({"RReLU", MODULE(RReLU()), {x}, "gather"});  // which numbers are drawn depends on the signs
  cases.push_back({"Dropout in eval",
                   [] {
                     auto m = nn::Dropout(0.5);
                     m->eval();
                     return net(m);
                   },
                   {x}});
  check(cases);
}

}  // namespace
}  // namespace intarsia
