// What dispatch promises beyond values: lists, out=, policies, errors, fallbacks, modes.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "intarsia/comm/trace.h"
#include "intarsia/tensor/policy.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

TORCH_LIBRARY(intarsia_test, m) {
  m.def("twice(Tensor x) -> Tensor");
  m.impl("twice", torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& x) { return x * 2; }));
}

namespace intarsia::tensor_ops_test {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}, {"tp"}); }
at::Tensor ramp(std::vector<int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}
at::Tensor cut(const at::Tensor& whole, const char* placements = "[S(0)]") {
  return lay_out(whole, line(), parse_placements(placements));
}

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

struct Fallbacks : Recorder {
  Fallbacks() { add_recorder(this); }
  ~Fallbacks() override { remove_recorder(this); }
  void on_comm(const CommEvent&) override {}
  void on_fallback(const FallbackEvent& event) override { ops.push_back(event.op); }
  std::vector<std::string> ops;
};

TEST(Ops, TakeListsOfTensors) {
  in_every_world([] {
    auto a = ramp({5, 3}), b = ramp({2, 3});
    EXPECT_EQ(difference(full_tensor(at::cat({cut(a), cut(b, "[R]")}, 0)), at::cat({a, b}, 0)), "");
    EXPECT_EQ(difference(full_tensor(at::stack({cut(a), cut(a, "[P(sum)]")}, 1)), at::stack({a, a}, 1)), "");
  });
}

TEST(Ops, TakeMissingOptionalTensors) {
  in_every_world([] {
    auto x = ramp({5, 4}), target = at::arange(5) % 4;
    auto expected = at::cross_entropy_loss(x, target);
    EXPECT_EQ(difference(full_tensor(at::cross_entropy_loss(cut(x), cut(target))), expected, 1e-12), "");
    at::Tensor weight = ramp({4}) + 1;
    EXPECT_EQ(difference(full_tensor(at::cross_entropy_loss(cut(x), cut(target), cut(weight, "[R]"))),
                         at::cross_entropy_loss(x, target, weight), 1e-12),
              "");
    EXPECT_EQ(difference(full_tensor(cut(x).index({cut(target, "[R]")})), x.index({target})), "");
  });
}

TEST(Ops, WriteIntoOutTensors) {
  in_every_world([] {
    auto a = ramp({5, 3}), out = cut(at::zeros({5, 3}, at::kDouble), "[S(1)]");
    auto& returned = at::add_out(out, cut(a), cut(a, "[P(sum)]"));
    EXPECT_TRUE(returned.is_same(out));
    EXPECT_EQ(difference(full_tensor(out), a + a), "");
    EXPECT_EQ(str(placements_of(out)), "[S(1)]");
  });
}

TEST(Ops, InPlaceReturnsSelfAndKeepsItsLayout) {
  in_every_world([] {
    auto x = cut(ramp({5, 3}), "[S(1)]");
    EXPECT_TRUE(x.add_(cut(ramp({5, 3}))).is_same(x));
    EXPECT_EQ(str(placements_of(x)), "[S(1)]");
    EXPECT_EQ(difference(full_tensor(x), 2 * ramp({5, 3})), "");
  });
}

TEST(Ops, InPlaceOnAPendingSumThatCannotStayPendingIsAnErrorWhereThatIsAskedFor) {
  auto world = simulate(2);
  auto x = cut(ramp({4}), "[P(sum)]");
  set_pending_writes(PendingWrites::error);
  auto text = error_text<c10::Error>([&] { x.relu_(); });
  set_pending_writes(PendingWrites::settle);
  EXPECT_EQ(text,
            "[aten::relu_] [4] [P(sum)] on DeviceMesh(cpu, tp=2): in-place operations that require placement changes "
            "are not supported. Use the op that returns a new tensor, or redistribute first.");
  EXPECT_EQ(difference(full_tensor(x), ramp({4})), "") << "and it changed nothing";
}

TEST(Ops, PlainTensorsOfOneElementMixFreely) {
  in_every_world([] {
    auto x = ramp({5, 3});
    EXPECT_EQ(difference(full_tensor(cut(x) * at::tensor(2.0, at::kDouble)), x * 2), "");
    EXPECT_EQ(difference(full_tensor(cut(x, "[P(sum)]") + at::ones({1, 1}, at::kDouble)), x + 1), "");
  });
}

TEST(Ops, PlainTensorsFollowThePolicyOfTheScope) {
  auto world = simulate(2);
  auto x = ramp({4, 3});
  EXPECT_EQ(
      error_text<c10::Error>([&] { cut(x) + x; }),
      "[aten::add.Tensor] got mixed torch.Tensor and DTensor: argument \"other\" is a plain tensor of shape [4, 3], "
      "while others lie on DeviceMesh(cpu, tp=2). Distribute it with distribute_tensor or from_local, the parameters "
      "of a "
      "module with distribute_module, or open a PlainTensorScope(PlainTensors::replicate).");
  for (auto policy : {PlainTensors::replicate, PlainTensors::verify}) {
    PlainTensorScope scope(policy);
    EXPECT_EQ(difference(full_tensor(cut(x) + x), x + x), "");
  }
}

