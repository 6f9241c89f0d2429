#include <torch/torch.h>

#include "tests/ops/along_the_cut.h"
#include "tests/support/error_text.h"

namespace intarsia::ops_structure_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// An index lies beside the tensor that it is for.
at::Tensor beside(const at::Tensor& index, const at::Tensor& x) {
  return is_dtensor(x) ? distribute_tensor(index, mesh_of(x), Placements(mesh_of(x).ndim(), Replicate())) : index;
}

TEST(Structure, ValuesAndGradientsAreThoseOfThePlainOp) {
  same_as_plain("slice", {7, 5},
                [](auto& x) { return Tensors{x.slice(0, 1, 6), x.slice(1, 0, 5, 2), x.slice(0, 5, 2)}; });
  same_as_plain("select", {7, 5}, [](auto& x) { return Tensors{x.select(0, 3), x.select(1, -1), x[0]}; });
  same_as_plain("split", {7, 5}, [](auto& x) { return x.split(3, 0); });
  same_as_plain("split_with_sizes", {7, 5}, [](auto& x) { return x.split_with_sizes({1, 4, 2}, 0); });
  same_as_plain("chunk", {7, 5}, [](auto& x) { return x.chunk(2, 1); });
  same_as_plain("narrow", {7, 5}, [](auto& x) { return Tensors{x.narrow(0, 2, 4)}; });
  same_as_plain("unbind", {3, 5}, [](auto& x) { return x.unbind(0); });
  same_as_plain("cat", {7, 5}, [](auto& x) { return Tensors{at::cat({x, x * 2}, 0), at::cat({x, x, x}, 1)}; });
  same_as_plain("stack", {7, 5}, [](auto& x) { return Tensors{at::stack({x, x * 2}, 0)}; });
  same_as_plain("flip", {7, 5}, [](auto& x) { return Tensors{x.flip({0}), x.flip({0, 1})}; });
  same_as_plain("roll", {7, 5}, [](auto& x) { return Tensors{x.roll(2, 0), x.roll({-1, 8}, {0, 1}), x.roll(3)}; });
  same_as_plain("repeat", {7, 5}, [](auto& x) { return Tensors{x.repeat({2, 1}), x.repeat({2, 1, 3})}; });
  same_as_plain("tril", {7, 5}, [](auto& x) { return Tensors{x.tril(), x.triu(1), x.tril(-2)}; });
  same_as_plain("diagonal", {7, 5},
                [](auto& x) { return Tensors{x.diagonal(), x.diagonal(1), x.diagonal(-3), x.diagonal(9)}; });
  same_as_plain("diagonal of 3-D", {4, 3, 5},
                [](auto& x) { return Tensors{x.diagonal(1, 2, 0), x.diagonal(-1, 0, 1)}; });
  same_as_plain("diagonal in place", {7, 5}, [](auto& x) {
    auto y = x * 1;
    y.diagonal(-1).mul_(3);
    return Tensors{y};
  });
  same_as_plain("expand", {1, 5}, [](auto& x) { return Tensors{x.expand({3, 5})}; });
  same_as_plain("unfold", {7, 5}, [](auto& x) { return Tensors{x.unfold(0, 3, 2)}; });
}

TEST(Structure, IndexedOpsAreThoseOfThePlainOp) {
  auto rows = at::tensor({6, 0, 3, 3}, at::kLong), wrapped = at::tensor({-1, 0, 3, 3}, at::kLong),
       columns = at::tensor({4, 1, 0}, at::kLong);
  same_as_plain("index_select", {7, 5}, [&](auto& x) {
    return Tensors{x.index_select(0, beside(rows, x)), x.index_select(1, beside(columns, x))};
  });
  same_as_plain("index", {7, 5}, [&](auto& x) {
    return Tensors{x.index({beside(wrapped, x)}), x.index({at::indexing::Slice(), beside(columns, x)})};
  });
  auto each = at::arange(14).reshape({7, 2}) % 5;
  same_as_plain("gather", {7, 5}, [&](auto& x) { return Tensors{x.gather(1, beside(each, x))}; });
  same_as_plain("gather rows", {7, 5},
                [&](auto& x) { return Tensors{x.gather(0, beside(at::arange(10).reshape({2, 5}) % 7, x))}; });
  same_as_plain("take_along_dim", {7, 5}, [&](auto& x) { return Tensors{at::take_along_dim(x, beside(each, x), 1)}; });
  same_as_plain("index_add", {7, 5}, [&](auto& x) {
    return Tensors{x.index_add(0, beside(rows, x), beside(at::ones({4, 5}, at::kDouble), x))};
  });
  same_as_plain("scatter_add", {7, 5}, [&](auto& x) {
    return Tensors{x.scatter_add(1, beside(each, x), beside(at::ones({7, 2}, at::kDouble), x))};
  });
  same_as_plain("index_put", {7, 5}, [&](auto& x) {
    return Tensors{x.index_put({beside(rows, x)}, beside(at::ones({4, 5}, at::kDouble), x), true)};
  });
  same_as_plain("masked_select", {7, 5}, [](auto& x) { return Tensors{x.masked_select(x > 0)}; });
  same_as_plain("where", {7, 5}, [](auto& x) { return Tensors{at::where(x > 0, x, x * 2)}; });
}

