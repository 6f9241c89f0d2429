// Ops on what to_local yields in a simulation: every rank must get what it would get alone, values and gradients.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"

namespace intarsia::per_rank_per_rank_test {
namespace {

// Five rows over four ranks are 2, 2, 1, 0.
struct Ranks {
  Simulation world = simulate(4);
  DeviceMesh mesh = init_device_mesh(at::kCPU, {4});

  at::Tensor cut(const at::Tensor& whole) { return distribute_tensor(whole, mesh, {Shard(0)}); }
};

using Op = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

at::Tensor nested_grad(const at::Tensor& y, const at::Tensor& x) {
  auto g = torch::autograd::grad({(y * y).sum()}, {x}, {}, true, true)[0];
  return g * g;
}

// Empty if each rank's value and gradients are exactly those of a plain run on the rank's own rows; else what differs.
std::string by_rank(const Op& op, const at::Tensor& whole, const at::Tensor& weight, double tolerance = 0) {
  Ranks ranks;
  auto x = ranks.cut(whole).requires_grad_();
  auto w = weight.clone().requires_grad_();
  auto local = to_local(x);
  auto y = op(local, w);
  (y * y).sum().backward();
  for (size_t slot = 0; slot < 4; ++slot) {
    auto where = "rank " + std::to_string(slot) + ": ";
    auto own = shards_of(x)[slot].detach().clone().requires_grad_();
    auto own_w = weight.clone().requires_grad_();
    auto expected = op(own, own_w);
    (expected * expected).sum().backward();
    auto wrong = difference(value_at(y, slot).detach(), expected.detach(), tolerance);
    if (!wrong.empty()) return where + "value: " + wrong;
    if (x.grad().defined() != own.grad().defined()) return where + "one side has no gradient";
    if (own.grad().defined())
      wrong = difference(shards_of(redistribute(x.grad(), {Shard(0)}))[slot], own.grad(), tolerance);
    if (!wrong.empty()) return where + "gradient: " + wrong;
    if (w.grad().defined() != own_w.grad().defined()) return where + "one side has no gradient of the weight";
    if (own_w.grad().defined()) wrong = difference(value_at(w.grad(), slot), own_w.grad(), tolerance);
    if (!wrong.empty()) return where + "gradient of the weight: " + wrong;
  }
  return "";
}

using T = const at::Tensor&;
namespace F = torch::nn::functional;
using torch::indexing::Slice;

at::Tensor classes(T x) { return (x.select(1, 0) > 0).to(at::kLong); }

struct Case {
  const char* name;
  Op op;
};

class PerRankOps : public testing::TestWithParam<Case> {};

TEST_P(PerRankOps, GiveEachRankWhatItWouldGetAlone) {
  EXPECT_EQ(by_rank(GetParam().op, waves({5, 6}), waves({6, 3}, 0.3)), "");
}

INSTANTIATE_TEST_SUITE_P(
    All, PerRankOps,
    testing::Values(
        Case{"sum", [](T x, T w) { return x.sum(); }}, Case{"sum_dim", [](T x, T w) { return x.sum(0); }},
        Case{"sum_keepdim", [](T x, T w) { return x - x.sum(1, true); }},
        Case{"mean_dim", [](T x, T w) { return x.mean(1); }},
        Case{"var_dim", [](T x, T w) { return x.var(1); }}, Case{"std_dim", [](T x, T w) { return at::std(x, 1); }},
        Case{"prod", [](T x, T w) { return x.prod(); }}, Case{"norm", [](T x, T w) { return x.norm(); }},
        Case{"logsumexp", [](T x, T w) { return x.logsumexp(1); }}, Case{"amax", [](T x, T w) { return x.amax(1); }},
        Case{"max_dim", [](T x, T w) { return std::get<0>(x.max(1)); }},
        Case{"cumsum", [](T x, T w) { return x.cumsum(0); }},
        Case{"reshape", [](T x, T w) { return x.reshape({-1, 3, 2}); }},
        Case{"flatten", [](T x, T w) { return x.flatten(); }},
        Case{"view", [](T x, T w) { return x.view({-1, 2}); }}, Case{"view_all", [](T x, T w) { return x.view(-1); }},
        Case{"unflatten", [](T x, T w) { return x.unflatten(1, {2, 3}); }},
        Case{"t", [](T x, T w) { return x.t() * 2; }},
        Case{"transpose", [](T x, T w) { return x.transpose(0, 1).contiguous(); }},
        Case{"permute_reshape", [](T x, T w) { return x.permute({1, 0}).reshape({-1}); }},
        Case{"unsqueeze", [](T x, T w) { return x.unsqueeze(1) * x.unsqueeze(2); }},
        Case{"mm", [](T x, T w) { return x.mm(w); }}, Case{"matmul", [](T x, T w) { return at::matmul(x, w); }},
        Case{"matmul_3d", [](T x, T w) { return at::matmul(x.view({-1, 1, 6}), w); }},
        Case{"matmul_self", [](T x, T w) { return at::matmul(x, x.t()); }},
        Case{"linear", [](T x, T w) { return at::linear(x, w.t(), w[0]); }},
        Case{"addmm", [](T x, T w) { return at::addmm(w[0], x, w); }},
        Case{"einsum", [](T x, T w) { return at::einsum("bi,ij->bj", {x, w}); }},
        Case{"softmax", [](T x, T w) { return x.softmax(1); }},
        Case{"log_softmax", [](T x, T w) { return x.log_softmax(-1); }},
        Case{"softmax_rows", [](T x, T w) { return x.softmax(0); }},
        Case{"cat", [](T x, T w) { return at::cat({x, x * 2}, 0); }},
        Case{"cat_plain", [](T x, T w) { return at::cat({x, w.t()}, 0); }},
        Case{"cat_columns", [](T x, T w) { return at::cat({x, x.sum(1, true)}, 1); }},
        Case{"stack", [](T x, T w) { return at::stack({x, x * x}, 1); }},
        Case{"slice", [](T x, T w) { return x.slice(0, 1) * 2; }},
        Case{"slice_columns", [](T x, T w) { return x.slice(1, 1, 4); }},
        Case{"index_slice", [](T x, T w) { return x.index({Slice(0, 1), Slice(2)}); }},
        Case{"narrow", [](T x, T w) { return x.narrow(1, 2, 3); }},
        Case{"select", [](T x, T w) { return x.select(1, 2); }},
        Case{"flip", [](T x, T w) { return x.flip(0); }}, Case{"roll", [](T x, T w) { return x.roll(1, 0); }},
        Case{"chunk", [](T x, T w) { return x.chunk(2, 1)[1] * 3; }},
        Case{"split", [](T x, T w) { return x.split(4, 1)[0] + 1; }},
        Case{"unbind", [](T x, T w) { return x.unbind(1)[3] * 2; }},
        Case{"broadcast_column", [](T x, T w) { return x * x.select(1, 0).unsqueeze(1); }},
        Case{"broadcast_row", [](T x, T w) { return x * w.select(1, 0); }},
        Case{"broadcast_rank_one", [](T x, T w) { return x * x.sum().reshape({1}); }},
        Case{"broadcast_up", [](T x, T w) { return x.sum(1, true) + w.t().select(0, 1); }},
        Case{"expand", [](T x, T w) { return x.sum(1, true).expand({-1, 4}); }},
        Case{"expand_as", [](T x, T w) { return w.select(1, 0).expand_as(x) * x; }},
        Case{"expand_rows", [](T x, T w) { return x.sum(0, true).expand_symint({x.sym_size(0), 6}); }},
        Case{"repeat", [](T x, T w) { return x.repeat({2, 1}); }},
        Case{"pointwise", [](T x, T w) { return at::gelu(x).tanh() + x.sigmoid() / (x * x + 1); }},
        Case{"where", [](T x, T w) { return at::where(x > 0, x, x * 0.1); }},
        Case{"clamp", [](T x, T w) { return x.clamp(-1, 1); }},
        Case{"pow", [](T x, T w) { return x.pow(3); }},
        Case{"layer_norm", [](T x, T w) { return at::layer_norm(x, {6}, w.select(1, 0), w.select(1, 1)); }},
        Case{"rms_norm", [](T x, T w) { return at::rms_norm(x, {6}, w.select(1, 0)); }},
        Case{"conv1d", [](T x, T w) { return at::conv1d(x.view({-1, 2, 3}), w.reshape({3, 2, 3}), w[0], 1, 1); }},
        Case{"conv2d", [](T x, T w) {
               auto options = F::Conv2dFuncOptions().padding(1);
               return F::conv2d(x.view({-1, 1, 2, 3}), w.reshape({3, 1, 2, 3}), options);
             }},
        Case{"max_pool", [](T x, T w) { return at::max_pool1d(x.unsqueeze(1), 2); }},
        Case{"adaptive_pool", [](T x, T w) { return at::adaptive_avg_pool1d(x.unsqueeze(1), 3); }},
        Case{"cross_entropy", [](T x, T w) {
               return at::cross_entropy_loss(at::matmul(x, w), classes(x), {}, at::Reduction::Sum);
             }},
        Case{"cross_entropy_module", [](T x, T w) {
               auto options = F::CrossEntropyFuncOptions().reduction(torch::kNone);
               return F::cross_entropy(at::matmul(x, w), classes(x), options);
             }},
        Case{"mse_loss", [](T x, T w) { return at::mse_loss(x, x * x, at::Reduction::Sum); }},
        Case{"attention", [](T x, T w) {
               auto q = x.view({-1, 1, 2, 3});
               return at::scaled_dot_product_attention(q, q * 2, q);
             }},
        Case{"embedding", [](T x, T w) { return at::embedding(w, (x > 0).to(at::kLong)) * x.unsqueeze(2); }},
        Case{"index_select", [](T x, T w) { return x.index_select(1, at::tensor({0, 2, 2})); }},
        Case{"gather", [](T x, T w) { return x.gather(1, (x > 0).to(at::kLong)); }},
        Case{"index_mask", [](T x, T w) { return x.index({x > 0.5}); }},
        Case{"masked_fill", [](T x, T w) { return x.masked_fill(x > 0.5, 0.1); }},
        Case{"sort", [](T x, T w) { return std::get<0>(x.sort(1)); }},
        Case{"topk", [](T x, T w) { return std::get<0>(x.topk(2, 1)); }},
        Case{"tril", [](T x, T w) { return x.tril(); }},
        Case{"pad", [](T x, T w) { return at::constant_pad_nd(x, {1, 2}); }},
        Case{"new_zeros", [](T x, T w) { return x + x.new_ones_symint({x.sym_size(0), 1}); }},
        Case{"by_numel", [](T x, T w) { return x * at::Scalar(x.sym_numel() + 1); }},
        Case{"by_half_the_numel", [](T x, T w) { return x * at::Scalar(c10::SymFloat(x.sym_numel()) / 2.0); }},
        Case{"as_strided", [](T x, T w) { return x.as_strided_symint({x.sym_size(0), 2}, {6, 3}, 1); }},
        Case{"in_place", [](T x, T w) { auto y = x * 2; y.mul_(x); y.add_(w.select(1, 0)); return y; }},
        Case{"in_place_by_leaf_weight", [](T x, T w) { auto y = at::zeros_like(x); y.add_(w.select(1, 1)); return y * x; }},
        Case{"in_place_through_a_view", [](T x, T w) { auto y = x * 2; y.select(1, 2).mul_(x.select(1, 0)); y.slice(0, 1).zero_(); return y * x; }},
        Case{"in_place_through_views_of_views", [](T x, T w) { auto y = x * 2; y.view({-1, 2, 3}).select(1, 0).exp_(); return y * y; }},
        Case{"view_read_after_write", [](T x, T w) { auto y = x * 2; auto v = y.select(1, 1); y.mul_(x); return v * 3; }},
        Case{"fill_row", [](T x, T w) { auto y = x.clone(); y.narrow(1, 0, 2).copy_(x.narrow(1, 2, 2)); return y; }},
        Case{"squeeze_in_place", [](T x, T w) { auto y = x * 3; y.unsqueeze_(0); return y.sum(2); }},
        Case{"detach", [](T x, T w) { return x.detach() * x; }},
        Case{"dropout_off", [](T x, T w) { return at::dropout(x, 0.5, false); }},
        Case{"to_double", [](T x, T w) { return x.to(at::kDouble) * x.to(at::kFloat); }}),
    [](auto& info) { return std::string(info.param.name); });

TEST(PerRank, GradientsOfGradientsAreThoseOfTheRankAlone) {
  auto of_input = [](T x, T w) { return nested_grad(x.tanh().mm(w).flatten(), x); };
  auto of_weight = [](T x, T w) { return nested_grad(x.softmax(1).mm(w), w); };
  EXPECT_EQ(by_rank(of_input, waves({5, 6}), waves({6, 3}, 0.3), 1e-11), "");
  EXPECT_EQ(by_rank(of_weight, waves({5, 6}), waves({6, 3}, 0.3), 1e-11), "");
}

TEST(PerRank, MeanAndVarianceOfAnEmptyShardAreNotANumberAsOnTheRankAlone) {
  Ranks ranks;
  auto x = ranks.cut(waves({5, 6})).requires_grad_();
  auto y = to_local(x).mean() + to_local(x).var();
  y.backward();
  for (size_t slot = 0; slot < 4; ++slot) {
    auto own = shards_of(x)[slot].detach().clone().requires_grad_();
    auto expected = own.mean() + own.var();
    expected.backward();
    EXPECT_TRUE(at::allclose(value_at(y, slot), expected, 0, 0, true)) << slot;
    EXPECT_TRUE(at::allclose(shards_of(x.grad())[slot], own.grad(), 0, 0, true)) << slot;
  }
}

TEST(PerRank, ThereAndBackIsADistributedTensorWithGradients) {
  Ranks ranks;
  auto whole = waves({5, 6});
  auto x = ranks.cut(whole).requires_grad_();
  FromLocalOptions options;
  options.shape = {5, 3};
  auto y = from_local(at::linear(to_local(x), waves({3, 6}, 0.3)).relu(), ranks.mesh, {Shard(0)}, options);
  (full_tensor(y) * waves({5, 3}, 0.2)).sum().backward();
  auto plain = whole.clone().requires_grad_();
  auto expected = at::linear(plain, waves({3, 6}, 0.3)).relu();
  (expected * waves({5, 3}, 0.2)).sum().backward();
  EXPECT_EQ(difference(full_tensor(y).detach(), expected.detach(), 1e-12), "");
  EXPECT_EQ(difference(full_tensor(x.grad()), plain.grad(), 1e-12), "");
}

TEST(PerRank, RunCheckFindsTheShapeOfUnevenLocals) {
  Ranks ranks;
  FromLocalOptions options;
  options.run_check = true;
  auto y = from_local(to_local(ranks.cut(waves({5, 6}))).flatten(1) * 2, ranks.mesh, {Shard(0)}, options);
  EXPECT_EQ(difference(full_tensor(y), waves({5, 6}) * 2), "");
}

TEST(PerRank, GradPlacementsSayHowTheGradientsLie) {
  Ranks ranks;
  auto x = distribute_tensor(waves({5, 6}), ranks.mesh, {Replicate()}).requires_grad_();
  auto local = to_local(x, Placements{Partial()});
  auto rows = to_local(ranks.cut(waves({5, 6}, 0.2)));  // each rank uses as many rows as it has
  (local.narrow_symint(0, 0, rows.sym_size(0)) * rows).sum().backward();
  EXPECT_EQ(str(placements_of(x.grad())), "[P(sum)]");
  auto expected = at::zeros({5, 6}, at::kDouble);
  for (auto& rows_of_rank : values_of(rows)) expected.narrow(0, 0, rows_of_rank.size(0)).add_(rows_of_rank);
  EXPECT_EQ(difference(full_tensor(x.grad()), expected, 1e-12), "");
}

TEST(PerRank, CutAlongTwoAxesOfAMesh) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(at::kCPU, {2, 3});
  auto x = distribute_tensor(waves({3, 5}), mesh, {Shard(0), Shard(1)}).requires_grad_();
  to_local(x).reshape({-1}).pow(3).sum().backward();
  EXPECT_EQ(difference(full_tensor(x.grad()), 3 * waves({3, 5}).pow(2), 1e-12), "");
}

TEST(PerRank, LeavesOfTheirOwnGatherGradients) {
  Ranks ranks;
  auto leaf = to_local(ranks.cut(waves({5, 6}))).detach().requires_grad_();
  (leaf * leaf).flatten().sum().backward();
  (leaf * 3).t().sum().backward();
  for (size_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(difference(values_of(leaf.grad())[slot], 2 * values_of(leaf)[slot] + 3), "");
  }
}

TEST(PerRank, AnOptimizerStepsUnevenParameters) {
  Ranks ranks;
  auto leaf = to_local(ranks.cut(waves({5, 6}))).detach().clone().requires_grad_();
  std::vector<at::Tensor> before;
  for (auto& value : values_of(leaf)) before.push_back(value.detach().clone());
  torch::optim::SGD sgd({leaf}, torch::optim::SGDOptions(0.5).momentum(0.9));
  leaf.pow(2).sum().backward();
  sgd.step();
  for (size_t slot = 0; slot < 4; ++slot)
    EXPECT_EQ(difference(values_of(leaf)[slot].detach(), before[slot] * 0, 1e-12), "");
}

TEST(PerRank, AGraphIsKeptOrFreedAsAsked) {
  Ranks ranks;
  auto x = ranks.cut(waves({5, 6})).requires_grad_();
  auto loss = to_local(x).exp().sum();
  loss.backward({}, true);
  loss.backward();
  EXPECT_EQ(difference(full_tensor(x.grad()), 2 * waves({5, 6}).exp(), 1e-12), "");
  EXPECT_NE(error_text<c10::Error>([&] { loss.backward(); }).find("backward through the graph a second time"),
            std::string::npos);
}

TEST(PerRank, AValueThatWasWrittenToAfterItWasSavedIsAnError) {
  Ranks ranks;
  auto y = to_local(ranks.cut(waves({5, 6})).requires_grad_()) * 2;
  auto loss = (y * y).sum();
  y.add_(1);
  EXPECT_NE(error_text<c10::Error>([&] { loss.backward(); }).find("modified by an inplace operation"),
            std::string::npos);
}

TEST(PerRank, SizesThatDifferAreNumbersPerRank) {
  Ranks ranks;
  auto local = to_local(ranks.cut(waves({5, 6})));
  EXPECT_EQ(c10::str(local.sym_sizes()), "[2|2|1|0, 6]");
  EXPECT_EQ(c10::str(at::_ops::sym_size_int::call(local, 0) * 3 + 1), "7|7|4|1");
  EXPECT_EQ(c10::str(local.sym_numel()), "12|12|6|0");
  EXPECT_EQ(local.size(1), 6);
  EXPECT_EQ(local.dim(), 2);
  EXPECT_TRUE(local.sym_size(0) < 3);
  EXPECT_TRUE(local.sym_size(0) == local.sym_size(-2));
}

TEST(PerRank, AskingForOneSizeWhereTheyDifferIsAnErrorThatSaysWhatToDo) {
  Ranks ranks;
  auto local = to_local(ranks.cut(waves({5, 6})));
  auto shapes =
      "] has no one answer: the tensors of the simulated ranks have the shapes [2, 6], [2, 6], [1, 6], [0, 6]. Ask for "
      "sym_";
  auto advice = ", take the tensors apart with shards_of or values_of, or cut over a mesh that divides.";
  EXPECT_EQ(error_text<c10::ValueError>([&] { local.size(0); }), std::string("[size") + shapes + "size" + advice);
  EXPECT_EQ(error_text<c10::ValueError>([&] { local.sizes(); }), std::string("[sizes") + shapes + "sizes" + advice);
  EXPECT_EQ(error_text<c10::ValueError>([&] { local.numel(); }), std::string("[numel") + shapes + "numel" + advice);
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { EXPECT_TRUE(local.sym_size(0) == 2); }),
      "[per-rank number] the simulated ranks hold different values, 1|1|0|0, where one is asked for. Compute with "
      "the number in tensors, take the ranks' tensors apart with shards_of or values_of (from Python: rank_map), or "
      "cut "
      "the tensor over a mesh that divides it.");
}

