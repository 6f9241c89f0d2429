// Clipping and scaling of gradients that are plain, on several meshes and in several layouts, beside plain LibTorch.

#include <limits>

#include <torch/torch.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/nn/parallelize_module.h"
#include "intarsia/nn/styles.h"
#include "tests/ops/along_the_cut.h"
#include "tests/support/error_text.h"

namespace intarsia::ops_clip_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Meshes over n ranks by name; "" is none.
DeviceMesh mesh_named(const std::string& name, int64_t n) {
  auto rows = n % 2 == 0 ? 2 : 1;
  auto both = init_device_mesh(at::kCPU, {rows, n / rows}, {"dp", "tp"});
  return name == "dp" || name == "tp" ? both[name] : name == "flat" ? both.flatten("flat") : both;
}

struct Where {
  std::string mesh, placements;
};

// Parameters with gradients: on one side plain, on the other as `wheres` says.
struct Model {
  Tensors whole, parts;

  Model(const std::vector<Where>& wheres, int64_t n,
        const std::vector<std::vector<int64_t>>& shapes = {{5, 3}, {1}, {4, 2}, {3}}) {
    for (size_t i = 0; i < wheres.size(); ++i) {
      auto grad = scrambled(shapes[i % shapes.size()]).sub(0.3 * i).to(at::kFloat);
      auto parameter = at::zeros_like(grad);
      whole.push_back(parameter.clone().requires_grad_());
      whole.back().mutable_grad() = grad.clone();
      auto& where = wheres[i];
      if (where.mesh.empty()) {
        parts.push_back(parameter.clone().requires_grad_());
        parts.back().mutable_grad() = grad.clone();
        continue;
      }
      auto mesh = mesh_named(where.mesh, n);
      auto placements = parse_placements(where.placements);
      parts.push_back(lay_out(parameter, mesh, settled(placements)).requires_grad_());
      parts.back().mutable_grad() = lay_out(grad, mesh, placements);
    }
  }
};

at::Tensor plain_value(const at::Tensor& tensor) { return is_dtensor(tensor) ? full_tensor(tensor) : tensor; }

void expect_same_grads(const Model& model, double tolerance = 1e-6) {
  for (size_t i = 0; i < model.whole.size(); ++i) {
    auto grad = model.parts[i].grad();
    EXPECT_EQ(is_dtensor(grad), is_dtensor(model.parts[i]));
    EXPECT_EQ(difference(plain_value(grad), model.whole[i].grad(), tolerance), "") << "gradient " << i;
  }
}

const std::vector<std::vector<Where>> kMixes = {
    // tensor parallelism, plain norms
    {{"tp", "[S(0)]"}, {"", ""}, {"tp", "[R]"}, {"", ""}},
    {{"both", "[S(0), S(1)]"}, {"dp", "[S(0)]"}, {"both", "[S(0), R]"}, {"", ""}},    // with fully_shard around it
    {{"both", "[S(0), S(1)]"}, {"flat", "[S(0)]"}, {"tp", "[S(1)]"}, {"dp", "[R]"}},  // all kinds of meshes
    // none of which holds the others
    {{"dp", "[S(0)]"}, {"tp", "[S(0)]"}, {"tp", "[P(sum)]"}, {"", ""}},
    {{"both", "[P(sum), S(0)]"}, {"both", "[P(sum), R]"}, {"flat", "[P(avg)]"}, {"", ""}},
    {{"flat", "[S(0)]"}, {"flat", "[S(0)]"}, {"flat", "[P(sum)]"}, {"flat", "[S(0)]"}},  // empty shards
};

