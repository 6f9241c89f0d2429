// Views alias: writing through a view changes the base and the other way round, wherever the shards lie.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/worlds.h"

namespace intarsia::tensor_views_test {
namespace {

using View = std::function<at::Tensor(const at::Tensor&)>;

DeviceMesh line() { return init_device_mesh(at::kCPU, {current_world().size()}); }
at::Tensor ramp() { return at::arange(24, at::kDouble).reshape({4, 6}); }

const std::vector<std::pair<const char*, View>> kViews = {
    {"select(0, 2)", [](const at::Tensor& x) { return x.select(0, 2); }},
    {"select(1, -1)", [](const at::Tensor& x) { return x.select(1, -1); }},
    {"slice(0, 1, 3)", [](const at::Tensor& x) { return x.slice(0, 1, 3); }},
    {"slice(1, 0, 6, 2)", [](const at::Tensor& x) { return x.slice(1, 0, 6, 2); }},
    {"view([24])", [](const at::Tensor& x) { return x.view({24}); }},
    {"view([2, 2, 6])", [](const at::Tensor& x) { return x.view({2, 2, 6}); }},
    {"t()", [](const at::Tensor& x) { return x.t(); }},
    {"unsqueeze(1)", [](const at::Tensor& x) { return x.unsqueeze(1); }},
    {"split(2, 0)[1]", [](const at::Tensor& x) { return x.split(2, 0)[1]; }},
    {"unbind(1)[3]", [](const at::Tensor& x) { return x.unbind(1)[3]; }},
    {"diagonal()", [](const at::Tensor& x) { return x.diagonal(); }},
    {"t().select(0, 3).slice(0, 1, 3)", [](const at::Tensor& x) { return x.t().select(0, 3).slice(0, 1, 3); }},
    {"select(0, 1).select(0, 2)", [](const at::Tensor& x) { return x.select(0, 1).select(0, 2); }},
    {"as_strided", [](const at::Tensor& x) { return x.as_strided({3, 2}, {6, 2}, 1); }},
    {"lift", [](const at::Tensor& x) { return at::lift(x); }},
};
const std::vector<Placement> kPlacements = {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), StridedShard(1, 3)};

template <class Body>
void for_each_view(Body body, const std::string& but = "") {
  in_every_world([&] {
    for (auto& [name, view] : kViews) {
      if (name == but) continue;
      for (auto& placement : kPlacements) {
        SCOPED_TRACE(std::string(name) + " of " + str(placement));
        body(view, placement);
      }
    }
  });
}

TEST(Views, WritingThroughAViewChangesTheBase) {
  for_each_view([](const View& view, const Placement& placement) {
    auto plain = ramp(), x = lay_out(plain, line(), {placement});
    view(plain).mul_(10);
    view(x).mul_(10);
    EXPECT_EQ(difference(full_tensor(x), plain), "");
  });
}

TEST(Views, MadeInInferenceModeAreOfItIfTheirBaseIs) {
  auto compare = [](const View& view, const Placement& placement) {
    auto plain = ramp(), x = lay_out(plain, line(), {placement});
    {
      c10::InferenceMode inference;
      auto inside = view(x);
      EXPECT_EQ(difference(full_tensor(inside), view(plain)), "");
      EXPECT_FALSE(inside.is_inference());
      inside.mul_(2);
      EXPECT_TRUE(view(x.clone()).is_inference());
    }
    view(plain).mul_(2);
    EXPECT_EQ(difference(full_tensor(x), plain), "");
  };
  for_each_view(compare, "lift");  // which LibTorch does not know as a view
}

TEST(Views, OfAPendingValueAreSettledWithIt) {
  in_every_world([] {
    for (auto& view : {View([](auto& x) { return at::lift(x); }), View([](auto& x) { return x.t(); }),
                       View([](auto& x) { return x.detach(); })}) {
      auto plain = ramp() - 8, x = lay_out(plain, line(), {Partial()});
      view(plain).relu_();
      view(x).relu_();
      EXPECT_EQ(difference(full_tensor(x), plain), "");
    }
  });
}

TEST(Views, WritingToTheBaseChangesAViewMadeBefore) {
  for_each_view([](const View& view, const Placement& placement) {
    auto plain = ramp(), x = lay_out(plain, line(), {placement});
    auto before = view(plain), seen = view(x);
    plain.add_(100), x.add_(100);
    EXPECT_EQ(difference(full_tensor(seen), before), "");
  });
}

TEST(Views, OneViewSeesWhatAnotherWrites) {
  for_each_view([](const View& view, const Placement& placement) {
    auto plain = ramp(), x = lay_out(plain, line(), {placement});
    auto seen = x.select(0, 1), plain_seen = plain.select(0, 1);
    view(plain).zero_(), view(x).zero_();
    EXPECT_EQ(difference(full_tensor(seen), plain_seen), "");
  });
}

TEST(Views, GradientsPassAnInPlaceStepOnAView) {
  for_each_view([](const View& view, const Placement& placement) {
    auto run = [&](const at::Tensor& leaf) {
      auto base = leaf * 2;
      auto part = view(base);
      try {
        part.mul_(3);
      } catch (const c10::Error&) {
        return at::Tensor();  // autograd forbids writing to one of several views
      }
      auto out = base * base;
      (is_dtensor(out) ? full_tensor(out) : out).sum().backward();
      return leaf.grad();
    };
    auto plain = ramp().requires_grad_();
    auto x = lay_out(ramp(), line(), {placement}).requires_grad_();
    auto expected = run(plain), actual = run(x);
    ASSERT_EQ(expected.defined(), actual.defined());
    if (!expected.defined()) return;
    EXPECT_EQ(difference(full_tensor(actual), expected, 1e-12), "");
  });
}

TEST(Views, ATensorWrittenByItsViewKeepsItsLayout) {
  in_every_world([] {
    auto x = lay_out(ramp(), line(), {Shard(0)});
    x.select(0, 2).fill_(7);
    EXPECT_EQ(str(placements_of(x)), "[S(0)]");
  });
}

TEST(Views, InPlaceViewOpsChangeTheShape) {
  in_every_world([] {
    auto x = lay_out(ramp().view({4, 1, 6}), line(), {Shard(0)});
    x.squeeze_(1).t_().unsqueeze_(0);
    EXPECT_EQ(difference(full_tensor(x), ramp().t().unsqueeze(0)), "");
    EXPECT_EQ(str(placements_of(x)), "[S(2)]");
  });
}

TEST(Views, AViewOutlivesAChangeOfShapeOfItsBase) {
  in_every_world([] {
    auto x = lay_out(ramp(), line(), {Shard(0)});
    auto row = x.select(0, 2);
    x.t_();
    row.zero_();
    auto expected = ramp();
    expected.select(0, 2).zero_();
    EXPECT_EQ(difference(full_tensor(x), expected.t()), "");
  });
}

TEST(Views, DetachSharesMemory) {
  in_every_world([] {
    auto x = lay_out(ramp(), line(), {Shard(0)}).requires_grad_();
    auto d = x.detach();
    EXPECT_FALSE(d.requires_grad());
    d.add_(1);
    EXPECT_EQ(difference(full_tensor(x.detach()), ramp() + 1), "");
  });
}

TEST(Views, ShareMemoryWithWhatTheyViewAndNothingElse) {
  in_every_world([] {
    auto x = lay_out(ramp(), line(), {Shard(0)});
    auto row = x.select(0, 2), corner = x.t().diagonal().slice(0, 1, 2);
    for (auto& view : {x.t(), row, corner, x.detach(), to_local(x)})
      EXPECT_TRUE(is_alias_of(x, view) && is_alias_of(view, x));
    EXPECT_TRUE(is_alias_of(row, corner));
    for (auto& other : {x.clone(), redistribute(x, {Replicate()}), x + 1, ramp()}) EXPECT_FALSE(is_alias_of(x, other));
    auto text = error_text<c10::Error>([&] { x.is_alias_of(row); });
    EXPECT_EQ(text, "[storage] a distributed tensor of shape [4, 6], [S(0)] on " + line().text() +
                        ", has no memory of its own. Use "
                        "to_local(tensor) or shards_of(tensor) for the local shard, or full_tensor(tensor) for the "
                        "whole; is_alias_of(a, b) "
                        "tells whether two tensors share memory. To save a module, use checkpoint::save or "
                        "full_state_dict(module), and to "
                        "load one checkpoint::load or load_full_state_dict(module, dict).");
  });
}

TEST(Views, SqueezeLeavesADimThatIsOneOnlyOnItsRank) {
  auto world = simulate(4);
  auto x = lay_out(ramp(), line(), {Shard(0)});
  EXPECT_EQ(difference(full_tensor(x.squeeze()), ramp()), "");
  EXPECT_EQ(difference(full_tensor(x.squeeze(0)), ramp()), "");
}

}  // namespace
}  // namespace intarsia::tensor_views_test
