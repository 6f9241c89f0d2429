#include "intarsia/redistribute/transfers.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "intarsia/simulation/simulation.h"
#include "tests/support/dealer.h"

namespace intarsia::redistribute_transfers_test {
namespace {

std::string transfers_text(const DeviceMesh& a, const char* from, const DeviceMesh& b, const char* to,
                           std::vector<int64_t> shape) {
  return str(transfers(*Layout::get(a, parse_placements(from)), *Layout::get(b, parse_placements(to)), shape));
}

DeviceMesh mesh_over(std::vector<int64_t> ranks) {
  return DeviceMesh(c10::kCPU, {static_cast<int64_t>(ranks.size())}, ranks);
}

TEST(Transfers, ReplicasShareTheWorkOfSending) {
  auto world = simulate(6);
  EXPECT_EQ(transfers_text(mesh_over({0, 1}), "[R]", mesh_over({2, 3, 4, 5}), "[R]", {6}),
            "0 -> 2: 6, 0 -> 4: 6, 1 -> 3: 6, 1 -> 5: 6");
  EXPECT_EQ(transfers_text(mesh_over({0, 1, 2, 3}), "[R]", mesh_over({5}), "[R]", {8}),
            "0 -> 5: 2, 1 -> 5: 2, 2 -> 5: 2, 3 -> 5: 2");
}

TEST(Transfers, ARankKeepsWhatItHas) {
  auto world = simulate(4);
  EXPECT_EQ(transfers_text(mesh_over({0, 1}), "[S(0)]", mesh_over({0, 1, 2, 3}), "[S(0)]", {8}),
            "0 -> 0: 2, 0 -> 1: 2, 1 -> 2: 2, 1 -> 3: 2");
  EXPECT_EQ(transfers_text(mesh_over({0, 1}), "[R]", mesh_over({1, 0}), "[S(0)]", {8}), "0 -> 0: 4, 1 -> 1: 4");
}

TEST(Transfers, OnlyWhoHoldsTheValueOfAPendingSumGetsIt) {
  auto world = simulate(4);
  EXPECT_EQ(transfers_text(mesh_over({0, 1}), "[S(0)]", mesh_over({2, 3}), "[P(sum)]", {4}), "0 -> 2: 2, 1 -> 2: 2");
}

// A random mesh of some of the ranks, and placements on it.
const Layout* random_layout(std::mt19937& draw, int64_t ranks, int64_t ndim) {
  auto pick = [&](int64_t n) { return static_cast<int64_t>(draw() % n); };
  std::vector<int64_t> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), draw);
  std::vector<std::vector<int64_t>> shapes = {{1}, {2}, {3}, {5}, {8}, {2, 2}, {2, 3}, {4, 2}, {2, 2, 2}};
  auto shape = shapes[pick(shapes.size())];
  all.resize(c10::multiply_integers(shape));
  Placements placements;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    auto kind = pick(3);
    placements.push_back(kind == 0   ? Placement(Replicate())
                         : kind == 1 ? Placement(Shard(pick(ndim)))
                                     : Placement(StridedShard(pick(ndim), 1 + pick(3))));
  }
  return Layout::get(DeviceMesh(c10::kCPU, shape, all), placements);
}

using Positions = std::set<int64_t>;

std::map<int64_t, std::vector<int64_t>> positions_by_rank(const Layout& layout, const at::Tensor& whole) {
  auto pieces = deal_out(whole, layout.placements(), layout.mesh().shape().vec());
  std::map<int64_t, std::vector<int64_t>> result;
  for (int64_t i = 0; i < layout.mesh().size(); ++i) {
    auto flat = pieces[i].contiguous();
    result[layout.mesh().ranks()[i]] = {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
  }
  return result;
}

// Brute force, position by position: what a rank wants and has not must come, once, from one that has it; and no more.
TEST(Transfers, OfRandomPairsOfLayoutsMoveExactlyWhatIsLacking) {
  auto world = simulate(8);
  std::mt19937 draw(17);
  for (int round = 0; round < 400; ++round) {
    std::vector<int64_t> shape;
    for (int64_t dim = 0, n = 1 + draw() % 3; dim < n; ++dim) shape.push_back(draw() % 8);
    auto *from = random_layout(draw, 8, shape.size()), *to = random_layout(draw, 8, shape.size());
    SCOPED_TRACE(c10::str(round, ": ", c10::IntArrayRef(shape), " from ", str(*from), " to ", str(*to)));
    auto whole = at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape);
    auto held = positions_by_rank(*from, whole), wanted = positions_by_rank(*to, whole);
    std::map<int64_t, std::vector<int64_t>> got;
    for (auto& [rank, positions] : wanted) got[rank].assign(positions.size(), -1);
    int64_t sent = 0, lacking = 0;
    for (auto& transfer : transfers(*from, *to, shape)) {
      auto source = deal_out(whole, from->placements(), from->mesh().shape().vec());
      auto at = [&](const Layout& layout, int64_t rank) {
        return std::find(layout.mesh().ranks().begin(), layout.mesh().ranks().end(), rank) -
               layout.mesh().ranks().begin();
      };
      auto piece = extract(source[at(*from, transfer.sender)], transfer.runs);
      auto& target = got[transfer.receiver];
      auto form = local_shape(*to, shape, to->mesh().coordinate_at(at(*to, transfer.receiver)));
      auto view = at::from_blob(target.data(), form, at::kLong);
      place(view, piece, transfer.runs);
      if (transfer.sender != transfer.receiver) sent += piece.numel();
    }
    for (auto& [rank, positions] : wanted) {
      EXPECT_EQ(got[rank], positions) << "rank " << rank;
      Positions has(held[rank].begin(), held[rank].end());
      for (auto position : positions) lacking += !has.contains(position);
    }
    EXPECT_EQ(sent, lacking);
  }
}

}  // namespace
}  // namespace intarsia::redistribute_transfers_test
