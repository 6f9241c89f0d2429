// Whatever an op does along a cut is decided once, kept, traced and judged like a row of its rule.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/comm/implicit_moves.h"
#include "intarsia/dispatch/cache.h"
#include "intarsia/intarsia.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::dispatch_lowerings_test {
namespace {

namespace F = torch::nn::functional;

struct Case {
  const char* op;
  std::function<at::Tensor(const at::Tensor&)> call;  // on a [2, 4, 6, 8] that is cut along its last dim
  const char* move = nullptr;                         // what an error names, if it is a redistribution
};

at::Tensor whole(const at::Tensor& tensor, const at::Tensor& like) {
  return distribute_tensor(tensor, mesh_of(like), Placements(mesh_of(like).ndim(), Replicate()), std::nullopt);
}

std::vector<Case> cases() {
  return {
      {"aten::native_layer_norm", [](auto& x) { return std::get<0>(at::native_layer_norm(x, {8}, {}, {}, 1e-5)); }},
      {"aten::_softmax", [](auto& x) { return at::_softmax(x, 3, false); }, "all_reduce tp [P(max)] -> [R]"},
      {"aten::cumsum", [](auto& x) { return at::cumsum(x, 3); }},
      {"aten::topk", [](auto& x) { return std::get<0>(at::topk(x, 2, 3)); }},
      {"aten::flip", [](auto& x) { return at::flip(x, {3}); }},
      {"aten::select.int", [](auto& x) { return at::select(x, 3, 5); }},
      {"aten::convolution", [](auto& x) { return at::conv2d(x, whole(at::ones({3, 4, 3, 3}), x), {}, 1, 1); }},
      {"aten::max_pool2d_with_indices",
       [](auto& x) { return std::get<0>(at::max_pool2d_with_indices(x, {3, 3}, {1, 1}, {1, 1})); }},
      {"aten::upsample_bilinear2d", [](auto& x) { return at::upsample_bilinear2d(x, {12, 9}, false); }},
      {"aten::index_select", [](auto& x) { return at::index_select(x, 3, whole(at::tensor({7, 0}), x)); }},
  };
}

at::Tensor cut_image(int64_t n) {
  return distribute_tensor(at::arange(384.).reshape({2, 4, 6, 8}).sin(), init_device_mesh(at::kCPU, {n}, {"tp"}),
                           {Shard(3)});
}

TEST(Ways, AreTracedAsChosenByDispatchForTheirOp) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = cut_image(n);
    for (auto& c : cases()) {
      CommDebugMode comms;
      c.call(x);
      EXPECT_FALSE(comms.events().empty()) << c.op;
      for (auto& event : comms.events()) {
        EXPECT_EQ(event.op, c.op) << str(event);
        EXPECT_TRUE(event.implicit) << c.op << ": " << str(event);
      }
    }
  });
}

TEST(Ways, AreJudgedByThePolicyForImplicitMoves) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = cut_image(n);
    for (auto& c : cases()) {
      ImplicitMovesScope scope(ImplicitMoves::error);
      auto text = error_text<c10::Error>([&] { c.call(x); });
      CommDebugMode comms;
      {
        ImplicitMovesScope allowed(ImplicitMoves::allow);
        c.call(x);
      }
      auto first = comms.text().substr(0, comms.text().find('\n'));
      EXPECT_EQ(text, c10::str("[", c.op, "] Implicit redistribution occurred for a tensor: ",
                               c.move ? std::string(c.move) : first,
                               ". Call redistribute on it first, or leave the scope that forbids implicit moves."));
    }
  });
}

TEST(Ways, AreDecidedOnceAndFoundFromThenOn) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = cut_image(n);
    auto weight = whole(at::ones({3, 4, 3, 3}), x);
    auto call = [&] { return at::convolution(x, weight, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1); };
    call();
    auto before = cache_counts();
    call();
    EXPECT_EQ(cache_counts().found, before.found + 1);
    EXPECT_EQ(cache_counts().missed, before.missed);
    for (auto& c : cases()) {
      c.call(x);
      auto known = cache_counts();
      c.call(x);
      EXPECT_EQ(cache_counts().missed, known.missed) << c.op;
    }
  });
}

TEST(Ways, DoNotDependOnValues) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = cut_image(n);
    auto traced = [&](const at::Tensor& index) {
      CommDebugMode comms;
      at::index_select(x, 3, whole(index, x));
      std::string text;
      for (auto& event : comms.events()) text += str(event) + "; ";
      return text;
    };
    auto index = at::tensor({7, 0, 3});
    auto wrong = error_text<c10::Error>([&] { at::index_select(x, 3, whole(at::tensor({7, 99, 3}), x)); });
    auto after = traced(index);
    auto plain = error_text<c10::Error>([] { at::index_select(at::ones({2, 4, 6, 8}), 3, at::tensor({7, 99, 3})); });
    EXPECT_EQ(wrong.substr(0, wrong.find('\n')), plain.substr(0, plain.find('\n')));
    EXPECT_EQ(after.find("all_gather"), std::string::npos) << after;
    EXPECT_EQ(traced(index), after);
  });
}

}  // namespace
}  // namespace intarsia::dispatch_lowerings_test