TEST(Ops, DifferentMeshesAreAnErrorThatNamesBoth) {
  auto world = simulate(4);
  auto a = distribute_tensor(ramp({4}), init_device_mesh(at::kCPU, {4}, {"tp"}), {Shard(0)});
  auto b = distribute_tensor(ramp({4}), init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"}), {Shard(0), Replicate()});
  EXPECT_EQ(
      error_text<c10::Error>([&] { a + b; }),
      "[aten::add.Tensor] its tensors lie on different meshes: DeviceMesh(cpu, tp=4) and DeviceMesh(cpu, dp=2, tp=2)."
      " Bring them to one mesh first (full_tensor and distribute_tensor, or redistribute).");
}

TEST(Ops, MeshesOfTwoWorldsAreAnErrorThatSaysSo) {
  auto make = [](int64_t n) {
    auto world = simulate(n);
    return distribute_tensor(ramp({4}), init_device_mesh(at::kCPU, {2}, {"tp"}), {Shard(0)});
  };
  auto before = [] {
    auto world = simulate(3);
    return distribute_tensor(ramp({4}), DeviceMesh(at::kCPU, {2}, {0, 1}, {"tp"}), {Shard(0)});
  }();
  auto world = simulate(2);
  EXPECT_EQ(error_text<c10::Error>([&] { before + make(2); }),
            "[aten::add.Tensor] its tensors lie on meshes of two worlds: DeviceMesh(cpu, tp=2) of a simulation of 3 "
            "ranks, which is "
            "not the current world; and DeviceMesh(cpu, tp=2) of a simulation of 2 ranks. A world ends with finalize() "
            "or with its "
            "scope. Make meshes and tensors of the current one anew.");
}

TEST(Ops, AnOpWithoutARuleRunsOnWholeTensorsAndSaysSoOnce) {
  in_every_world([] {
    Warnings warnings;
    c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    Fallbacks fallbacks;
    auto x = ramp({5, 3});
    auto inside = [](const at::Tensor& t) { return at::hash_tensor(t.erfinv(), {1}); };
    EXPECT_EQ(difference(full_tensor(inside(cut(x))), inside(x)), "");
    inside(cut(x));
    EXPECT_EQ(std::count(fallbacks.ops.begin(), fallbacks.ops.end(), "aten::hash_tensor"), 2);
    EXPECT_LE(std::count_if(warnings.texts.begin(), warnings.texts.end(),
                            [](auto& t) { return t.find("[aten::hash_tensor]") == 0; }),
              1);
  });
}

TEST(Ops, StrictModeMakesAMissingRuleAnError) {
  auto world = simulate(2);
  StrictScope strict;
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] { at::hash_tensor(cut(ramp({4, 3})), {1}); }),
            "[aten::hash_tensor] has no sharding rule ([4, 3] [S(0)] on DeviceMesh(cpu, tp=2)), and strict mode is on. "
            "Register a "
            "rule, or redistribute its inputs to Replicate.");
}

TEST(Ops, OpsOfOtherLibrariesWork) {
  in_every_world([] {
    auto twice = c10::Dispatcher::singleton().findSchemaOrThrow("intarsia_test::twice", "");
    std::vector<c10::IValue> stack = {cut(ramp({5, 3}))};
    twice.callBoxed(stack);
    EXPECT_EQ(difference(full_tensor(stack[0].toTensor()), 2 * ramp({5, 3})), "");
  });
}

TEST(Ops, InferenceModeIsFine) {
  in_every_world([] {
    c10::InferenceMode mode;
    auto x = cut(ramp({5, 3}));
    x.add_(1);
    EXPECT_EQ(difference(full_tensor(at::relu(x).select(0, 1)), ramp({5, 3}).add(1).select(0, 1)), "");
  });
}

TEST(Ops, AutocastCastsOnTheCpu) {
  in_every_world([] {
    auto a = ramp({5, 4}).to(at::kFloat), b = ramp({4, 2}).to(at::kFloat);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto expected = at::mm(a, b), actual = at::mm(cut(a), cut(b));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(expected.scalar_type(), at::kBFloat16);
    EXPECT_EQ(difference(full_tensor(actual), expected, 1e-2), "");
  });
}

TEST(Ops, AsynchronousRedistributionWaitsAtFirstUse) {
  in_every_world([] {
    for (auto from : {"[S(0)]", "[P(sum)]", "[SS(0, 2)]"}) {
      for (auto to : {"[R]", "[S(1)]"}) {
        auto moved = redistribute(cut(ramp({5, 3}), from), parse_placements(to), true);
        EXPECT_EQ(difference(full_tensor(moved + 1), ramp({5, 3}) + 1, 1e-12), "") << from << to;
      }
    }
  });
}

TEST(Ops, ConjugatesTravelAsTheirValues) {
  in_every_world([] {
    auto x = at::complex(ramp({5, 3}), ramp({5, 3}) + 1);
    for (auto placements : {"[S(0)]", "[P(sum)]", "[R]"}) {
      EXPECT_EQ(difference(full_tensor(cut(x, placements).conj()), x.conj().resolve_conj(), 1e-12), "") << placements;
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_ops_test
