// What an op sees of a parameter does not depend on grad mode: see Note [Reads are of the whole].

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/checkpoint/folders.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_reads_test {
namespace {

namespace nn = torch::nn;
using nn::Sequential;

// A module that computes on its parameters, and one that has it inside.
struct Computing : nn::Module {
  using Body = at::Tensor (*)(Computing&, const at::Tensor&);
  explicit Computing(Body body) : body(body) {
    auto number = 0;
    auto add = [&](const char* name, std::vector<int64_t> shape) {
      return register_parameter(name, inputs(number++, std::move(shape)));
    };
    w = add("w", {7, 5}), a = add("a", {2, 5}), b = add("b", {7, 2}), bias = add("bias", {7});
  }
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }
  Body body;
  at::Tensor w, a, b, bias;
};

struct Row {
  const char* name;
  Computing::Body body;
};
const std::vector<Row> kRows = {
    {"low rank", [](Computing& m, const at::Tensor& x) { return at::linear(x, m.w + m.b.mm(m.a), m.bias); }},
    {"standardized",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, (m.w - m.w.mean(1, true)) / (m.w.std(1, true, true) + 1e-5), m.bias);
     }},
    {"normed",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x / m.w.norm(), m.w / m.w.norm() * m.bias.sigmoid().sum());
     }},
    {"scaled by its own greatest",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.w / m.w.detach().abs().max(), m.bias.detach() * 2) + 0 * m.bias;
     }},
    {"stacked",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, at::cat({m.w, m.a}).slice(0, 0, 7), m.bias.view({1, 7}).squeeze(0));
     }},
    {"scaled by the input, which differs between ranks",
     [](Computing& m, const at::Tensor& x) { return at::linear(x, m.w.mul(2) * x.mean() + m.b.mm(m.a), m.bias); }},
    {"activated",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.w.tanh().clone().mul_(2).add_(1).contiguous(), m.bias);
     }},
    {"copied", [](Computing& m, const at::Tensor& x) { return at::linear(x, m.w.clone(), m.bias.clone() * 2); }},
    {"copied and detached",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.w.detach().clone() + m.w, m.bias.detach().to(at::kFloat).to(at::kDouble));
     }},
    {"beside tensors like them",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.w + at::full_like(m.w, 0.5), at::ones_like(m.bias)) + at::zeros_like(m.bias).add(m.bias);
     }},
    {"beside tensors like them that are written",
     [](Computing& m, const at::Tensor& x) {
       auto sum = at::zeros_like(m.w).mul_(0.5);
       sum.add_(x.mean(0)).mul_(2);
       return at::linear(x, m.w + sum, at::empty_like(m.bias).fill_(2).sub_(m.bias));
     }},
    {"copies scaled by the input, which differs between ranks",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.w.clone() * x.mean() + m.w.clone().mul_(x.std()), m.bias);
     }},
    {"beside new tensors of the rows of a rank",
     [](Computing& m, const at::Tensor& x) { return m.w.new_ones({x.size(0), 7}).mul_(m.bias) + at::linear(x, m.w); }},
    {"with views of copies",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.w.clone().t().contiguous().t(), m.w.clone().sum(1) + m.w.t()[0].clone());
     }},
    {"with products of copies",
     [](Computing& m, const at::Tensor& x) {
       return at::linear(x, m.b.clone().mm(m.a) + m.b.mm(m.a.clone()), m.bias);
     }},
    {"chosen",
     [](Computing& m, const at::Tensor& x) { return at::linear(x, at::where(m.w > 0, m.w, m.b.mm(m.a)), m.bias); }},
};

// The rows of the batch one by one: a module may use the mean of what it gets.
at::Tensor of_parts(Computing& plain, const at::Tensor& x, int64_t n) {
  std::vector<at::Tensor> parts;
  for (auto& part : x.chunk(n)) parts.push_back(plain.forward(part));
  return at::cat(parts);
}

at::Tensor of_all_ranks(const at::Tensor& out) {
  return full_tensor(from_local(out.detach().contiguous(), all_ranks(), {Shard(0)}));
}