TEST(Clip, OfAnyMixOfGradientsIsThatOfPlainOnes) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    for (auto& mix : kMixes) {
      for (double ord : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity(), 0.0}) {
        auto number = std::to_string(&mix - kMixes.data());
        SCOPED_TRACE("ranks " + std::to_string(n) + ", mix " + number + ", norm " + std::to_string(ord));
        Model model(mix, n);
        auto expected = torch::nn::utils::clip_grad_norm_(model.whole, 0.7, ord);
        EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(model.parts, 0.7, ord, true), expected, 1e-5);
        expect_same_grads(model);
        torch::nn::utils::clip_grad_value_(model.whole, 0.1);
        torch::nn::utils::clip_grad_value_(model.parts, 0.1);
        expect_same_grads(model);
      }
    }
  });
}

TEST(Clip, ANormThatIsNotFiniteIsAnErrorBeforeAnythingIsWritten) {
  for_each_world({2, 4}, [](int64_t n) {
    Model model(kMixes[1], n);
    auto before = plain_value(model.parts[0].grad()).clone();
    model.parts[2].grad().fill_(INFINITY);
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(model.parts, 0.7, 2, true), c10::Error);
    EXPECT_TRUE(at::equal(plain_value(model.parts[0].grad()), before));
  });
}

// Messages by axis.
std::string traffic_of(const std::function<void()>& function) {
  CommDebugMode comms;
  function();
  return comms.text();
}

TEST(Clip, SendsOneMessagePerMesh) {
  auto world = simulate(4);
  auto clip = [](Model& model) { return traffic_of([&] { torch::nn::utils::clip_grad_norm_(model.parts, 0.7); }); };
  Model tensor_parallel({{"tp", "[S(0)]"}, {"", ""}, {"tp", "[S(1)]"}, {"", ""}}, 4);
  EXPECT_EQ(clip(tensor_parallel), "all_reduce(sum) tp 64B\n");
  EXPECT_EQ(traffic_of([&] { torch::nn::utils::clip_grad_norm_(tensor_parallel.parts, 0.7, INFINITY); }),
            "all_reduce(max) tp 24B\n");
  Model fully_sharded({{"both", "[S(0), S(1)]"}, {"dp", "[S(0)]"}, {"both", "[S(0), R]"}, {"", ""}}, 4);
  EXPECT_EQ(clip(fully_sharded), "all_reduce(sum) dp 8B\nall_reduce(sum) dp_tp 96B\n");
}

TEST(Clip, ReducesAPendingGradientOnceAndTogetherWithOthers) {
  auto world = simulate(4);
  Model model({{"flat", "[P(sum)]"}, {"flat", "[P(sum)]"}, {"flat", "[P(sum)]"}, {"flat", "[P(sum)]"}}, 4,
              {{32, 16}, {16}});
  torch::optim::SGD optimizer(model.parts, 0.1), plain(model.whole, 0.1);
  auto moved = traffic_of([&] {
    torch::nn::utils::clip_grad_norm_(model.parts, 0.7);
    optimizer.step();
  });
  EXPECT_EQ(moved, "all_reduce(sum) flat 6336B\n");  // 2 x 3/4 of 4,224 bytes of gradients
  torch::nn::utils::clip_grad_norm_(model.whole, 0.7);
  plain.step();
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(difference(full_tensor(model.parts[i]).detach(), model.whole[i].detach(), 1e-6), "");
}

TEST(Clip, ANormIsThatOfTheGradientWhenItWasAskedFor) {
  for_each_world({2, 4}, [](int64_t n) {
    Model model({{"flat", "[P(sum)]"}}, n);
    auto norm = model.parts[0].grad().norm();
    model.parts[0].grad().mul_(3);
    EXPECT_NEAR(full_tensor(norm).item<double>(), model.whole[0].grad().norm().item<double>(), 1e-5);
    EXPECT_EQ(difference(full_tensor(model.parts[0].grad()), model.whole[0].grad() * 3, 1e-5), "");
  });
}