TEST(PerRank, EqualSizesStayPlain) {
  Ranks ranks;
  auto local = to_local(ranks.cut(waves({8, 6})));
  EXPECT_EQ(local.sizes(), at::IntArrayRef({2, 6}));
  EXPECT_FALSE(values_differ(local));
}

TEST(PerRank, AnErrorOfOneRankIsTheErrorOfTheOp) {
  Ranks ranks;
  auto local = to_local(ranks.cut(waves({5, 6})));
  EXPECT_NE(error_text<c10::IndexError>([&] { local.select(0, 0); }).find("index 0 out of range"), std::string::npos);
}

TEST(PerRank, ResultsOfDifferentNumbersOfDimsAreAnError) {
  Ranks ranks;
  auto local = to_local(ranks.cut(waves({5, 6})));
  EXPECT_EQ(error_text<c10::ValueError>([&] { local.squeeze(); }),
            "[per_rank] the simulated ranks hold tensors of 2 and of 1 dims: [2, 6] and [6]. One tensor can stand only "
            "for tensors of "
            "as many dims; name the dims that an op is to drop.");
}

TEST(PerRank, ListsOfDifferentLengthsAreAnError) {
  Ranks ranks;
  auto local = to_local(ranks.cut(waves({5, 6})));
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { local.split(1, 0); }),
      "[aten::split.Tensor] gives 2 tensors on one simulated rank and 1 on another. Take the ranks' tensors apart "
      "with shards_of or values_of.");
}

TEST(PerRank, PrintsEachShape) {
  Ranks ranks;
  std::ostringstream text;
  text << to_local(ranks.cut(at::arange(5)));
  EXPECT_EQ(text.str(),
            "one tensor per rank (shape=[2|2|1|0], dtype=Long)\nslot 0 [2]: [0, 1]\nslot 1 [2]: [2, 3]\nslot 2 [1]: "
            "[4]\nslot 3 [0]: []");
}

TEST(PerRank, DataPtrOfUnevenShardsNamesTheirShapes) {
  Ranks ranks;
  auto text = error_text<c10::Error>([&] { to_local(ranks.cut(at::arange(5))).data_ptr(); });
  EXPECT_EQ(text,
            "[data_ptr] a tensor that stands for one per rank, of shape [2|2|1|0], has no memory of its own. Use "
            "values_of(tensor), which has that of every hosted rank.");
}

}  // namespace
}  // namespace intarsia::per_rank_per_rank_test