TEST(Reads, AModuleThatComputesOnItsParametersIsEvaluatedAsItIsTrained) {
  for (auto& row : kRows) {
    SCOPED_TRACE(row.name);
    in_every_world([&] {
      auto mesh = all_ranks();
      auto plain = std::make_shared<Computing>(row.body), model = std::make_shared<Computing>(row.body);
      fully_shard(*model, mesh);
      torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
      for (int64_t step = 0; step < 2; ++step) {
        auto x = inputs(step, {24, 5});
        auto expected = of_parts(*plain, x, mesh.size());
        auto expect_same = [&](const at::Tensor& out) {
          EXPECT_TRUE(torch::allclose(of_all_ranks(out), expected, 1e-10, 1e-10));
        };
        {
          torch::NoGradGuard no_grad;
          expect_same(model->forward(mine(x, mesh)));
        }
        {
          c10::InferenceMode inference;
          auto out = model->forward(mine(x, mesh));
          expect_same(out);
        }
        auto out = model->forward(mine(x, mesh));
        expect_same(out);
        own.zero_grad(), goal.zero_grad();
        out.square().mean().backward(), expected.square().mean().backward();
        own.step(), goal.step();
        expect_same_tensors(*model, *plain, 1e-10);
      }
    });
  }
}

TEST(Reads, AfterUnshardEveryOpSeesTheWhole) {
  in_every_world([] {
    auto model = mlp(), plain = mlp();
    auto group = fully_shard(*model, all_ranks());
    for (bool with_gradients : {false, true}) {
      torch::AutoGradMode mode(with_gradients);
      group.unshard();
      auto p = model->parameters(), q = plain->parameters();
      EXPECT_TRUE((p[2] + p[2].mm(p[2])).equal(q[2] + q[2].mm(q[2])));
      EXPECT_TRUE(p[0].sum().equal(q[0].sum()) && p[0].clone().equal(q[0]) &&
                  torch::ones_like(p[0]).equal(torch::ones_like(q[0])));
      EXPECT_TRUE(nn::utils::parameters_to_vector(p).equal(nn::utils::parameters_to_vector(q)));
      EXPECT_EQ(p[0].data_ptr<double>()[3], q[0].data_ptr<double>()[3]);
      group.reshard();
      EXPECT_TRUE(nn::utils::parameters_to_vector(p).equal(nn::utils::parameters_to_vector(q)));
    }
    torch::optim::AdamW own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);  // and an optimizer sees shards
    auto x = inputs(0, {24, 5});
    model->forward(mine(x, all_ranks())).square().mean().backward(), plain->forward(x).square().mean().backward();
    group.unshard();
    own.step(), goal.step();
    expect_same_tensors(*model, *plain);
    torch::NoGradGuard no_grad;
    auto vector = inputs(3, {7 * 5 + 7 + 7 * 7 + 7 + 3 * 7 + 3});
    nn::utils::vector_to_parameters(vector, model->parameters()),
        nn::utils::vector_to_parameters(vector, plain->parameters());
    expect_same_tensors(*model, *plain, 0);
  });
}

// Groups by layer, so that an op on one could reshard another.
Sequential sharded_by_layer() {
  auto model = mlp();
  for (size_t layer : {0, 2}) fully_shard(*model[layer], all_ranks());
  fully_shard(*model, all_ranks());
  return model;
}

void expect_shown(Sequential& model, Sequential& plain) {
  auto p = model->parameters(), q = plain->parameters();
  for (size_t i = 0; i < p.size(); ++i) {
    ASSERT_FALSE(is_dtensor(p[i])) << i;
    auto* memory = p[i].data_ptr<double>();
    EXPECT_EQ(std::vector(memory, memory + p[i].numel()),
              std::vector(q[i].data_ptr<double>(), q[i].data_ptr<double>() + q[i].numel()))
        << i;
  }
}

template <class Do>
void in_every_mode(Do action) {
  action();
  {
    torch::NoGradGuard no_grad;
    action();
  }
  c10::InferenceMode inference;
  action();
}

