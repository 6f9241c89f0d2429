// Wrong arguments read as they do on plain tensors, on every rank, and nobody is left waiting.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::ops_bad_input_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct BadCall {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  at::Tensor (*call)(const Tensors&);
};

// Whole numbers on the first tensor's mesh: on every rank, or cut over all of them.
at::Tensor lie_as(const Tensors& t, std::vector<int64_t> values, const Placement& placement) {
  auto plain = at::tensor(values, at::kLong);
  return is_dtensor(t[0])
             ? distribute_tensor(plain, mesh_of(t[0]), Placements(mesh_of(t[0]).ndim(), placement), std::nullopt)
             : plain;
}
at::Tensor places(const Tensors& t, std::vector<int64_t> values) { return lie_as(t, values, Replicate()); }
at::Tensor cut_places(const Tensors& t, std::vector<int64_t> values) { return lie_as(t, values, Shard(0)); }

// Five unit matrices, the fourth of them times zero.
at::Tensor all_but_one(const at::Tensor& zeros) {
  auto factors = at::tensor({1.f, 1.f, 1.f, 0.f, 1.f}).view({5, 1, 1}) * at::eye(2);
  return zeros + (is_dtensor(zeros) ? distribute_tensor(factors, mesh_of(zeros),
                                                        Placements(mesh_of(zeros).ndim(), Replicate()), std::nullopt)
                                    : factors);
}

const std::vector<BadCall> kShapes = {
    {"add", {{5, 4}, {3, 4}}, [](auto& t) { return t[0] + t[1]; }},
    {"where", {{5, 4}, {3, 4}}, [](auto& t) { return at::where(t[0] > 0, t[0], t[1]); }},
    {"mm", {{5, 4}, {3, 4}}, [](auto& t) { return at::mm(t[0], t[1]); }},
    {"mm of a batch", {{5, 4, 2}, {2, 4}}, [](auto& t) { return at::mm(t[0], t[1]); }},
    {"bmm", {{5, 4, 2}, {5, 3, 2}}, [](auto& t) { return at::bmm(t[0], t[1]); }},
    {"bmm of other batches", {{5, 4, 2}, {3, 2, 4}}, [](auto& t) { return at::bmm(t[0], t[1]); }},
    {"addmm", {{5, 3}, {5, 4}, {3, 3}}, [](auto& t) { return at::addmm(t[0], t[1], t[2]); }},
    {"mv", {{5, 4}, {3}}, [](auto& t) { return at::mv(t[0], t[1]); }},
    {"dot", {{5}, {4}}, [](auto& t) { return at::dot(t[0], t[1]); }},
    {"cat", {{5, 4}, {5, 3}}, [](auto& t) { return at::cat({t[0], t[1]}, 0); }},
    {"stack", {{5, 4}, {5, 3}}, [](auto& t) { return at::stack({t[0], t[1]}); }},
    {"view", {{5, 4}}, [](auto& t) { return t[0].view({3, 7}); }},
    {"expand", {{5, 4}}, [](auto& t) { return t[0].expand({2, 4}); }},
    {"layer_norm", {{5, 4}}, [](auto& t) { return at::layer_norm(t[0], {3}); }},
    {"group_norm", {{5, 4, 3}}, [](auto& t) { return at::group_norm(t[0], 3); }},
    {"mse_loss", {{5, 4}, {3, 4}}, [](auto& t) { return at::mse_loss(t[0], t[1]); }},
    {"cdist", {{5, 4}, {5, 3}}, [](auto& t) { return at::cdist(t[0], t[1]); }},
    {"masked_fill", {{5, 4}, {3, 4}}, [](auto& t) { return at::masked_fill(t[0], t[1] > 0, 1); }},
};

const std::vector<BadCall> kDims = {
    {"sum", {{5, 4}}, [](auto& t) { return t[0].sum(2); }},
    {"sum twice", {{5, 4}}, [](auto& t) { return t[0].sum({0, 0}); }},
    {"mean", {{5, 4}}, [](auto& t) { return t[0].mean(3); }},
    {"softmax", {{5, 4}}, [](auto& t) { return at::softmax(t[0], 2); }},
    {"logsumexp", {{5, 4}}, [](auto& t) { return at::logsumexp(t[0], 2); }},
    {"cumsum", {{5, 4}}, [](auto& t) { return t[0].cumsum(-3); }},
    {"argmax", {{5, 4}}, [](auto& t) { return t[0].argmax(2); }},
    {"max", {{5, 4}}, [](auto& t) { return std::get<0>(t[0].max(2)); }},
    {"sort", {{5, 4}}, [](auto& t) { return std::get<0>(t[0].sort(2)); }},
    {"topk", {{5, 4}}, [](auto& t) { return std::get<0>(t[0].topk(6, 0)); }},
    {"kthvalue", {{5, 4}}, [](auto& t) { return std::get<0>(t[0].kthvalue(9, 0)); }},
    {"transpose", {{5, 4}}, [](auto& t) { return t[0].transpose(0, 2); }},
    {"permute", {{5, 4}}, [](auto& t) { return t[0].permute({0, 0}); }},
    {"flip", {{5, 4}}, [](auto& t) { return t[0].flip({2}); }},
    {"roll", {{5, 4}}, [](auto& t) { return t[0].roll(1, 2); }},
    {"unsqueeze", {{5, 4}}, [](auto& t) { return t[0].unsqueeze(4); }},
    {"diagonal", {{5, 4}}, [](auto& t) { return t[0].diagonal(0, 0, 0); }},
    {"tril", {{5}}, [](auto& t) { return t[0].tril(); }},
};

