// How random ops use the stream of the generator is seen, not assumed.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "intarsia/random/use.h"

namespace intarsia::random_use_test {
namespace {

// As a kernel that hands one word to the stream of a vector library.
at::Tensor& seeded_(at::Tensor& self, double p, std::optional<at::Generator> generator) {
  auto* drawn = at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator());
  std::unique_lock lock(drawn->mutex_);
  auto seed = drawn->random();
  lock.unlock();
  return self.bernoulli_(p, at::detail::createCPUGenerator(seed));
}

StreamUse use_of_op(const char* name, const char* overload, at::ScalarType dtype = at::kFloat) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  return use_of(op, {at::Tensor(), 0.5, c10::IValue()}, dtype, true);
}

TEST(StreamUse, OfAKernelThatTakesOneWordAsASeedCannotBeTold) {
  torch::Library library(torch::Library::DEF, "intarsia_use_test", std::nullopt, __FILE__, __LINE__);
  library.def("seeded_(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> Tensor(a!)", &seeded_);
  EXPECT_EQ(use_of_op("intarsia_use_test::seeded_", "").unit, 0);
}

TEST(StreamUse, OfThisLibTorchsDropoutIsTwoWordsForEachElement) {
  auto use = use_of_op("aten::bernoulli_", "float");
  EXPECT_EQ(use.unit, 1);
  EXPECT_EQ(use.words, 2);
}

TEST(StreamUse, OfArgumentsThatTheOpRefusesCannotBeTold) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli_", "float");
  EXPECT_EQ(use_of(op, {at::Tensor(), 1.5, c10::IValue()}, at::kFloat, true).unit, 0);
}

}  // namespace
}  // namespace intarsia::random_use_test
