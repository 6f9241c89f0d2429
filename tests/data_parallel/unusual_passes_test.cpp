// Backward passes that are not one plain backward() per step, and changes of a model between them: the numbers are
// those of a plain module, or there is an error.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_unusual_passes_test {
namespace {

using Wrapping = std::function<void(torch::nn::Sequential, const DeviceMesh&)>;

struct Named {
  std::string name;
  Wrapping wrap;
};

// The layers are 0, 2 and 4.
std::vector<Named> wrappings() {
  FullyShardOptions kept;
  kept.reshard_after_forward = false;
  return {
      {"replicate", [](auto model, auto& mesh) { replicate(*model, mesh); }},
      {"replicate by layer",
       [](auto model, auto& mesh) {
         for (size_t i : {0, 2, 4}) replicate(*model[i], mesh);
       }},
      {"fully_shard", [](auto model, auto& mesh) { fully_shard(*model, mesh); }},
      {"fully_shard by layer",
       [](auto model, auto& mesh) {
         for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh);
       }},
      {"fully_shard by layer, kept",
       [kept](auto model, auto& mesh) {
         for (size_t i : {0, 2, 4}) fully_shard(*model[i], mesh, kept);
       }},
  };
}

void in_every_wrapping(
    const std::function<void(torch::nn::Sequential model, torch::nn::Sequential plain, const DeviceMesh&)>& body) {
  for (auto& wrapping : wrappings()) {
    SCOPED_TRACE(wrapping.name);
    in_every_world([&] {
      auto model = mlp(), plain = mlp();
      wrapping.wrap(model, all_ranks());
      body(model, plain, all_ranks());
    });
  }
}

at::Tensor layer(torch::nn::Sequential model, size_t i, const at::Tensor& x) {
  return model[i]->as<torch::nn::Linear>()->forward(x);
}
at::Tensor batch(int64_t step) { return inputs(step, {24, 5}); }
at::Tensor squared(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

void expect_same_gradients(torch::nn::Sequential model, torch::nn::Sequential plain) {
  for (size_t i = 0; i < 6; ++i) {
    auto own = model->parameters()[i].grad(), goal = plain->parameters()[i].grad();
    ASSERT_EQ(own.defined(), goal.defined()) << i;
    if (!goal.defined()) continue;
    EXPECT_TRUE(torch::allclose(whole(own), goal, 1e-12, 1e-12)) << i << whole(own) << goal;
  }
}

void set_all_syncs(torch::nn::Sequential model, bool syncs) {
  for (auto& group : groups_in(*model)) group.set_requires_gradient_sync(syncs);
  std::vector<torch::nn::Module*> modules = {model.get(), model[0].get(), model[2].get(), model[4].get()};
  for (auto* module : modules) {
    try {
      replica_of(*module).set_requires_gradient_sync(syncs);
    } catch (const c10::ValueError&) {  // that one is not wrapped by itself
    }
  }
}

// Runs a layer without a graph, and again in backward, by a backward of its own. LibTorch knows nothing of it.
struct Again : torch::autograd::Function<Again> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, int64_t linear) {
    ctx->save_for_backward({x});
    ctx->saved_data["linear"] = linear;
    return reinterpret_cast<torch::nn::LinearImpl*>(linear)->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    auto x = ctx->get_saved_variables()[0].detach().requires_grad_();
    auto* linear = reinterpret_cast<torch::nn::LinearImpl*>(ctx->saved_data["linear"].toInt());
    torch::AutoGradMode grad_mode(true);
    linear->forward(x).backward(grads[0]);
    return {x.grad(), at::Tensor()};
  }
};

TEST(UnusualPasses, ABackwardInsideANodeOfAnotherLosesNothing) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    auto again = [](auto net, const at::Tensor& x) {
      auto* linear = net[0]->template as<torch::nn::Linear>();
      return Again::apply(x, reinterpret_cast<int64_t>(linear));
    };
    for (int64_t step = 0; step < 2; ++step) {
      for (auto net : {model, plain}) net->zero_grad();
      auto x = mine(batch(step), mesh).detach().requires_grad_(), all = batch(step).requires_grad_();
      // Only layer 0 has a gradient, and only in the inner pass: then all of them, those of layers 2 and 4 in the outer
      // one.
      bool all_layers = step == 1;
      auto of = [&](auto net, const at::Tensor& in) {
        auto hidden = again(net, in);
        return (all_layers ? layer(net, 4, layer(net, 2, hidden)) : hidden).square().mean();
      };
      of(plain, all).backward();
      auto text = error_text<c10::Error>([&] { of(model, x).backward(); });
      bool unused = !all_layers && !groups_in(*model).size() && model->parameters()[2].defined();
      if (unused && text != "no error") {  // one replica of all: a layer without a gradient is an error there
        EXPECT_NE(text.find("got no gradient"), std::string::npos) << text;
      } else {
        EXPECT_EQ(text, "no error");
        expect_same_gradients(model, plain);
      }
    }
  });
}

