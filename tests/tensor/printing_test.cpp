#include <sstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/printing.h"
#include "tests/support/error_text.h"

namespace intarsia::tensor_printing_test {
namespace {

template <class T>
std::string streamed(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

struct Pair {
  Simulation world{2};
  DeviceMesh mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
};

TEST(Printing, ShowsFormLayoutAndTheShardOfEveryRank) {
  Pair pair;
  auto x = distribute_tensor(torch::tensor({{1., 2.}, {3., -4.5}, {5., 6.}}), pair.mesh, {Shard(0)});
  EXPECT_EQ(str(x),
            "DTensor(shape=[3, 2], dtype=Float, placements=[S(0)], mesh=DeviceMesh(cpu, tp=2))\n"
            "rank 0 [2, 2]: [[ 1.0000,  2.0000],\n"
            "                [ 3.0000, -4.5000]]\n"
            "rank 1 [1, 2]: [[5.0000, 6.0000]]");
}

TEST(Printing, StreamsShowTheSameText) {
  Pair pair;
  EXPECT_TRUE(interposed());
  auto x = distribute_tensor(torch::arange(3), pair.mesh, {Shard(0)});
  auto text =
      "DTensor(shape=[3], dtype=Long, placements=[S(0)], mesh=DeviceMesh(cpu, tp=2))\n"
      "rank 0 [2]: [0, 1]\n"
      "rank 1 [1]: [2]";
  EXPECT_EQ(streamed(x), text);
  EXPECT_EQ(c10::str(x), text);
  EXPECT_EQ(streamed(c10::IValue(x)), text);
}

TEST(Printing, PlainTensorsAreLeftToLibTorch) {
  EXPECT_EQ(streamed(torch::tensor({1, 2})), " 1\n 2\n[ CPULongType{2} ]");
  EXPECT_EQ(str(torch::tensor({1, 2})), " 1\n 2\n[ CPULongType{2} ]");
  EXPECT_EQ(str(at::Tensor()), "[ Tensor (undefined) ]");
}

TEST(Printing, ShowsEveryDtypeInItsOwnForm) {
  auto world = simulate(1);
  auto mesh = init_device_mesh(at::kCPU, {1});
  auto last_line = [&](const at::Tensor& values) {
    auto text = str(distribute_tensor(values, mesh, {Replicate()}));
    return text.substr(text.rfind('\n') + 1);
  };
  EXPECT_EQ(last_line(torch::tensor({true, false})), "rank 0 [2]: [ true, false]");
  EXPECT_EQ(last_line(torch::tensor({1, -2}, at::kByte)), "rank 0 [2]: [  1, 254]");
  EXPECT_EQ(last_line(torch::tensor({0.5, 1e-8}, at::kDouble)), "rank 0 [2]: [    0.5000, 1.0000e-08]");
  EXPECT_EQ(last_line(torch::tensor({1.5f}).to(at::kBFloat16)), "rank 0 [1]: [1.5000]");
  EXPECT_EQ(last_line(torch::complex(torch::tensor({1.}), torch::tensor({-2.}))), "rank 0 [1]: [1.0000-2.0000i]");
  EXPECT_EQ(last_line(torch::tensor(7)), "rank 0 []: 7");
}

TEST(Printing, SummarizesLargeShards) {
  auto world = simulate(1);
  auto mesh = init_device_mesh(at::kCPU, {1});
  EXPECT_EQ(str(distribute_tensor(torch::arange(2000), mesh, {Shard(0)})),
            "DTensor(shape=[2000], dtype=Long, placements=[S(0)], mesh=DeviceMesh(cpu, 1))\n"
            "rank 0 [2000]: [   0,    1,    2, ..., 1997, 1998, 1999]");
}

TEST(Printing, ShowsTheFirstRanksOfManyAndCountsTheRest) {
  auto world = simulate(64);
  auto text = str(ones({64}, init_device_mesh(at::kCPU, {64}), {Shard(0)}));
  EXPECT_NE(text.find("rank 15 [1]: [1.0000]\n... and 48 ranks more"), std::string::npos) << text;
}

TEST(Printing, SaysThatATensorRequiresGrad) {
  Pair pair;
  auto x = distribute_tensor(torch::ones({2}).requires_grad_(), pair.mesh, {Shard(0)});
  EXPECT_NE(str(x * 2).find("requires_grad=true)\nrank 0 [1]: [2.0000]"), std::string::npos) << str(x * 2);
}

TEST(Printing, ShowsOneTensorPerRank) {
  Pair pair;
  auto local = to_local(distribute_tensor(torch::arange(3), pair.mesh, {Shard(0)}));
  auto text = "one tensor per rank (shape=[2|1], dtype=Long)\nslot 0 [2]: [0, 1]\nslot 1 [1]: [2]";
  EXPECT_EQ(str(local), text);
  EXPECT_EQ(streamed(local), text);
}

TEST(Printing, EmptyAndMetaShardsAreNamedAsSuch) {
  Pair pair;
  auto empty_end = str(ones({1, 3}, pair.mesh, {Shard(0)}));
  EXPECT_NE(empty_end.find("rank 1 [0, 3]: []"), std::string::npos) << empty_end;
  auto meta = str(empty({4}, pair.mesh, {Shard(0)}, at::device(at::kMeta)));
  EXPECT_NE(meta.find("rank 0 [2]: (meta: no values)"), std::string::npos) << meta;
}

TEST(Printing, WaitsForARedistributionUnderWay) {
  Pair pair;
  auto x = distribute_tensor(torch::arange(2), pair.mesh, {Shard(0)});
  auto text = str(redistribute(x, {Replicate()}, true));
  EXPECT_NE(text.find("rank 1 [2]: [0, 1]"), std::string::npos) << text;
}

TEST(Printing, OfAViewWhoseBaseHasChangedDoesNotCommunicate) {
  Pair pair;
  auto x = distribute_tensor(torch::arange(4), pair.mesh, {Shard(0)});
  auto row = x.select(0, 3), part = row.unsqueeze(0);
  x.add_(1);
  CommDebugMode comms;
  for (auto& view : {row, part}) {
    auto text = str(view);
    EXPECT_NE(text.find(") as it was: its base has changed since, read it to refresh\nrank 0 ["), std::string::npos)
        << text;
    EXPECT_NE(text.find("3"), std::string::npos) << text;
  }
  EXPECT_EQ(comms.text(), "");
  EXPECT_EQ(row.item<int64_t>(), 4);
  EXPECT_EQ(str(row).substr(str(row).find('\n') + 1), "rank 0 []: 4\nrank 1 []: 4");
}

TEST(Printing, ShowsOnlyTheRanksOfTheMesh) {
  Pair pair;
  auto text = str(ones({2}, DeviceMesh(at::kCPU, {1}, {1}), {Shard(0)}));
  EXPECT_EQ(text.substr(text.find('\n') + 1), "rank 1 [2]: [1.0000, 1.0000]");
}

TEST(DataPtr, ItsErrorSaysWhatToCall) {
  Pair pair;
  auto x = ones({4}, pair.mesh, {Shard(0)});
  auto advice =
      "a distributed tensor of shape [4], [S(0)] on DeviceMesh(cpu, tp=2), has no memory of its own. Use "
      "to_local(tensor) or shards_of(tensor) for the local shard, or full_tensor(tensor) for the whole; is_alias_of(a, "
      "b) "
      "tells whether two tensors share memory. To save a module, use checkpoint::save or full_state_dict(module), and "
      "to load one "
      "checkpoint::load or load_full_state_dict(module, dict).";
  EXPECT_EQ(error_text<c10::Error>([&] { x.data_ptr(); }), std::string("[data_ptr] ") + advice);
  EXPECT_EQ(error_text<c10::Error>([&] { x.data_ptr<float>(); }), std::string("[data_ptr] ") + advice);
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] { x.storage(); }), std::string("[storage] ") + advice);
  EXPECT_EQ(error_text<c10::Error>([&] { to_local(x).data_ptr(); }),
            "[data_ptr] a tensor that stands for one per rank, of shape [2], has no memory of its own. "
            "Use values_of(tensor), which has that of every hosted rank.");
}

TEST(DataPtr, OtherTensorsWithoutStorageKeepTheErrorOfLibTorch) {
  auto sparse = torch::eye(2).to_sparse();
  EXPECT_EQ(error_text<c10::Error>([&] { sparse.data_ptr(); }).find("[data_ptr]"), std::string::npos);
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] { sparse.storage(); }),
            "Cannot access storage of SparseTensorImpl");
}

TEST(Item, GivesTheOneValueOfAnyLayoutAlsoInStrictMode) {
  Pair pair;
  StrictScope strict;
  EXPECT_EQ(ones({1}, pair.mesh, {Shard(0)}).item<float>(), 1);
  EXPECT_EQ(ones({}, pair.mesh, {Replicate()}).item<float>(), 1);
  EXPECT_EQ(from_local(torch::tensor(3), pair.mesh, {Partial()}).item<int64_t>(), 6);
}

}  // namespace
}  // namespace intarsia::tensor_printing_test