TEST(Clip, PlainGradientsThatDifferBetweenRanksAreAnErrorOnAllOfThem) {
  for_each_world({2, 4}, [](int64_t n) {
    Model model({{"flat", "[S(0)]"}, {"", ""}}, n);
    Shards values;
    auto mesh = mesh_named("flat", n);
    for (auto& slot : mesh.slots()) values.push_back(at::full({1}, 1.f + slot.rank));
    auto before = plain_value(model.parts[0].grad()).clone();
    Tensors norms = {model.parts[0].grad().norm(), values.size() == 1 ? values[0].norm() : per_rank(values).norm()};
    EXPECT_EQ(
        error_text<c10::ValueError>([&] { at::stack(norms); }),
        "[aten::stack] a number that comes from plain tensors, or from meshes of some ranks, is to be joined with "
        "numbers of all ranks of " +
            mesh.text() + ", but differs between them: its mean is " + (n == 2 ? "1.5" : "2.5") +
            ", its standard deviation " + (n == 2 ? "0.5" : "1.11803") +
            ". Plain tensors must be equal on all ranks there: average their gradients, or distribute them.");
    norms = {model.parts[0].grad().abs().max(), values.size() == 1 ? values[0].max() : per_rank(values).max()};
    EXPECT_EQ(error_text<c10::ValueError>([&] { at::stack(norms); }),
              "[aten::stack] a number that comes from plain tensors is to be joined with numbers of all ranks of " +
                  mesh.text() + ", but differs between them: it is between 1 and " + std::to_string(n) +
                  ". Plain tensors must be equal on all ranks there: average their gradients, or distribute them.");
    EXPECT_TRUE(at::equal(plain_value(model.parts[0].grad()), before));
  });
}

TEST(Clip, ANumberOfAllRanksServesPlainTensorsAndThoseOfParts) {
  for_each_world({2, 4}, [](int64_t n) {
    auto number = lay_out(at::scalar_tensor(2.0), mesh_named("both", n), {Partial(), Replicate()});
    auto plain = at::ones({3}), part = lay_out(at::ones({4}), mesh_named("tp", n), {Shard(0)});
    plain.mul_(number);
    part.mul_(number);
    EXPECT_TRUE(at::equal(plain, at::full({3}, 2.f)));
    EXPECT_TRUE(at::equal(full_tensor(part), at::full({4}, 2.f)));
  });
}

TEST(Clip, NumbersOfAnyMeshesAreStackedAndJoined) {
  for_each_world({2, 4}, [](int64_t n) {
    auto number = [&](float value, const char* mesh, Placements placements) {
      return lay_out(at::scalar_tensor(value), mesh_named(mesh, n), placements);
    };
    Tensors lists, numbers = {number(1, "both", {Partial(), Replicate()}), number(2, "tp", {Replicate()}),
                              at::scalar_tensor(3.f), number(4, "flat", {Partial(ReduceOp::max)})};
    for (auto& one : numbers) lists.push_back(one.reshape({1}));
    auto expected = at::tensor({1.f, 2.f, 3.f, 4.f});
    EXPECT_EQ(difference(full_tensor(at::stack(numbers)), expected, 1e-6), "");
    EXPECT_EQ(difference(full_tensor(at::cat(lists)), expected, 1e-6), "");
  });
}

TEST(Clip, APlainTensorMeetsNoNumberThatItsRankDoesNotHave) {
  for_each_world({2}, [](int64_t) {
    DeviceMesh first(at::kCPU, {1}, {0});
    auto number = distribute_tensor(at::scalar_tensor(2.0), first, {Replicate()});
    auto plain = at::ones({3});
    auto text = error_text<c10::ValueError>([&] { plain.mul_(number); });
    auto norm = distribute_tensor(at::ones({2}), first, {Shard(0)}).norm();
    auto stacked = error_text<c10::ValueError>([&] { at::stack({norm, at::scalar_tensor(1.f)}); });
    if (current_world().hosted().back() == 0) return;
    EXPECT_EQ(stacked,
              "[aten::stack] a plain tensor meets a number on DeviceMesh(cpu, 1), of which rank 1 is no part. "
              "Bring the number to a mesh of all ranks with redistribute first.");
    EXPECT_EQ(text,
              "[aten::mul_.Tensor] a plain tensor meets a number on DeviceMesh(cpu, 1), of which rank 1 is no part. "
              "Bring the number to a mesh of all ranks with redistribute first.");
  });
}

