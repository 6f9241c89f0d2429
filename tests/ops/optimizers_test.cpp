// torch::optim and torch::nn::utils over parameters of mixed layouts: five steps are those of plain parameters.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::ops_optimizers_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

struct Parameter {
  std::vector<int64_t> shape;
  Placements placements;
  bool two_axes = false;
};

// Whole, cut evenly, unevenly, with empty shards; and on a mesh of two axes.
std::vector<Parameter> layouts(int64_t n, bool two_meshes) {
  std::vector<Parameter> list = {{{3, 4}, {Replicate()}}, {{8, 3}, {Shard(0)}},           {{3, 7}, {Shard(1)}},
                                 {{2, 5}, {Shard(0)}},    {{7, 2}, {StridedShard(0, 2)}}, {{5}, {Shard(0)}}};
  if (!two_meshes || n % 2) return list;
  list.push_back({{5, 3}, {Shard(0), Shard(1)}, true});
  list.push_back({{7}, {Shard(0), Shard(0)}, true});
  list.push_back({{4, 3}, {Replicate(), Shard(0)}, true});
  list.push_back({{2, 2}, {Replicate(), Replicate()}, true});
  return list;
}

struct Model {
  Tensors cut, plain, cut_factors, plain_factors;

  Model(int64_t n, bool two_meshes) {
    auto line = init_device_mesh(at::kCPU, {n}), grid = n % 2 ? line : init_device_mesh(at::kCPU, {2, n / 2});
    double step = 0.3;
    for (auto& p : layouts(n, two_meshes)) {
      auto& mesh = p.two_axes ? grid : line;
      auto value = waves(p.shape, step += 0.17), factor = waves(p.shape, step + 1) + 1.5;
      plain.push_back(value.clone().requires_grad_());
      plain_factors.push_back(factor);
      cut.push_back(lay_out(value, mesh, p.placements).requires_grad_());
      cut_factors.push_back(lay_out(factor, mesh, Placements(mesh.ndim(), Replicate())));
    }
  }

  static at::Tensor loss(const at::Tensor& p, const at::Tensor& factor) { return (p * factor).sin().add(p * p).sum(); }

  // Each by itself: losses on different meshes do not add up.
  void backward() {
    for (size_t i = 0; i < cut.size(); ++i) {
      loss(cut[i], cut_factors[i]).backward();
      loss(plain[i], plain_factors[i]).backward();
    }
  }

  void expect_same(const char* what, bool grads = false) {
    for (size_t i = 0; i < cut.size(); ++i) {
      auto &actual = grads ? cut[i].grad() : cut[i], &expected = grads ? plain[i].grad() : plain[i];
      EXPECT_EQ(difference(full_tensor(actual).detach(), expected.detach(), 1e-9), "")
          << what << " parameter " << i << " " << str(placements_of(cut[i]));
    }
  }
};

template <class Optimizer, class Options>
Make of(Options options) {
  return [options](const Tensors& p) { return std::make_unique<Optimizer>(p, options); };
}

TEST(Optimizers, StepAsOnPlainParameters) {
  using namespace torch::optim;
  std::vector<std::pair<const char*, Make>> all = {
      {"SGD", of<SGD>(SGDOptions(0.1))},
      {"SGD momentum", of<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
      {"SGD damped", of<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2))},
      {"SGD nesterov", of<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", of<Adam>(AdamOptions(0.1).weight_decay(0.01))},
      {"Adam amsgrad", of<Adam>(AdamOptions(0.1).amsgrad(true))},
      {"AdamW", of<AdamW>(AdamWOptions(0.1).weight_decay(0.05))},
      {"AdamW amsgrad", of<AdamW>(AdamWOptions(0.1).amsgrad(true))},
      {"RMSprop", of<RMSprop>(RMSpropOptions(0.1))},
      {"RMSprop centered", of<RMSprop>(RMSpropOptions(0.1).centered(true).momentum(0.5).weight_decay(0.01))},
      {"Adagrad", of<Adagrad>(AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.02))},
  };
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto& [name, make] : all) {
      Model model(n, true);
      auto on_cut = make(model.cut), on_plain = make(model.plain);
      CommDebugMode comms;
      for (int step = 0; step < 5; ++step) {
        on_cut->zero_grad();
        on_plain->zero_grad();
        model.backward();
        on_cut->step();
        on_plain->step();
      }
      EXPECT_EQ(comms.fallbacks().size(), 0) << name;
      comms.exit();
      model.expect_same(name);
    }
  });
}

