#include <torch/torch.h>

#include "tests/ops/along_the_cut.h"

namespace intarsia::ops_order_test {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors both(const std::tuple<at::Tensor, at::Tensor>& pair) { return {std::get<0>(pair), std::get<1>(pair)}; }

TEST(Order, ValuesAndGradientsAreThoseOfThePlainOp) {
  for (int64_t dim : {0, 1}) {
    same_as_plain("cumsum", {7, 5}, [&](auto& x) { return Tensors{x.cumsum(dim)}; });
    same_as_plain("cumprod", {7, 5}, [&](auto& x) { return Tensors{(x + 0.1).cumprod(dim)}; });
    same_as_plain("logcumsumexp", {7, 5}, [&](auto& x) { return Tensors{x.logcumsumexp(dim)}; });
    same_as_plain("cummax", {7, 5}, [&](auto& x) { return both(x.cummax(dim)); });
    same_as_plain("cummin", {7, 5}, [&](auto& x) { return both(x.cummin(dim)); });
    same_as_plain("max", {7, 5}, [&](auto& x) { return both(x.max(dim)); });
    same_as_plain("min", {7, 5}, [&](auto& x) { return both(x.min(dim, true)); });
    same_as_plain("argmax", {7, 5}, [&](auto& x) { return Tensors{x.argmax(dim), x.argmin(dim, true)}; }, false);
    same_as_plain("topk", {7, 5}, [&](auto& x) { return both(x.topk(3, dim)); });
    same_as_plain("sort", {7, 5}, [&](auto& x) { return both(x.sort(dim)); });
    same_as_plain("median", {7, 5}, [&](auto& x) { return both(x.median(dim)); });
    same_as_plain("kthvalue", {7, 5}, [&](auto& x) { return both(x.kthvalue(2, dim)); });
  }
  same_as_plain("argmax of all", {7, 5}, [](auto& x) { return Tensors{x.argmax(), x.argmin()}; }, false);
  same_as_plain("argmax of a vector", {7}, [](auto& x) { return Tensors{x.argmax(), x.argmin()}; }, false);
}

TEST(Order, TiesAndNansAreDecidedAsThePlainOpDecides) {
  auto tied = [](const at::Tensor& x) { return (x > 0).to(at::kDouble); };
  for (int64_t dim : {0, 1}) {
    same_as_plain("max", {7, 5}, [&](auto& x) { return both(tied(x).max(dim)); }, false);
    same_as_plain("argmin", {7, 5}, [&](auto& x) { return Tensors{tied(x).argmin(dim)}; }, false);
    same_as_plain("cummax", {7, 5}, [&](auto& x) { return both(tied(x).cummax(dim)); }, false);
    same_as_plain("max of nan", {7, 5}, [&](auto& x) { return Tensors{(x.sign() - 1).log().argmax(dim)}; }, false);
  }
}

TEST(Order, OnlyTotalsWinnersAndCandidatesMove) {
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.cumsum(0)}; }), "all_gather tp 72B\n");
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.argmax(0)}; }), "all_gather tp 72B\nall_gather tp 72B\n");
  EXPECT_EQ(traffic({80, 3}, [](auto& x) { return both(x.topk(2, 0)); }), "all_gather tp 144B\nall_gather tp 144B\n");
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.cumsum(1), x.argmax(1)}; }), "");
}

TEST(Order, BatchesOfLinearAlgebraStayWhereTheyAre) {
  auto of = [](const at::Tensor& x) {
    return (x.unsqueeze(2) * x.unsqueeze(1)).tril() * 0.01 + at::diag_embed(x.sigmoid() + 1);
  };
  auto inverse = [of](const at::Tensor& x) { return Tensors{at::linalg_inv(of(x))}; };
  EXPECT_EQ(traffic({8, 3}, inverse), "all_gather tp 24B\n");  // whether one is singular concerns all ranks
  EXPECT_EQ(traffic({8, 3}, [of](auto& x) { return Tensors{at::linalg_matrix_exp(of(x))}; }), "");
  same_as_plain("inverse", {7, 3}, inverse);
  same_as_plain("determinant", {7, 3}, [of](auto& x) { return Tensors{at::linalg_det(of(x))}; });
  same_as_plain("solve", {7, 3}, [of](auto& x) { return Tensors{at::linalg_solve(of(x), x)}; });
}

TEST(Order, ARunningSumStaysCut) {
  auto world = simulate(3);
  auto x = lay_out(scrambled({7, 2}), init_device_mesh(at::kCPU, {3}), {Shard(0)});
  EXPECT_EQ(str(placements_of(x.cumsum(0))), "[S(0)]");
  EXPECT_EQ(str(placements_of(std::get<0>(x.cummax(0)))), "[S(0)]");
}

}  // namespace
}  // namespace intarsia::ops_order_test
