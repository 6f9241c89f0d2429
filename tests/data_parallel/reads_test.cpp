// What an op sees of a parameter does not depend on grad mode: see Note [Reads are of the whole].

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_reads_test {
namespace {

namespace nn = torch::nn;

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

// --- modules around groups, and parameters that come late

TEST(Reads, AModuleWithoutParametersOfItsOwnMayBeWrapped) {
  in_every_world([] {
    auto model = mlp(), plain = mlp();
    for (auto& layer : model->children()) fully_shard(*layer, all_ranks());  // Tanh has none
    auto root = fully_shard(*model, all_ranks());
    root.unshard(), root.reshard(), root.set_requires_gradient_sync(true);
    EXPECT_TRUE(root.bytes() == 0 && !sharded_by(*model).is_whole() && sharded_by(*model[1]).bytes() == 0);
    EXPECT_EQ(error_text<c10::Error>([&] { fully_shard(*model, all_ranks()); }),
              "[fully_shard] SequentialImpl is sharded already.");
    torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    for (int64_t step = 0; step < 2; ++step) {
      own.zero_grad(), goal.zero_grad();
      auto x = inputs(step, {24, 5});
      auto loss = model->forward(mine(x, all_ranks())).square().mean();
      EXPECT_FALSE(sharded_by(*model[0]).is_whole());  // the outermost module is another one
      loss.backward(), plain->forward(x).square().mean().backward();
      own.step(), goal.step();
    }
    expect_same_tensors(*model, *plain);
  });
}

TEST(Reads, HoldersModulesAndSharedPointersAreTaken) {
  auto world = simulate(2);
  auto try_all = [](auto make) {
    auto given = make();
    fully_shard(given, all_ranks());
    EXPECT_TRUE(sharded_by(given).bytes() > 0 && groups_in(given).size() == 1);
  };
  try_all([] { return nn::Linear(5, 7); });
  try_all([] { return mlp(); });
  try_all([] { return std::make_shared<nn::LinearImpl>(5, 7); });
  try_all([]() -> std::shared_ptr<nn::Module> { return std::make_shared<nn::LinearImpl>(5, 7); });
  nn::LinearImpl on_the_stack(5, 7);
  fully_shard(on_the_stack, all_ranks());
  EXPECT_EQ(groups_in(on_the_stack).size(), 1);
}

struct Growing : nn::Module {
  Growing() : w(register_parameter("w", inputs(0, {7, 5}))) {}
  at::Tensor forward(const at::Tensor& x) { return late.defined() ? at::linear(x, w, late) : at::linear(x, w); }
  at::Tensor w, late;
};

TEST(Reads, AParameterThatIsRegisteredLateIsAnError) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = std::make_shared<Growing>();
    fully_shard(*model, mesh);
    auto pass = [&] { model->forward(mine(inputs(0, {24, 5}), mesh)).square().mean().backward(); };
    pass();
    model->late = model->register_parameter("late", inputs(1, {7}));
    EXPECT_EQ(error_text<c10::ValueError>(pass),
              "[fully_shard] \"late\" of Growing was registered after fully_shard was called: it is in no group, and "
              "its gradient would "
              "differ between the ranks. Register parameters first, or list it in ignored_parameters.");
    model->late.set_requires_grad(false);
    model->zero_grad();
    pass();
    EXPECT_TRUE(is_dtensor(model->w.grad()));
  });
}

TEST(Reads, AnIgnoredParameterIsNotLate) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = std::make_shared<Growing>();
    model->late = model->register_parameter("late", inputs(1, {7}));
    FullyShardOptions options;
    options.ignored_parameters = {model->late};
    fully_shard(*model, mesh, options);
    model->forward(mine(inputs(0, {24, 5}), mesh)).square().mean().backward();
    EXPECT_TRUE(is_dtensor(model->w.grad()) && !is_dtensor(model->late.grad()));
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_reads_test