// It joins all parameters to one vector, so they lie on one mesh.
TEST(Optimizers, LbfgsStepsAsOnPlainParameters) {
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto search : {"", "strong_wolfe"}) {
      Model model(n, false);
      auto options = torch::optim::LBFGSOptions(0.1).max_iter(4);
      if (*search) options.line_search_fn(search);
      torch::optim::LBFGS on_cut(model.cut, options), on_plain(model.plain, options);
      auto closure = [](torch::optim::LBFGS& optimizer, const Tensors& parameters, const Tensors& factors) {
        optimizer.zero_grad();
        at::Tensor total;
        for (size_t i = 0; i < parameters.size(); ++i) {
          auto loss = Model::loss(parameters[i], factors[i]);
          total = total.defined() ? total + loss : loss;
        }
        total.backward();
        return total;
      };
      CommDebugMode comms;
      for (int step = 0; step < 5; ++step) {
        on_cut.step([&] { return closure(on_cut, model.cut, model.cut_factors); });
        on_plain.step([&] { return closure(on_plain, model.plain, model.plain_factors); });
      }
      EXPECT_EQ(comms.fallbacks().size(), 0);
      comms.exit();
      model.expect_same(search);
    }
  });
}

TEST(ClipGradNorm, IsThatOfPlainParameters) {
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (double ord : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity(), 0.0}) {
      for (double largest : {0.5, 1e6}) {
        Model model(n, true);
        model.backward();
        CommDebugMode comms;
        auto actual = torch::nn::utils::clip_grad_norm_(model.cut, largest, ord, true);
        EXPECT_EQ(comms.fallbacks().size(), 0);
        auto counts = comms.get_comm_counts();
        int64_t reductions = 0, others = 0;
        for (auto& [kind, count] : counts) (kind.rfind("all_reduce", 0) == 0 ? reductions : others) += count;
        auto meshes = n % 2 ? 1 : 2;
        // A maximum is pending on every axis of its mesh by itself.
        EXPECT_LE(reductions, std::isinf(ord) ? 1 + meshes : meshes) << ord << "\n" << comms.table();
        EXPECT_EQ(others, 0) << comms.table();
        comms.exit();
        auto expected = torch::nn::utils::clip_grad_norm_(model.plain, largest, ord);
        EXPECT_NEAR(actual, expected, 1e-9 * expected) << ord;
        model.expect_same("clipped", true);
      }
    }
  });
}

TEST(ClipGradNorm, TakesPendingGradients) {
  for_each_world({2, 4}, [&](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto w = lay_out(waves({4, 3}), mesh, {Replicate()}).requires_grad_();
    auto x = lay_out(waves({5, 4}), mesh, {Shard(0)});
    auto plain = waves({4, 3}).requires_grad_();
    at::mm(x, w).pow(2).sum().backward();
    at::mm(waves({5, 4}), plain).pow(2).sum().backward();
    auto actual = torch::nn::utils::clip_grad_norm_(w, 1.0), expected = torch::nn::utils::clip_grad_norm_(plain, 1.0);
    EXPECT_NEAR(actual, expected, 1e-9 * expected);
    EXPECT_EQ(difference(full_tensor(w.grad()), plain.grad(), 1e-9), "");
  });
}

TEST(ClipGradNorm, RefusesWhatIsNotFiniteOnEveryRank) {
  for_each_world({2, 4}, [&](int64_t n) {
    Model model(n, true);
    model.backward();
    model.cut[1].grad().select(0, 7).fill_(INFINITY);
    auto text = error_text<c10::Error>([&] { torch::nn::utils::clip_grad_norm_(model.cut, 1.0, 2.0, true); });
    EXPECT_EQ(text.rfind("The total norm of order 2 for gradients from `parameters` is non-finite", 0), 0) << text;
  });
}

TEST(ClipGradValue, IsThatOfPlainParameters) {
  for_each_world({2, 3, 4}, [&](int64_t n) {
    Model model(n, true);
    model.backward();
    CommDebugMode comms;
    torch::nn::utils::clip_grad_value_(model.cut, 0.7);
    EXPECT_EQ(comms.text(), "");
    comms.exit();
    torch::nn::utils::clip_grad_value_(model.plain, 0.7);
    model.expect_same("clipped", true);
  });
}

TEST(ParametersToVector, ThereAndBack) {
  for_each_world({2, 3, 4}, [&](int64_t n) {
    Model model(n, false);
    at::NoGradGuard no_grad;
    auto actual = torch::nn::utils::parameters_to_vector(model.cut);
    auto expected = torch::nn::utils::parameters_to_vector(model.plain);
    EXPECT_EQ(difference(full_tensor(actual), expected), "");
    torch::nn::utils::vector_to_parameters(actual * 2, model.cut);
    torch::nn::utils::vector_to_parameters(expected * 2, model.plain);
    model.expect_same("doubled");
  });
}

}  // namespace
}  // namespace intarsia::ops_optimizers_test
