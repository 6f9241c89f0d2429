// Wrong arguments read as they do on plain tensors, on every rank, and nobody is left waiting.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

struct BadCall {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  at::Tensor (*call)(const Tensors&);
  int64_t first_cut = 0;  // targets are cut with the batch, and then only the rank that holds a wrong one knows
};

// Whole numbers that lie as the first tensor's mesh does.
at::Tensor places(const Tensors& t, std::vector<int64_t> values) {
  auto plain = at::tensor(values, at::kLong);
  return is_dtensor(t[0]) ? distribute_tensor(plain, mesh_of(t[0]), Placements(mesh_of(t[0]).ndim(), Replicate()), std::nullopt) : plain;
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
    {"nll_loss", {{5, 4}}, [](auto& t) { return at::nll_loss(t[0], places(t, {0, 1, 2, 3, 4})); }, 1},
    {"cross_entropy", {{5, 4}}, [](auto& t) { return at::cross_entropy_loss(t[0], places(t, {0, 1, 2, 3, -1})); }, 1},
    {"cross_entropy of other batches", {{5, 4}}, [](auto& t) { return at::cross_entropy_loss(t[0], places(t, {0, 1})); }},
    {"take", {{5, 4}}, [](auto& t) { return at::take(t[0], places(t, {20})); }},
};

void expect_plain_errors(const std::vector<BadCall>& calls) {
  for_each_world({2, 4}, [&](int64_t n) {
    for (auto& mesh_shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, mesh_shape);
      for (auto& call : calls) {
        Tensors plain;
        for (auto& shape : call.shapes) plain.push_back(at::zeros(shape));
        auto expected = error_text<c10::Error>([&] { call.call(plain); });
        EXPECT_NE(expected, "no error") << call.name;
        for (int64_t dim = call.first_cut; dim < plain[0].dim(); ++dim) {
          Tensors cut;
          for (auto& t : plain) {
            auto placement = cut.empty() ? Placement(Shard(dim)) : Placement(Replicate());
            cut.push_back(distribute_tensor(t, mesh, Placements(mesh.ndim(), placement), std::nullopt));
          }
          EXPECT_EQ(error_text<c10::Error>([&] { call.call(cut); }), expected) << call.name << " cut along " << dim;
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

}  // namespace
}  // namespace intarsia