const std::vector<BadCall> kPlaces = {
    {"select", {{5, 4}}, [](auto& t) { return t[0].select(0, 5); }},
    {"narrow", {{5, 4}}, [](auto& t) { return t[0].narrow(0, 3, 3); }},
    {"split", {{5, 4}}, [](auto& t) { return at::split_with_sizes(t[0], {2, 2}, 0)[0]; }},
    {"index_select", {{5, 4}}, [](auto& t) { return t[0].index_select(0, places(t, {0, 5})); }},
    {"gather", {{5, 4}}, [](auto& t) { return t[0].gather(0, places(t, {7}).view({1, 1})); }},
    {"index", {{5, 4}}, [](auto& t) { return at::index(t[0], {places(t, {-6})}); }},
    {"embedding", {{5, 4}}, [](auto& t) { return at::embedding(t[0], places(t, {2, 9})); }},
    {"nll_loss", {{5, 4}}, [](auto& t) { return at::nll_loss(t[0], places(t, {0, 1, 2, 3, 4})); }},
    {"cross_entropy", {{5, 4}}, [](auto& t) { return at::cross_entropy_loss(t[0], places(t, {0, 1, 2, 3, -1})); }},
    {"cross_entropy of other batches",
     {{5, 4}},
     [](auto& t) { return at::cross_entropy_loss(t[0], places(t, {0, 1})); }},
    {"take", {{5, 4}}, [](auto& t) { return at::take(t[0], places(t, {20})); }},
};

// One rank holds the wrong place.
const std::vector<BadCall> kCutPlaces = {
    {"index_select", {{5, 4}}, [](auto& t) { return t[0].index_select(0, cut_places(t, {0, 1, 2, 3, 5})); }},
    {"gather", {{5, 1}}, [](auto& t) { return t[0].gather(0, cut_places(t, {0, 9, 2, 3, 4}).unsqueeze(1)); }},
    {"scatter", {{5, 1}}, [](auto& t) { return t[0].scatter(0, cut_places(t, {0, 1, 2, 3, 9}).unsqueeze(1), 1); }},
    {"index", {{5, 4}}, [](auto& t) { return at::index(t[0], {cut_places(t, {-6, 1, 2, 3, 4})}); }},
    {"index_put",
     {{5, 4}, {5, 4}},
     [](auto& t) { return at::index_put(t[0], {cut_places(t, {0, 1, 2, 3, 5})}, t[1]); }},
    {"index_add",
     {{5, 4}, {5, 4}},
     [](auto& t) { return at::index_add(t[0], 0, cut_places(t, {0, 1, 2, 3, 5}), t[1]); }},
    {"embedding", {{5, 4}}, [](auto& t) { return at::embedding(t[0], cut_places(t, {0, 1, 2, 5, 4})); }},
    {"nll_loss", {{5, 4}}, [](auto& t) { return at::nll_loss(t[0], cut_places(t, {0, 4, 2, 3, 0})); }},
    {"nll_loss of each",
     {{5, 4}},
     [](auto& t) { return at::nll_loss(t[0], cut_places(t, {0, 1, 2, 3, 4}), {}, at::Reduction::None); }},
    {"cross_entropy", {{5, 4}}, [](auto& t) { return at::cross_entropy_loss(t[0], cut_places(t, {0, 1, 2, 3, -1})); }},
    {"take", {{5, 4}}, [](auto& t) { return at::take(t[0], cut_places(t, {20, 1, 2})); }},
    {"remainder", {{5, 4}}, [](auto& t) { return at::remainder(cut_places(t, {4, 4, 4}), cut_places(t, {1, 2, 0})); }},
    {"embedding_bag",
     {{5, 4}},
     [](auto& t) {
       return std::get<0>(at::embedding_bag(t[0], cut_places(t, {0, 1, 2, 3, 7}), cut_places(t, {0, 2})));
     }},
    {"max_unpool2d",
     {{4, 1, 1, 1}},
     [](auto& t) { return at::max_unpool2d(t[0], cut_places(t, {0, 1, 2, 9}).view({4, 1, 1, 1}), {2, 2}); }},
    {"multi_margin_loss",
     {{5, 4}},
     [](auto& t) { return at::multi_margin_loss(t[0], cut_places(t, {0, 1, 2, 3, 9})); }},
    {"bincount", {{5, 4}}, [](auto& t) { return at::bincount(cut_places(t, {0, 1, -2})); }},
    {"one_hot", {{5, 4}}, [](auto& t) { return at::one_hot(cut_places(t, {0, 1, 2, 9, 1}), 4); }},
    {"binary_cross_entropy",
     {{5, 4}},
     [](auto& t) {
       return at::binary_cross_entropy(cut_places(t, {0, 1, 2}).to(at::kFloat),
                                       cut_places(t, {0, 1, 1}).to(at::kFloat));
     }},
    {"cholesky", {{5, 2, 2}}, [](auto& t) { return at::linalg_cholesky(t[0]); }},
    {"inverse", {{5, 2, 2}}, [](auto& t) { return at::linalg_inv(t[0]); }},
    {"inverse of the fourth", {{5, 2, 2}}, [](auto& t) { return at::linalg_inv(all_but_one(t[0])); }},
    {"cholesky of the fourth", {{5, 2, 2}}, [](auto& t) { return at::linalg_cholesky(all_but_one(t[0])); }},
    {"solve with the fourth", {{5, 2, 2}}, [](auto& t) { return at::linalg_solve(all_but_one(t[0]), t[0]); }},
#if TORCH_VERSION_MINOR < 15
    {"cholesky by its old name", {{5, 2, 2}}, [](auto& t) { return at::cholesky(all_but_one(t[0])); }},
#endif
};

