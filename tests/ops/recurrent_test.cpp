// Recurrent layers of a sharded batch: every rank runs its own samples.

#include <torch/torch.h>

#include "intarsia/nn/distribute_module.h"
#include "tests/ops/along_the_cut.h"

namespace intarsia::ops_recurrent_test {
namespace {

namespace nn = torch::nn;

// The output and the last states of a layer, all added up.
struct Layer {
  const char* name;
  std::function<std::shared_ptr<nn::Module>(int64_t layers, bool both_ways, bool batch_first)> make;
  std::function<std::vector<at::Tensor>(nn::Module&, const at::Tensor&)> run;
};

template <class Options>
Options options(int64_t layers, bool both_ways, bool batch_first) {
  return Options(4, 3).num_layers(layers).bidirectional(both_ways).batch_first(batch_first).bias(!both_ways);
}

std::vector<Layer> layers() {
  auto two = [](auto out) { return std::vector<at::Tensor>{std::get<0>(out), std::get<1>(out)}; };
  return {
      {"LSTM", [](auto... a) { return std::make_shared<nn::LSTMImpl>(options<nn::LSTMOptions>(a...)); },
       [](nn::Module& m, auto& x) {
         auto [out, states] = m.as<nn::LSTM>()->forward(x);
         return std::vector<at::Tensor>{out, std::get<0>(states), std::get<1>(states)};
       }},
      {"GRU", [](auto... a) { return std::make_shared<nn::GRUImpl>(options<nn::GRUOptions>(a...)); },
       [=](nn::Module& m, auto& x) { return two(m.as<nn::GRU>()->forward(x)); }},
      {"RNN", [](auto... a) { return std::make_shared<nn::RNNImpl>(options<nn::RNNOptions>(a...)); },
       [=](nn::Module& m, auto& x) { return two(m.as<nn::RNN>()->forward(x)); }},
  };
}

void check_layer(const Layer& layer, const DeviceMesh& mesh, int64_t count, bool both_ways, bool batch_first,
                 at::ScalarType type) {
  torch::manual_seed(3);
  auto plain = layer.make(count, both_ways, batch_first);
  torch::manual_seed(3);
  auto cut = layer.make(count, both_ways, batch_first);
  plain->to(type), cut->to(type);
  distribute_module(*cut, mesh);
  auto input = scrambled({5, 7, 4}).to(type);
  auto x = input.clone().requires_grad_(), y = lay_out(input, mesh, {Shard(batch_first ? 0 : 1)}).requires_grad_();
  auto expected = layer.run(*plain, x);
  CommDebugMode comms;
  auto found = layer.run(*cut, y);
  EXPECT_EQ(comms.text(), "");
  EXPECT_EQ(comms.fallbacks().size(), 0u);
  comms.exit();
  EXPECT_EQ(str(placements_of(found[0])), batch_first ? "[S(0)]" : "[S(1)]");
  double tolerance = type == at::kFloat ? 1e-5 : 1e-11;
  at::Tensor loss, whole_loss;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(difference(full_tensor(found[i]).detach(), expected[i].detach(), tolerance), "") << i;
    auto add = [&](at::Tensor& sum, const at::Tensor& out) {
      sum = sum.defined() ? sum + (out * out).sum() : (out * out).sum();
    };
    add(loss, found[i]);
    add(whole_loss, expected[i]);
  }
  CommDebugMode back;
  loss.backward();
  EXPECT_EQ(back.fallbacks().size(), 0u);
  back.exit();
  whole_loss.backward();
  EXPECT_EQ(difference(full_tensor(y.grad()), x.grad(), 10 * tolerance), "");
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_EQ(difference(full_tensor(cut->parameters()[i].grad()), plain->parameters()[i].grad(), 10 * tolerance), "")
        << "parameter " << i;
  }
}

TEST(Recurrent, LayersKeepABatchSharded) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& layer : layers()) {
      for (auto type : {at::kFloat, at::kDouble}) {
        for (bool batch_first : {false, true}) {
          SCOPED_TRACE(std::string(layer.name) + " " + c10::toString(type) + (batch_first ? " batch first" : "") +
                       " on " + std::to_string(n));
          check_layer(layer, mesh, 1, false, batch_first, type);
          check_layer(layer, mesh, 2, true, batch_first, type);
        }
      }
    }
  });
}

}  // namespace
}  // namespace intarsia::ops_recurrent_test