TEST(Structure, ScattersOverwriteTheirPart) {
  auto ones = at::ones({2, 5}, at::kDouble);
  same_as_plain("slice_scatter", {7, 5},
                [&](auto& x) { return Tensors{at::slice_scatter(x, beside(ones, x), 0, 2, 4)}; });
  same_as_plain("select_scatter", {7, 5},
                [&](auto& x) { return Tensors{at::select_scatter(x, beside(ones[0], x), 0, 6)}; });
  same_as_plain("in place", {7, 5}, [&](auto& x) {
    auto y = x * 1;
    y.slice(0, 2, 4).mul_(3);
    y.select(0, 5).fill_(2);
    y.tril_();
    return Tensors{y};
  });
}

TEST(Structure, OnlyWhatIsNeededMoves) {
  auto row = [](int64_t n) { return std::to_string(n * 3 * 8) + "B\n"; };
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.slice(0, 0, 8)}; }), "");
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.slice(1, 0, 2)}; }), "");
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.slice(0, 0, 4)}; }), "all_to_all tp " + row(2));
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.slice(0, 1, 7)}; }), "all_to_all tp " + row(1));
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.select(0, 5)}; }), "broadcast tp " + row(1));
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.roll(1, 0)}; }), "all_to_all tp " + row(1));
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.flip({0})}; }), "all_to_all tp " + row(2));
  EXPECT_EQ(traffic({8, 8}, [](auto& x) { return Tensors{x.diagonal()}; }), "");
  EXPECT_EQ(traffic({8, 8}, [](auto& x) { return Tensors{x.diagonal(-1)}; }), "all_to_all tp 8B\n");
  EXPECT_EQ(traffic({8, 3}, [](auto& x) { return Tensors{x.tril(), at::cat({x, x}, 1), at::stack({x, x})}; }), "");
}

TEST(Structure, ASliceStaysCutAndSoDoesItsGradient) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
  auto x = lay_out(scrambled({8, 3}), mesh, {Shard(0)}).requires_grad_();
  auto y = x.slice(0, 1, 7);
  EXPECT_EQ(str(placements_of(y)), "[S(0)]");
  CommDebugMode comms;
  (y * y).sum().backward();
  EXPECT_EQ(str(placements_of(x.grad())), "[S(0)]");
  EXPECT_EQ(comms.get_comm_counts().count("all_gather"), 0);
}

TEST(Structure, MergedDimsThatSeveralAxesCutStayWhereTheyAre) {
  struct Case {
    std::vector<int64_t> from, to;
    const char *before, *after;
  };
  auto world = simulate(6);
  auto mesh = init_device_mesh(at::kCPU, {3, 2}, {"dp", "tp"});
  for (auto& [from, to, before, after] :
       std::vector<Case>{{{6, 4}, {24}, "[S(0), S(1)]", "[S(0), SS(0, 2)]"},
                         {{6, 5}, {30}, "[S(0), S(1)]", "[S(0), SS(0, 2)]"},
                         {{4, 9, 2}, {72}, "[S(1), S(0)]", "[SS(0, 4), S(0)]"},
                         {{2, 6, 4}, {12, 4}, "[S(1), S(0)]", "[SS(0, 2), S(0)]"},
                         {{2, 3, 2, 2}, {2, 12}, "[S(1), S(3)]", "[S(1), SS(1, 2)]"},
                         {{6, 6, 4}, {36, 2, 2}, "[S(0), S(1)]", "[S(0), SS(0, 2)]"}}) {
    auto whole = scrambled(from);
    auto x = lay_out(whole, mesh, parse_placements(before)).requires_grad_();
    CommDebugMode comms;
    auto y = x.view(to);
    EXPECT_EQ(str(placements_of(y)), after) << before << " of " << c10::IntArrayRef(from);
    auto grad = torch::autograd::grad({(y * y).sum()}, {x})[0];
    EXPECT_EQ(comms.get_total_counts(), 0);
    EXPECT_EQ(str(placements_of(grad)), before);
    EXPECT_EQ(difference(full_tensor(y).detach(), whole.view(to)), "");
    EXPECT_EQ(difference(full_tensor(grad), 2 * whole), "");
  }
}

TEST(Structure, ViewsOfDimsThatSeveralAxesCutAreThoseOfThePlainOp) {
  same_as_plain("merged", {6, 4, 5},
                [](auto& x) { return Tensors{x.view({24, 5}), x.view({6, 20}), x.view(-1), x.view({12, 2, 5})}; });
  same_as_plain("uneven", {5, 3, 7},
                [](auto& x) { return Tensors{x.view({15, 7}), x.view({5, 21}), x.view(-1), x.view({7, 15})}; });
  same_as_plain("merged and split again", {4, 6, 2},
                [](auto& x) { return Tensors{x.view(-1).view({4, 6, 2}), x.view({24, 2}).view({2, 12, 2})}; });
}

TEST(Structure, BadInputReadsAsThePlainOp) {
  auto world = simulate(3);
  auto mesh = init_device_mesh(at::kCPU, {3});
  auto whole = scrambled({7, 5});
  auto x = lay_out(whole, mesh, {Shard(0)});
  auto same_error = [&](const std::function<void(const at::Tensor&)>& call) {
    EXPECT_EQ(error_text<c10::Error>([&] { call(x); }), error_text<c10::Error>([&] { call(whole); }));
  };
  same_error([](auto& t) { t.select(0, 7); });
  same_error([](auto& t) { t.slice(2, 0, 1); });
  same_error([](auto& t) { t.split(0, 0); });
  same_error([&](auto& t) { t.index_select(0, beside(at::tensor({7}, at::kLong), t)); });
  same_error([&](auto& t) { t.gather(0, beside(at::full({1, 5}, 7), t)); });
  same_error([&](auto& t) { at::cat({t, t.slice(1, 0, 2)}, 0); });
}

}  // namespace
}  // namespace intarsia::ops_structure_test