// --- the first plan of the docs, in training

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    words = register_module("words", torch::nn::Embedding(10, 8));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    up = register_module("up", torch::nn::Linear(8, 12));
    down = register_module("down", torch::nn::Linear(12, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(norm(words(x))))); }
  torch::nn::Embedding words{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// Three steps; the norms before clipping.
std::vector<double> train(Net& net) {
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.05));
  std::vector<double> norms;
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    net.forward(at::tensor({1, 3, 5, 3}, at::kLong)).square().sum().backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(net.parameters(), 0.5));
    optimizer.step();
  }
  return norms;
}

TEST(Clip, InTrainingWithTensorParallelismAndFullyShardIsThatOfAPlainModel) {
  Net plain;
  auto expected = train(plain);
  for_each_world({2, 4}, [&](int64_t n) {
    auto mesh = mesh_named("both", n);
    for (bool fully_sharded : {false, true}) {
      SCOPED_TRACE(fully_sharded ? "with fully_shard" : "without");
      Net net;
      parallelize_module(net, mesh["tp"], {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
      if (fully_sharded) fully_shard(net, mesh["dp"]);
      auto found = train(net);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "step " << i;
    }
  });
}

// --- lists

TEST(ListsOfMixes, ForeachOpsAreThoseOfPlainTensors) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    for (auto& mix : kMixes) {
      SCOPED_TRACE("ranks " + std::to_string(n) + ", mix " + std::to_string(&mix - kMixes.data()));
      Model model(mix, n);
      Tensors whole, parts;
      for (size_t i = 0; i < mix.size(); ++i)
        whole.push_back(model.whole[i].grad()), parts.push_back(model.parts[i].grad());
      auto number = lay_out(at::scalar_tensor(0.5f), mesh_named("both", n), {Replicate(), Replicate()});
      std::vector<at::Scalar> factors = {1, 2, 3, 4};
      at::_foreach_mul_(whole, at::scalar_tensor(0.5f)), at::_foreach_mul_(parts, number);
      at::_foreach_mul_(whole, factors), at::_foreach_mul_(parts, factors);
      at::_foreach_addcmul_(whole, whole, whole, 0.25), at::_foreach_addcmul_(parts, parts, parts, 0.25);
      expect_same_grads(model, 1e-5);
      auto wanted = at::_foreach_mul(whole, at::scalar_tensor(0.5f)), found = at::_foreach_mul(parts, number);
      auto lengths = at::_foreach_norm(whole), found_lengths = at::_foreach_norm(parts);
      for (size_t i = 0; i < mix.size(); ++i) {
        EXPECT_EQ(is_dtensor(found[i]), is_dtensor(parts[i]));
        EXPECT_EQ(difference(plain_value(found[i]), wanted[i], 1e-5), "");
        EXPECT_EQ(difference(plain_value(found_lengths[i]), lengths[i], 1e-5), "");
      }
    }
  });
}

TEST(ListsOfMixes, FusedStepsAreThoseOfPlainTensors) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    for (auto& mix : kMixes) {
      SCOPED_TRACE("ranks " + std::to_string(n) + ", mix " + std::to_string(&mix - kMixes.data()));
      Model model(mix, n), means(mix, n), squares(mix, n);
      auto step = [](Tensors& p, Tensors& m, Tensors& v) {
        at::NoGradGuard no_grad;
        Tensors grads, first, second, steps;
        for (size_t i = 0; i < p.size(); ++i) {
          grads.push_back(p[i].grad());
          first.push_back(m[i].detach());
          second.push_back(v[i].detach());
          steps.push_back(at::tensor(2.f));
        }
        at::_fused_adamw_(p, grads, first, second, {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
      };
      step(model.whole, means.whole, squares.whole);
      step(model.parts, means.parts, squares.parts);
      for (size_t i = 0; i < mix.size(); ++i) {
        EXPECT_EQ(difference(plain_value(model.parts[i]).detach(), model.whole[i].detach(), 1e-5), "") << i;
        EXPECT_EQ(difference(plain_value(means.parts[i]).detach(), means.whole[i].detach(), 1e-5), "") << i;
      }
    }
  });
}