TEST(Reads, AfterUnshardParametersStayWholeWhateverTheProgramDoes) {
  TestFolder folder("stays-whole");
  in_every_world([&] {
    auto plain = mlp();
    auto model = sharded_by_layer();
    checkpoint::save(folder / "before", {{"model", model}});
    auto x = mine(inputs(0, {24, 5}), all_ranks());
    in_every_mode([&] {
      for (auto& group : groups_in(*model)) group.unshard();
      for (auto& p : model->parameters()) p.sum(), p.detach() * 2, at::zeros_like(p), p.view(-1)[0].item();
      expect_shown(model, plain);
      full_state_dict(model), checkpoint::save(folder / "whole", {{"model", model}});
      expect_shown(model, plain);
      model->forward(x), model->zero_grad(), model->parameters()[3].set_requires_grad(false);
      expect_shown(model, plain);
      checkpoint::load(folder / "before", {{"model", model}});
      load_full_state_dict(model, full_state_dict(plain));
      nn::utils::parameters_to_vector(model->parameters());
      expect_shown(model, plain);
      for (auto& group : groups_in(*model)) group.reshard();
      for (auto& p : model->parameters()) EXPECT_TRUE(is_dtensor(p));
    });
    expect_same_tensors(*model, *plain, 0);
  });
}

// Each writes as a program does to a plain parameter.
using Write = void (*)(const at::Tensor& p, const at::Tensor& value);
const std::vector<Write> kWrites = {
    [](auto& p, auto&) { p.mul_(0.5); },
    [](auto& p, auto& value) { p.copy_(value); },
    [](auto& p, auto& value) { p.add_(value, 0.1).sub_(1); },
    [](auto& p, auto&) { p[0].zero_(); },
    [](auto& p, auto& value) { p.view(-1).slice(0, 1, 3).add_(value.view(-1)[0]); },
    [](auto& p, auto&) { p.detach().add_(p); },
    [](auto& p, auto& value) { p.data().lerp_(value, 0.3); },
    [](auto& p, auto& value) { p.set_data(value.clone()); },
    [](auto& p, auto&) { p.copy_(p.clone().mul_(3)); },
    [](auto& p, auto&) { p.masked_fill_(p > 0, 0.25); },
    [](auto& p, auto&) { at::_foreach_mul_({p}, 2); },
    [](auto& p, auto&) { torch::manual_seed(5), nn::init::normal_(p); },
};

TEST(Reads, WhatIsWrittenToAWholeParameterIsInItsShards) {
  in_every_world([] {
    for (size_t w = 0; w < kWrites.size(); ++w) {
      SCOPED_TRACE(w);
      for (bool stays : {true, false}) {
        auto plain = mlp();
        auto model = sharded_by_layer();
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < 6; ++i) {
          for (auto& group : groups_in(*model)) {
            if (stays && i == 0) group.unshard();
          }
          auto value = inputs(static_cast<int64_t>(i), plain->parameters()[i].sizes().vec());
          kWrites[w](model->parameters()[i], value), kWrites[w](plain->parameters()[i], value);
        }
        if (stays) expect_shown(model, plain);
        for (auto& group : groups_in(*model)) group.reshard();
        expect_same_tensors(*model, *plain, 0);
      }
    }
  });
}

TEST(Reads, AnOptimizerStepsOnShardsOfWholeParameters) {
  in_every_world([] {
    auto plain = mlp();
    auto model = sharded_by_layer();
    torch::optim::AdamW own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    for (int64_t step = 0; step < 3; ++step) {
      auto x = inputs(step, {24, 5});
      own.zero_grad(), goal.zero_grad();
      model->forward(mine(x, all_ranks())).square().mean().backward(), plain->forward(x).square().mean().backward();
      for (auto& group : groups_in(*model)) group.unshard();
      own.step(), goal.step();
      for (auto& p : model->parameters()) EXPECT_FALSE(is_dtensor(p.clone()));
    }
    for (auto& group : groups_in(*model)) group.reshard();
    expect_same_tensors(*model, *plain);
  });
}

