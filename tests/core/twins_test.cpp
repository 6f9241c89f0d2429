// Local tensors of simulated ranks that share memory until one of them is written to.

#include "intarsia/simulation/twins/twins.h"

#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace intarsia::core_twins_test {
namespace {

at::Tensor ramp() { return at::arange(12, at::kDouble).reshape({3, 4}); }

// Whether they are one memory, told without asking for a pointer to write to.
bool share(const at::Tensor& a, const at::Tensor& b) { return a.const_data_ptr() == b.const_data_ptr(); }

TEST(Twins, ShareMemoryUntilOneIsWrittenTo) {
  auto a = ramp(), b = twin_of(a), c = twin_of(a);
  EXPECT_TRUE(share(a, b) && share(b, c) && are_twins(a, b));
  EXPECT_FALSE(a.is_alias_of(b)) << "each has a storage of its own";
  b.add_(1);
  EXPECT_TRUE(share(a, c)) << "those that are not written to stay twins";
  EXPECT_TRUE(at::equal(a, ramp()) && at::equal(b, ramp() + 1) && at::equal(c, ramp()));
}

TEST(Twins, PartByEveryWayToWrite) {
  const std::vector<std::function<void(at::Tensor&)>> writes = {
      [](auto& t) { t.fill_(7); },
      [](auto& t) { t[1].zero_(); },
      [](auto& t) { t.t().mul_(2); },
      [](auto& t) { t.detach().neg_(); },
      [](auto& t) { at::add_out(t, t, t); },
      [](auto& t) { t.template mutable_data_ptr<double>()[3] = -1; },
      [](auto& t) { t.template data_ptr<double>()[3] = -1; },
      [](auto& t) { t.template accessor<double, 2>()[1][1] = -1; },
      [](auto& t) { t.resize_({5, 4}).fill_(1); },
      [](auto& t) { t.view({-1}).index_fill_(0, at::arange(3), 9); }};
  for (auto& write : writes) {
    auto a = ramp(), b = twin_of(a), expected = ramp();
    write(b), write(expected);
    EXPECT_TRUE(at::equal(a, ramp()) && at::equal(b, expected));
    write(a);
    EXPECT_TRUE(at::equal(a, expected) && at::equal(b, expected));
  }
}

TEST(Twins, ViewsFollowTheTensorThatTheyView) {
  auto a = ramp(), b = twin_of(a), row = b[1], before = a[1];
  EXPECT_TRUE(are_twins(row, before));
  b.mul_(10);
  EXPECT_TRUE(at::equal(row, ramp()[1] * 10) && at::equal(before, ramp()[1]));
  row.zero_();
  EXPECT_EQ(b[1].sum().item<double>(), 0);
}

TEST(Twins, TheLastHolderKeepsTheMemory) {
  auto a = ramp();
  auto* memory = a.const_data_ptr();
  auto b = twin_of(a);
  a = at::Tensor();
  b.add_(1);
  EXPECT_EQ(b.const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(b, ramp() + 1));
}

TEST(Twins, AreWrittenOnceTogether) {
  Shards tensors = {ramp(), {}, {}, ramp()};
  tensors[1] = twin_of(tensors[0]), tensors[2] = twin_of(tensors[0]);
  auto view = tensors[2][0];
  int calls = 0;
  write_once(tensors, {}, [&](size_t slot) { tensors[slot].add_(1), ++calls; });
  EXPECT_EQ(calls, 2) << "once for the twins, once for the one that stands alone";
  for (auto& tensor : tensors) EXPECT_TRUE(at::equal(tensor, ramp() + 1));
  EXPECT_TRUE(share(tensors[0], tensors[2]) && at::equal(view, (ramp() + 1)[0]));
}

TEST(Twins, AreWrittenApartWhereWhatIsWrittenDiffers) {
  Shards tensors = {ramp(), {}}, values = {at::ones({3, 4}, at::kDouble), at::zeros({3, 4}, at::kDouble)};
  tensors[1] = twin_of(tensors[0]);
  write_once(tensors, values, [&](size_t slot) { tensors[slot].copy_(values[slot]); });
  for (size_t slot : {0, 1}) EXPECT_TRUE(at::equal(tensors[slot], values[slot]));
}

TEST(Twins, FollowAlsoWhereTheWriteThrows) {
  Shards tensors = {ramp(), {}};
  tensors[1] = twin_of(tensors[0]);
  auto write = [&](size_t slot) {
    tensors[slot].add_(1);
    TORCH_CHECK(false, "no more");
  };
  EXPECT_THROW(write_once(tensors, {}, write), c10::Error);
  for (auto& tensor : tensors) EXPECT_TRUE(at::equal(tensor, ramp() + 1));
}

TEST(Twins, MemoryOfSomebodyElseIsNeverWrittenOnceForTwo) {
  double memory[2] = {1, 2};
  auto a = torch::from_blob(memory, {2}, at::kDouble), b = torch::from_blob(memory, {2}, at::kDouble);
  EXPECT_TRUE(are_twins(a, b));
  EXPECT_FALSE(may_write_once(a, b)) << "the storages do not hold it together";
  EXPECT_FALSE(may_become_twins(a, b));
}

TEST(Twins, ResultsAreMadeOnce) {
  Shards given = {ramp(), {}, ramp()};
  given[1] = twin_of(given[0]);
  int calls = 0;
  auto doubled = made_once(given, [&](auto& tensor) { return ++calls, tensor * 2; });
  auto turned = made_once(given, [](auto& tensor) { return tensor.t(); });
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(share(doubled[0], doubled[1]) && !share(doubled[1], doubled[2]));
  EXPECT_TRUE(turned[1].is_alias_of(given[1]) && !turned[1].is_alias_of(given[0])) << "a view of a twin views that one";
  EXPECT_TRUE(at::equal(turned[1], ramp().t()));
}

TEST(Twins, RoomTakesMemoryWhenItIsWrittenTo) {
  Shards rooms;
  for (int i = 0; i < 3; ++i) add_room(rooms, {2, 3}, at::kFloat, 4);
  add_room(rooms, {0, 3}, at::kFloat, 4);
  EXPECT_TRUE(share(rooms[0], rooms[1]) && may_become_twins(rooms[0], rooms[1]) &&
              !may_become_twins(rooms[0], rooms[3]));
  {
    WriteForTwins twins;
    twins.add(rooms[0], rooms[1]);
    rooms[0].fill_(5), rooms[2].fill_(6);
  }
  EXPECT_TRUE(share(rooms[0], rooms[1]) && at::equal(rooms[1], at::full({2, 3}, 5.f)));
  EXPECT_TRUE(at::equal(rooms[2], at::full({2, 3}, 6.f)) && rooms[3].numel() == 0);
  EXPECT_FALSE(may_become_twins(rooms[0], rooms[2])) << "one that was written to may be pointed to";
}

TEST(Twins, MayBeWrittenToFromSeveralThreads) {
  auto a = at::zeros({1000}, at::kLong);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(twin_of(a));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { tensors[i].add_(i); });
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(tensors[i].sum().item<int64_t>(), 1000 * i);
  EXPECT_EQ(a.sum().item<int64_t>(), 0);
}

TEST(Twins, FirstOnesThatAreAlikeAreFound) {
  std::vector<int> numbers = {4, 7, 4, 4, 7, 1};
  auto first = first_alike(
      numbers.size(), [&](size_t i) { return numbers[i]; },
      [&](size_t i, size_t j) { return numbers[i] == numbers[j]; });
  EXPECT_EQ(first, (std::vector<size_t>{0, 1, 0, 0, 1, 5}));
}

}  // namespace
}  // namespace intarsia::core_twins_test
