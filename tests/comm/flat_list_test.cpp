// Lists of tensors in one buffer.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "intarsia/comm/flat_list.h"

namespace intarsia::comm_flat_list_test {
namespace {

at::Tensor numbers(int64_t begin, at::IntArrayRef shape) {
  return at::arange(begin, begin + c10::multiply_integers(shape), at::kFloat).view(shape);
}

TEST(FlatList, PacksValuesInTheirOrderHoweverTheyLie) {
  auto a = numbers(0, {2, 3}), b = numbers(10, {3, 2}).t(), none = at::empty({0}), c = numbers(20, {1});
  EXPECT_TRUE(pack({a, none, c}).equal(at::cat({a.view(-1), c})));
  EXPECT_TRUE(pack({a, b, none, c}).equal(at::cat({a.view(-1), b.contiguous().view(-1), c})));
  auto conjugate = at::complex(a, a).conj();
  EXPECT_TRUE(
      pack({conjugate, conjugate}).equal(at::cat({conjugate.resolve_conj(), conjugate.resolve_conj()}).view(-1)));
  EXPECT_EQ(pack({}, at::kDouble).scalar_type(), at::kDouble);
}

TEST(FlatList, UnpacksWhatItHasPacked) {
  std::vector<at::Tensor> into{at::empty({2, 3}), at::empty({0}), at::empty({3, 2}).t(), at::empty({})};
  std::vector<at::Tensor> from{numbers(0, {2, 3}), at::empty({0}), numbers(6, {2, 3}), numbers(12, {})};
  unpack(pack(from), into);
  for (size_t i = 0; i < into.size(); ++i) EXPECT_TRUE(into[i].equal(from[i])) << i;
}

TEST(FlatList, CopiesNothingWhereTensorsStandOneBehindTheOther) {
  auto whole = numbers(0, {10});
  auto first = whole.narrow(0, 2, 3), second = whole.narrow(0, 5, 4);
  EXPECT_EQ(joined({first, at::empty({0}), second}).data_ptr(), first.data_ptr());
  EXPECT_TRUE(joined({first, second}).equal(whole.narrow(0, 2, 7)));
  EXPECT_NE(joined({second, first}).data_ptr(), second.data_ptr());
  EXPECT_TRUE(joined({second, first}).equal(at::cat({second, first})));
}

TEST(FlatList, GroupsDtypesInTheOrderInWhichTheyCome) {
  const at::ScalarType types[] = {at::kFloat, at::kLong, at::kFloat, at::kBool, at::kLong};
  auto places = places_by_dtype(5, [&](size_t i) { return types[i]; });
  EXPECT_EQ(places, (std::vector<std::vector<size_t>>{{0, 2}, {1, 4}, {3}}));
}

}  // namespace
}  // namespace intarsia::comm_flat_list_test