// What a program makes at rest like a parameter is in shards, and nothing is gathered for it.
TEST(Reads, StateThatIsMadeLikeAParameterIsInShards) {
  auto world = simulate(4);
  auto model = mlp();
  fully_shard(*model, all_ranks());
  torch::NoGradGuard no_grad;
  auto p = model->parameters()[0];
  p.mutable_grad() = distribute_tensor(at::ones({7, 5}, at::kDouble), all_ranks(), {Shard(0)});
  CommDebugMode comms;
  auto m = at::zeros_like(p), average = p.clone();
  m.mul_(0.9).add_(p.grad()), average.lerp_(p, 0.1), average.mul_(0.5).add_(p, 0.5);
  EXPECT_TRUE(is_dtensor(m) && is_dtensor(average) && is_dtensor(p.detach().to(at::kFloat)));
  EXPECT_EQ(comms.text(), "");
  EXPECT_TRUE(full_tensor(average).equal(full_tensor(p.detach())));
  EXPECT_NE(error_text<c10::Error>([&] { m.add_(at::ones({7, 5}, at::kDouble)); }).find("mixed torch.Tensor"),
            std::string::npos);
  auto row = average[0];
  EXPECT_EQ(error_text<c10::ValueError>([&] { average.add_(at::ones({7, 5}, at::kDouble)); }),
            "[fully_shard] a tensor of shape [7, 5] that was made like a parameter, without gradients, is written "
            "together with a plain tensor, and another tensor shares its memory. Call unshard() before, or write to a "
            "clone of it.");
}

// Optimizers that people write by hand, with state made in grad mode and without.
TEST(Reads, OptimizersOfTheProgramSeeShards) {
  using Update = void (*)(at::Tensor p, at::Tensor& state);
  const std::vector<Update> updates = {
      [](at::Tensor p, at::Tensor&) { p.sub_(0.1 * (p.grad() + 0.01 * p)); },
      [](at::Tensor p, at::Tensor&) { p.add_(p.grad().add(p, 0.01), -0.1); },
      [](at::Tensor p, at::Tensor&) { p.data() -= 0.1 * (p.grad() + p.data() * 0.01); },
      [](at::Tensor p, at::Tensor&) {
        auto d = p * 0.01;
        d.add_(p.grad());
        p.sub_(d * 0.1);
      },
      [](at::Tensor p, at::Tensor& m) {
        if (!m.defined()) m = torch::zeros_like(p);
        p.sub_(0.1 * m.mul_(0.9).add_(p.grad()));
      },
      [](at::Tensor p, at::Tensor& m) { p.sub_(0.1 * p.norm() / (p.grad().norm() + 1) * p.grad()), m = p.detach(); },
      [](at::Tensor p, at::Tensor& m) {
        if (!m.defined()) m = p.clone();
        p.sub_(0.1 * p.grad()), m.lerp_(p, 0.1), p.copy_(m);
      },
      [](at::Tensor p, at::Tensor&) { p.copy_(p - 0.1 * p.grad().sign() * p.abs().mean()); },
  };
  in_every_world([&] {
    for (size_t u = 0; u < updates.size(); ++u) {
      SCOPED_TRACE(u);
      auto model = mlp(), plain = mlp();
      fully_shard(*model[0], all_ranks()), fully_shard(*model, all_ranks());
      std::vector<at::Tensor> states(12);
      for (int64_t step = 0; step < 3; ++step) {
        model->zero_grad(), plain->zero_grad();
        auto x = inputs(step, {24, 5});
        model->forward(mine(x, all_ranks())).square().mean().backward(), plain->forward(x).square().mean().backward();
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < 6; ++i)
          updates[u](model->parameters()[i], states[i]), updates[u](plain->parameters()[i], states[i + 6]);
        model->forward(mine(x, all_ranks()));
      }
      expect_same_tensors(*model, *plain);
    }
  });
}

TEST(Reads, StateMadeInGradModeBecomesDistributed) {
  in_every_world([] {
    auto model = mlp(), plain = mlp();
    fully_shard(*model, all_ranks());
    std::vector<at::Tensor> own, goal;
    for (auto& p : model->parameters()) own.push_back(torch::zeros_like(p));
    for (auto& p : plain->parameters()) goal.push_back(torch::zeros_like(p));
    auto x = inputs(0, {24, 5});
    model->forward(mine(x, all_ranks())).square().mean().backward(), plain->forward(x).square().mean().backward();
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 6; ++i) {
      own[i].mul_(0.9).add_(model->parameters()[i].grad()), goal[i].mul_(0.9).add_(plain->parameters()[i].grad());
      EXPECT_TRUE(torch::allclose(full_tensor(own[i]), goal[i], 1e-12, 1e-12)) << i;
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_reads_test
