// Losses with every reduction, on every cut.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/compare.h"
#include "tests/support/worlds.h"

namespace intarsia::ops_losses_test {
namespace {

DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }

using Loss = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y, int64_t reduction)>;

TEST(Losses, AreExactOnEveryCut) {
  std::vector<std::pair<const char*, Loss>> losses = {
      {"mse", [](auto& x, auto& y, auto r) { return at::mse_loss(x, y, r); }},
      {"l1", [](auto& x, auto& y, auto r) { return at::l1_loss(x, y, r); }},
      {"smooth_l1", [](auto& x, auto& y, auto r) { return at::smooth_l1_loss(x, y, r, 0.5); }},
      {"huber", [](auto& x, auto& y, auto r) { return at::huber_loss(x, y, r, 0.7); }},
      {"bce", [](auto& x, auto& y, auto r) { return at::binary_cross_entropy(x.sigmoid(), y.sigmoid(), {}, r); }},
      {"bce_with_logits",
       [](auto& x, auto& y, auto r) {
         return at::binary_cross_entropy_with_logits(x * 9, y.sigmoid(), y.detach().abs(), y.detach().abs(), r);
       }},
      {"kl_div", [](auto& x, auto& y, auto r) { return at::kl_div(x, y.sigmoid(), r); }},
      {"kl_div of logs", [](auto& x, auto& y, auto r) { return at::kl_div(x, y, r, true); }},
      {"soft_margin", [](auto& x, auto& y, auto r) { return at::soft_margin_loss(x, y.detach().sign(), r); }},
      {"poisson", [](auto& x, auto& y, auto r) { return at::poisson_nll_loss(x, y.abs(), true, false, 1e-8, r); }},
      {"cosine", [](auto& x, auto& y, auto r) { return at::cosine_similarity(x, y, r == 1 ? 1 : 0); }},
      {"hinge", [](auto& x, auto& y, auto r) { return at::hinge_embedding_loss(x, y.detach().sign(), 1.0, r); }},
      {"margin", [](auto& x, auto& y, auto r) { return at::margin_ranking_loss(x, y, y.detach().sign(), 0.1, r); }},
      {"triplet",
       [](auto& x, auto& y, auto r) { return at::triplet_margin_loss(x, y, x * y, 1.0, 2, 1e-6, false, r); }},
  };
  for (int64_t n : {2, 3}) {
    auto world = simulate(n);
    for (auto& [name, loss] : losses) {
      for (int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
        auto body = [&, &loss = loss](auto& t) { return loss(t[0], t[1], reduction); };
        for (auto x : {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]"}) {
          for (auto y : {"[R]", "[S(0)]", "[S(1)]"}) {
            EXPECT_EQ(compare(body, {waves({5, 4}), waves({5, 4}, 1.9)}, line(n), {x, y}), "")
                << name << " " << x << " " << y << " reduction " << reduction << " on " << n;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace intarsia::ops_losses_test