TEST(UnusualPasses, GradientsAskedForByHandLeaveThoseOfTheLeavesAlone) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    for (int64_t step = 0; step < 2; ++step) {
      squared(model, mine(batch(step), mesh)).backward(), squared(plain, batch(step)).backward();
      auto asked = torch::autograd::grad({squared(model, mine(batch(7), mesh))}, model->parameters());
      auto goal = torch::autograd::grad({squared(plain, batch(7))}, plain->parameters());
      for (size_t i = 0; i < 6; ++i) {  // of this rank's loss: the mean of the ranks' is the plain one
        auto mean = full_tensor(from_local(asked[i], mesh, {Partial(ReduceOp::avg)}));
        EXPECT_TRUE(torch::allclose(mean, goal[i], 1e-12, 1e-12)) << i;
      }
    }
    expect_same_gradients(model, plain);
  });
}

TEST(UnusualPasses, AGradientWithAGraphOfItsOwnIsRefused) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    auto text =
        error_text<c10::NotImplementedError>([&] { squared(model, mine(batch(0), mesh)).backward({}, true, true); });
    EXPECT_NE(text.find("is to have a graph of its own (create_graph)"), std::string::npos) << text;
    model->zero_grad();
    squared(model, mine(batch(1), mesh)).backward(), squared(plain, batch(1)).backward();
    expect_same_gradients(model, plain);
  });
}

TEST(UnusualPasses, APenaltyOnTheGradientOfTheInputsIsServed) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    auto penalty = [](auto net, at::Tensor x) {
      x.requires_grad_();
      auto grad = torch::autograd::grad({net->forward(x).square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
      return grad.square().mean() + net->forward(x).mean();
    };
    for (int64_t step = 0; step < 2; ++step) {
      penalty(model, mine(batch(step), mesh)).backward(), penalty(plain, batch(step)).backward();
      expect_same_gradients(model, plain);
    }
  });
}

TEST(UnusualPasses, AWriteBetweenForwardAndBackwardIsAnError) {
  in_every_wrapping([](auto model, auto, auto& mesh) {
    auto loss = squared(model, mine(batch(0), mesh));
    {
      torch::NoGradGuard no_grad;
      for (auto& p : model->parameters()) p.mul_(2);
    }
    auto text = error_text<c10::Error>([&] { loss.backward(); });
    EXPECT_NE(text.find("modified by an inplace operation"), std::string::npos) << text;
  });
}

TEST(UnusualPasses, ZeroGradTakesAwayWhatHasAddedUpWithoutSync) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    for (int64_t round = 0; round < 2; ++round) {
      set_all_syncs(model, false);
      squared(model, mine(batch(5), mesh)).backward();
      model->zero_grad();
      set_all_syncs(model, true);
      squared(model, mine(batch(round), mesh)).backward(), squared(plain, batch(round)).backward();
      expect_same_gradients(model, plain);
      model->zero_grad(), plain->zero_grad();
    }
  });
}

TEST(UnusualPasses, WhatALayerGotOnlyWithoutSyncIsReducedWithTheOthers) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    for (int64_t step = 0; step < 2; ++step) {
      auto only_first = [&](auto net, const at::Tensor& x) { return layer(net, 0, x).square().mean(); };
      set_all_syncs(model, false);
      squared(model, mine(batch(0), mesh)).backward(), squared(plain, batch(0)).backward();
      set_all_syncs(model, true);
      only_first(model, mine(batch(1), mesh)).backward(), only_first(plain, batch(1)).backward();
      expect_same_gradients(model, plain);
    }
  });
}

TEST(UnusualPasses, GradientsWithoutSyncAreReadAsTheirAverage) {
  for (bool by_layer : {false, true}) {
    in_every_world([&] {
      auto model = mlp(), plain = mlp();
      wrappings()[by_layer ? 3 : 2].wrap(model, all_ranks());
      set_all_syncs(model, false);
      squared(model, mine(batch(0), all_ranks())).backward(), squared(plain, batch(0)).backward();
      EXPECT_EQ(str(placements_of(model->parameters()[0].grad())), "[P(avg)]");
      torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
      own.step(), goal.step();
      expect_same_tensors(*model, *plain);
    });
  }
}

