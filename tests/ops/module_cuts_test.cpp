// The modules of torch::nn with every cut of inputs and parameters.

#include "tests/ops/every_cut.h"

namespace intarsia {
namespace {

namespace nn = torch::nn;

#define MODULE(...) [] { return net(nn::__VA_ARGS__); }

TEST(ModuleCuts, LinearAndTables) {
  auto x = waves({5, 4}), ids = at::arange(15).reshape({5, 3}) % 7;
  check_every_cut({
      {"Linear", MODULE(Linear(4, 3)), {x}},
      {"Linear on 3 dims", MODULE(Linear(4, 3)), {waves({5, 2, 4})}},
      {"Bilinear", MODULE(Bilinear(4, 3, 2)), {x, waves({5, 3}, 1.1)}},
      {"Embedding", MODULE(Embedding(7, 4)), {ids}},
      {"Embedding padding_idx", MODULE(Embedding(nn::EmbeddingOptions(7, 4).padding_idx(2))), {ids}},
      {"EmbeddingBag", MODULE(EmbeddingBag(nn::EmbeddingBagOptions(7, 4).mode(torch::kMean))), {ids}},
      {"PReLU", MODULE(PReLU(nn::PReLUOptions().num_parameters(4))), {x}},
      {"AdaptiveLogSoftmaxWithLoss",
       [] {
         nn::AdaptiveLogSoftmaxWithLoss m(nn::AdaptiveLogSoftmaxWithLossOptions(4, 9, {2, 5}).div_value(2));
         return Net{m.ptr(), [m](auto& t) mutable {
                      auto found = m->forward(t[0], t[1]);
                      return Tensors{found.output, at::scalar_tensor(found.loss, at::kDouble), m->log_prob(t[0])};
                    }};
       },
       {x, at::tensor({0, 3, 8, 1, 6}, at::kLong)}},
      {"Fold", MODULE(Fold(nn::FoldOptions({4, 5}, {2, 2}))), {waves({3, 8, 12})}},
      {"Unfold", MODULE(Unfold(nn::UnfoldOptions({2, 3}).padding(1))), {waves({3, 2, 5, 6})}},
      {"Functional", MODULE(Functional([](const at::Tensor& t) { return t.sin(); })), {x}},
      {"Sequential",
       MODULE(Sequential(nn::Linear(4, 6), nn::LayerNorm(nn::LayerNormOptions({6})), nn::Linear(6, 2))),
       {x}},
      {"ParameterList",
       [] {
         nn::ParameterList m(waves({4, 3}), waves({3}));
         return Net{m.ptr(), [m](auto& t) mutable { return Tensors{at::mm(t[0], m[0]) + m[1]}; }};
       },
       {x}},
      {"ModuleList",
       [] {
         nn::ModuleList m(nn::Linear(4, 3), nn::Linear(3, 2));
         auto part = [m](int i) mutable -> nn::LinearImpl& { return m->at<nn::LinearImpl>(i); };
         return Net{m.ptr(), [part](auto& t) mutable { return Tensors{part(1).forward(part(0).forward(t[0]))}; }};
       },
       {x}},
  });
}

TEST(ModuleCuts, Normalizations) {
  auto x = waves({5, 4, 3}), image = waves({5, 4, 2, 3});
  check_every_cut({
      {"LayerNorm", MODULE(LayerNorm(nn::LayerNormOptions({4, 3}))), {x}},
      {"GroupNorm", MODULE(GroupNorm(2, 4)), {image}},
      {"InstanceNorm2d", MODULE(InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true))), {image}},
      {"BatchNorm1d", MODULE(BatchNorm1d(4)), {x}},
      {"BatchNorm2d", MODULE(BatchNorm2d(4)), {image}},
      {"BatchNorm3d", MODULE(BatchNorm3d(4)), {waves({5, 4, 2, 2, 2})}},
      {"LocalResponseNorm", MODULE(LocalResponseNorm(2)), {image}},
  });
}

TEST(ModuleCuts, Convolutions) {
  auto line = waves({3, 4, 6}), image = waves({3, 4, 5, 6}), volume = waves({3, 2, 3, 4, 3});
  check_every_cut({
      {"Conv1d", MODULE(Conv1d(nn::Conv1dOptions(4, 2, 3).padding(1))), {line}},
      {"Conv2d", MODULE(Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1).groups(2))), {image}},
      {"Conv2d circular",
       MODULE(Conv2d(nn::Conv2dOptions(4, 2, 3).padding(1).padding_mode(torch::kCircular))),
       {image}},
      {"Conv3d", MODULE(Conv3d(2, 3, 2)), {volume}},
      {"ConvTranspose1d", MODULE(ConvTranspose1d(nn::ConvTranspose1dOptions(4, 2, 3).stride(2))), {line}},
      {"ConvTranspose2d", MODULE(ConvTranspose2d(4, 2, 3)), {image}},
      {"ConvTranspose3d", MODULE(ConvTranspose3d(2, 2, 2)), {volume}},
  });
}

