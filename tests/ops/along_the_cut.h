#pragma once
// Calls a function on a whole tensor and on the same tensor cut along the dim that it works on; compares values and
// gradients.

#include <functional>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {

using OpOfOne = std::function<std::vector<at::Tensor>(const at::Tensor&)>;

inline at::Tensor scrambled(std::vector<int64_t> sizes) {
  auto count = c10::multiply_integers(sizes);
  return ((at::arange(count, at::kDouble) * 17) % std::max<int64_t>(count, 1) / 4 - 1.5).reshape(sizes);
}

inline at::Tensor weighted_sum(const std::vector<at::Tensor>& outputs) {
  at::Tensor loss;
  for (auto& out : outputs) {
    if (!out.requires_grad()) continue;
    auto whole = is_dtensor(out) ? full_tensor(out) : out;
    auto term = (whole * (at::arange(whole.numel(), at::kDouble).reshape(whole.sizes()) + 1)).sum();
    loss = loss.defined() ? loss + term : term;
  }
  return loss;
}

inline void same_as_plain(const char* what, std::vector<int64_t> sizes, const OpOfOne& function, bool gradient = true) {
  for_each_world({1, 2, 3, 4}, [&](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      std::vector<Placements> layouts;
      for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
        layouts.push_back(Placements(shape.size(), Shard(d)));
        if (shape.size() > 1) layouts.push_back({Shard(d), Replicate()});
        if (shape.size() > 1 && sizes.size() > 1) layouts.push_back({Shard(d), Shard(d == 0 ? 1 : 0)});
      }
      for (auto& placements : layouts) {
        SCOPED_TRACE(std::string(what) + " on " + str(placements) + " of " + mesh.text());
        auto whole = scrambled(sizes);
        auto cut = lay_out(whole, mesh, placements);
        if (gradient) whole.requires_grad_(), cut.requires_grad_();
        auto expected = function(whole), actual = function(cut);
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i) {
          EXPECT_EQ(difference(full_tensor(actual[i]).detach(), expected[i].detach(), 1e-9), "") << "output " << i;
        }
        if (!gradient) continue;
        auto wanted = torch::autograd::grad({weighted_sum(expected)}, {whole})[0];
        auto found = torch::autograd::grad({weighted_sum(actual)}, {cut})[0];
        EXPECT_EQ(difference(full_tensor(found), wanted, 1e-9), "") << "gradient";
      }
    }
  });
}

// What moves when the function is called on a tensor cut by rows over four ranks.
inline std::string traffic(std::vector<int64_t> sizes, const OpOfOne& function, int64_t ranks = 4) {
  auto world = simulate(ranks);
  auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
  auto cut = lay_out(scrambled(sizes), mesh, {Shard(0)});
  CommDebugMode comms;
  function(cut);
  return comms.text();
}

}  // namespace intarsia