TEST(UnusualPasses, SyncedAndUnsyncedPassesAddUp) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    for (bool syncs : {true, false, false, true, false, true}) {  // a reduced gradient is there when others add up
      set_all_syncs(model, syncs);
      squared(model, mine(batch(syncs), mesh)).backward(), squared(plain, batch(syncs)).backward();
    }
    expect_same_gradients(model, plain);
  });
}

// What p.grad() shows is what the step takes, and what clipping changes.
TEST(UnusualPasses, APassWithoutSyncAfterOneWithItIsInTheStep) {
  for (std::optional<double> factor : {std::optional<double>(), std::optional<double>(1)}) {
    in_every_wrapping([&](auto model, auto plain, auto& mesh) {
      if (groups_in(*model).empty()) return;                       // replicate shows each rank its own
      auto scale = factor ? static_cast<double>(mesh.size()) : 1;  // then gradients are sums
      for (auto& group : groups_in(*model)) {
        if (factor) group.set_gradient_divide_factor(*factor);
      }
      torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
      for (bool syncs : {true, false}) {
        set_all_syncs(model, syncs);
        squared(model, mine(batch(syncs), mesh)).backward(), (squared(plain, batch(syncs)) * scale).backward();
        if (syncs)
          torch::nn::utils::clip_grad_norm_(model->parameters(), 0.01),
              torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.01);
      }
      expect_same_gradients(model, plain);
      own.step(), goal.step();
      expect_same_tensors(*model, *plain);
      set_all_syncs(model, true);
      squared(model, mine(batch(2), mesh)).backward(), (squared(plain, batch(2)) * scale).backward();
      expect_same_gradients(model, plain);
    });
  }
}

TEST(UnusualPasses, MicrobatchesMayInterleave) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    auto forward = [&](int64_t step) {
      return std::pair(squared(model, mine(batch(step), mesh)), squared(plain, batch(step)));
    };
    auto backward = [&](auto& pair, bool last) {
      set_all_syncs(model, last);
      pair.first.backward(), pair.second.backward();
    };
    auto a = forward(0), b = forward(1);
    backward(a, false);
    auto c = forward(2);
    backward(b, false), backward(c, true);
    expect_same_gradients(model, plain);
  });
}

TEST(UnusualPasses, APartRunsAloneAndThenAll) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    auto part = [](auto net, const at::Tensor& x) { return layer(net, 2, layer(net, 0, x)).square().mean(); };
    {
      torch::NoGradGuard no_grad;
      layer(model, 0, mine(batch(3), mesh));
    }
    if (groups_in(*model).empty()) set_all_syncs(model, false);  // a replica wants all of its gradients
    part(model, mine(batch(0), mesh)).backward(), part(plain, batch(0)).backward();
    set_all_syncs(model, true);
    squared(model, mine(batch(1), mesh)).backward(), squared(plain, batch(1)).backward();
    expect_same_gradients(model, plain);
  });
}

TEST(UnusualPasses, AnErrorInAPassWithoutSyncLeavesTheModelUsable) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    set_all_syncs(model, false);
    auto hidden = layer(model, 0, mine(batch(0), mesh));
    hidden.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "an error of the user"); });
    EXPECT_THROW(layer(model, 4, layer(model, 2, hidden)).sum().backward(), c10::Error);
    model->zero_grad();
    set_all_syncs(model, true);
    squared(model, mine(batch(1), mesh)).backward(), squared(plain, batch(1)).backward();
    expect_same_gradients(model, plain);
  });
}

TEST(UnusualPasses, InferenceModeSeesTheWhole) {
  in_every_wrapping([](auto model, auto plain, auto& mesh) {
    for (int64_t step = 0; step < 2; ++step) {
      auto x = mine(batch(step), mesh);
      {
        c10::InferenceMode guard;
        auto out = model->forward(x), goal = plain->forward(batch(step));
        auto rows =
            is_per_rank(out) ? torch::cat(std::vector<at::Tensor>(values_of(out).begin(), values_of(out).end())) : out;
        bool all = is_per_rank(out) || mesh.size() == 1;
        EXPECT_TRUE(!all || torch::allclose(rows, goal, 1e-12, 1e-12));
      }
      squared(model, x).backward(), squared(plain, batch(step)).backward();
      expect_same_gradients(model, plain);
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_unusual_passes_test