// The ranks that do not hold the wrong value add which one does.
void expect_reads_as(const std::string& actual, const std::string& expected, const std::string& call) {
  bool alike = actual == expected || actual.starts_with(expected + "\n(rank ");
  EXPECT_TRUE(alike) << call << "\nhas: " << actual << "\nnot: " << expected;
}

void expect_plain_errors(const std::vector<BadCall>& calls) {
  for_each_world({2, 4}, [&](int64_t n) {
    for (auto& mesh_shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, mesh_shape);
      for (auto& call : calls) {
        Tensors plain;
        for (auto& shape : call.shapes) plain.push_back(at::zeros(shape));
        auto expected = error_text<c10::Error>([&] { call.call(plain); });
        EXPECT_NE(expected, "no error") << call.name;
        for (int64_t dim = 0; dim < plain[0].dim(); ++dim) {
          Tensors cut;
          for (auto& t : plain) {
            auto placement = cut.empty() ? Placement(Shard(dim)) : Placement(Replicate());
            cut.push_back(distribute_tensor(t, mesh, Placements(mesh.ndim(), placement), std::nullopt));
          }
          expect_reads_as(error_text<c10::Error>([&] { call.call(cut); }), expected,
                          call.name + (" cut along " + std::to_string(dim)));
        }
      }
      auto after = distribute_tensor(at::ones({5}), mesh, Placements(mesh.ndim(), Shard(0)), std::nullopt);
      EXPECT_EQ(full_tensor(after.sum()).item<double>(), 5);
    }
  });
}

TEST(BadInput, OfOtherShapesReadsAsThePlainOps) { expect_plain_errors(kShapes); }
TEST(BadInput, OfOtherDimsReadsAsThePlainOps) { expect_plain_errors(kDims); }
TEST(BadInput, OfPlacesOutOfRangeReadsAsThePlainOps) { expect_plain_errors(kPlaces); }
TEST(BadInput, OnOneRankIsAnErrorOnAll) { expect_plain_errors(kCutPlaces); }

TEST(BadInput, IsLookedForWithOneNumberWherePlacesAreCut) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto table = distribute_tensor(at::rand({5, 4}), mesh, {Replicate()}).requires_grad_();
    auto words = distribute_tensor(at::arange(5), mesh, {Shard(0)});
    CommDebugMode comms;
    at::embedding(table, words).sum().backward();
    EXPECT_EQ(comms.get_total_counts(), 0);
    EXPECT_EQ(comms.agreements().size(), 1u) << "in the forward pass alone";
    LocalErrorScope local;
    at::embedding(table, words);
    EXPECT_EQ(comms.agreements().size(), 1u);
  });
}

}  // namespace
}  // namespace intarsia::ops_bad_input_test