TEST(ModuleCuts, PoolsAndPads) {
  auto line = waves({3, 2, 6}), image = waves({3, 2, 4, 6}), volume = waves({3, 2, 4, 4, 4});
  check_every_cut({
      {"AdaptiveMaxPool1d", MODULE(AdaptiveMaxPool1d(4)), {line}},
      {"AdaptiveMaxPool2d", MODULE(AdaptiveMaxPool2d(3)), {image}},
      {"AdaptiveMaxPool3d", MODULE(AdaptiveMaxPool3d(3)), {volume}},
      {"FractionalMaxPool2d", MODULE(FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(3))), {image}},
      {"FractionalMaxPool3d", MODULE(FractionalMaxPool3d(nn::FractionalMaxPool3dOptions(2).output_size(2))), {volume}},
      {"LPPool1d", MODULE(LPPool1d(nn::LPPool1dOptions(2, 2))), {line}},
      {"LPPool3d", MODULE(LPPool3d(nn::LPPool3dOptions(2, 2))), {volume}},
      {"ConstantPad2d", MODULE(ConstantPad2d(1, 0.5)), {image}},
      {"ConstantPad3d", MODULE(ConstantPad3d(1, 0.5)), {volume}},
      {"ReflectionPad1d", MODULE(ReflectionPad1d(1)), {line}},
      {"ReflectionPad3d", MODULE(ReflectionPad3d(1)), {volume}},
      {"ReplicationPad1d", MODULE(ReplicationPad1d(1)), {line}},
      {"ReplicationPad3d", MODULE(ReplicationPad3d(1)), {volume}},
      {"ZeroPad1d", MODULE(ZeroPad1d(1)), {line}},
      {"ZeroPad3d", MODULE(ZeroPad3d(1)), {volume}},
      {"MaxUnpool1d",
       [] {
         return Net{nullptr, [](auto& t) {
                      auto [x, at] = nn::MaxPool1d(2)->forward_with_indices(t[0]);
                      return Tensors{nn::MaxUnpool1d(2)->forward(x, at)};
                    }};
       },
       {line}},
      {"MaxUnpool2d",
       [] {
         return Net{nullptr, [](auto& t) {
                      auto [x, at] = nn::MaxPool2d(2)->forward_with_indices(t[0]);
                      return Tensors{nn::MaxUnpool2d(2)->forward(x, at)};
                    }};
       },
       {image}},
      {"MaxUnpool3d",
       [] {
         return Net{nullptr, [](auto& t) {
                      auto [x, at] = nn::MaxPool3d(2)->forward_with_indices(t[0]);
                      return Tensors{nn::MaxUnpool3d(2)->forward(x, at)};
                    }};
       },
       {volume}},
  });
}

TEST(ModuleCuts, AttentionAndRecurrent) {
  auto x = waves({3, 5, 4}), h = waves({1, 5, 2}, 1.1);
  auto layer = nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6).dropout(0);
  check_every_cut({
      {"MultiheadAttention", MODULE(MultiheadAttention(4, 2)), {x, waves({2, 5, 4}, 1.1), waves({2, 5, 4}, 1.7)}},
      {"MultiheadAttention add_zero_attn",
       MODULE(MultiheadAttention(nn::MultiheadAttentionOptions(4, 2).add_zero_attn(true))),
       {x, waves({2, 5, 4}, 1.1), waves({2, 5, 4}, 1.7)}},
      {"TransformerEncoderLayer", [=] { return net(nn::TransformerEncoderLayer(layer)); }, {x}},
      {"RNN", MODULE(RNN(4, 2)), {x}},
      {"GRU", MODULE(GRU(4, 2)), {x, h}},
      {"LSTM", MODULE(LSTM(4, 2)), {x}},
      {"GRUCell", MODULE(GRUCell(4, 2)), {waves({5, 4})}},
      {"LSTMCell", MODULE(LSTMCell(4, 2)), {waves({5, 4})}},
  });
}

}  // namespace
}  // namespace intarsia