TEST(ListsOfMixes, AScalersVerdictIsThatOfAllRanksInOneMessage) {
  for_each_world({2, 4}, [](int64_t n) {
    for (auto& mix : kMixes) {
      for (size_t bad = 0; bad <= mix.size(); ++bad) {
        SCOPED_TRACE("mix " + std::to_string(&mix - kMixes.data()) + ", infinite in " + std::to_string(bad));
        Model model(mix, n);
        Tensors whole, parts;
        for (size_t i = 0; i < mix.size(); ++i)
          whole.push_back(model.whole[i].grad()), parts.push_back(model.parts[i].grad());
        if (bad < mix.size()) parts[bad].select(0, 0).fill_(INFINITY), whole[bad].select(0, 0).fill_(INFINITY);
        auto found = at::zeros({1}), wanted = at::zeros({1}), scale = at::full({1}, 0.5f);
        at::_amp_foreach_non_finite_check_and_unscale_(parts, found, scale);
        at::_amp_foreach_non_finite_check_and_unscale_(whole, wanted, scale);
        EXPECT_EQ(found.item<float>(), wanted.item<float>());
        if (bad == mix.size()) expect_same_grads(model);
      }
    }
  });
}

TEST(ListsOfMixes, AnOpThatRefusesOneElementWritesToNone) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = mesh_named("flat", n), other = mesh_named("both", n);
    auto cut = [&](float value) { return lay_out(at::full({4}, value), mesh, {Shard(0)}); };
    Tensors list = {cut(1), at::full({3}, 1.f), cut(1)};
    auto untouched = [&] {
      for (auto& tensor : list) EXPECT_TRUE(at::equal(plain_value(tensor), at::ones_like(plain_value(tensor))));
    };
    EXPECT_ANY_THROW(at::_foreach_add_(list, Tensors{cut(2), at::ones({3}), lay_out(at::ones({5}), mesh, {Shard(0)})}));
    untouched();
    auto elsewhere = lay_out(at::ones({4}), other, {Shard(0), Replicate()});
    auto size = std::to_string(n);
    EXPECT_EQ(error_text<c10::Error>([&] { at::_foreach_add_(list, Tensors{cut(2), at::ones({3}), elsewhere}); }),
              "[aten::_foreach_add_.List] element 2 of its lists is on DeviceMesh(cpu, flat=" + size +
                  "), of shape [4], and meets one that is "
                  "on " +
                  other.text() +
                  ", of shape [4]. Elements that meet must be on one mesh: use distribute_tensor or redistribute.");
    untouched();
    EXPECT_EQ(error_text<c10::Error>([&] { at::_foreach_add_(list, Tensors{cut(2), cut(3).narrow(0, 0, 3), cut(2)}); }),
              "[aten::_foreach_add_.List] element 1 of its lists is a plain tensor, of shape [3], and meets one that "
              "is on DeviceMesh(cpu, "
              "flat=" +
                  size +
                  "), of shape [3]. Elements that meet must be on one mesh: use distribute_tensor or redistribute.");
    untouched();
    Tensors none, momentum = {cut(1), at::full({3}, 1.f), cut(1)};
    EXPECT_ANY_THROW(at::_fused_sgd_(list, Tensors{cut(2), at::ones({3}), elsewhere}, momentum, 0., 0.9, 0.1, 0., false,
                                     false, false));
    untouched();
  });
}

}  // namespace
}  // namespace intarsia::ops_clip_test
