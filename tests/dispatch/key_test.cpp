// A call makes the same key whether its arguments come boxed or typed: else what one way decides, the other never
// finds.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ATen/Operators.h>

#include "intarsia/dispatch/key.h"
#include "intarsia/dispatch/op.h"
#include "intarsia/intarsia.h"
#include "tests/support/world.h"

namespace intarsia::dispatch_key_test {
namespace {

template <class AtenOp, class Schema = typename AtenOp::schema>
struct Keys;

template <class AtenOp, class Result, class... Args>
struct Keys<AtenOp, Result(Args...)> {
  static void compare(Args... args) {
    Op op(c10::Dispatcher::singleton().findSchemaOrThrow(AtenOp::name, AtenOp::overload_name));
    CallKey boxed, typed;
    auto stack = c10::impl::boxArgs<Args...>(args...);
    EXPECT_TRUE(make_key(op, stack, boxed)) << op.name;
    EXPECT_TRUE((keys::push(typed, args) && ...)) << op.name;
    EXPECT_EQ(std::vector<int64_t>(boxed.begin(), boxed.end()), std::vector<int64_t>(typed.begin(), typed.end()))
        << op.name;
  }
};

TEST(CallKey, IsTheSameForBoxedAndTypedArguments) {
  for_each_world({2, 4}, [](int64_t n) {
    namespace ops = at::_ops;
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = distribute_tensor(at::rand({4, 2, 4, 4}), mesh, {Shard(0)});
    auto w = distribute_tensor(at::rand({2, 2, 3, 3}), mesh, {Replicate()});
    std::vector<c10::SymInt> pair = {1, 2}, wide = {1, 1, 1, 1};
    std::vector<int64_t> dims = {0, -1};
    Keys<ops::convolution>::compare(x, w, {}, pair, pair, pair, false, pair, 1);
    Keys<ops::convolution>::compare(x, w, at::ones({2}), pair, pair, pair, true, pair, 2);
    Keys<ops::convolution_backward>::compare(x, x, w, std::nullopt, pair, pair, pair, false, pair, 1,
                                             {true, false, true});
    Keys<ops::convolution_backward>::compare(x, x, w, pair, pair, pair, pair, false, pair, 1, {true, true, true});
    Keys<ops::add_Tensor>::compare(x, at::ones({}), 2);
    Keys<ops::add_Tensor>::compare(x, x.transpose(2, 3), 2.5);
    Keys<ops::masked_fill_Scalar>::compare(x, x > 0.5, true);
    Keys<ops::pow_Tensor_Scalar>::compare(x, c10::complex<double>(1, 2));
    Keys<ops::sum_dim_IntList>::compare(x, dims, true, at::kDouble);
    Keys<ops::sum_dim_IntList>::compare(x, std::nullopt, false, std::nullopt);
    Keys<ops::var_correction>::compare(x, dims, at::Scalar(1), false);
    Keys<ops::gelu>::compare(x, "tanh");
    Keys<ops::cat>::compare(std::vector<at::Tensor>{x, x, at::Tensor(w)}, 1);
    Keys<ops::stack>::compare(std::vector<at::Tensor>{x, x}, 1);
    Keys<ops::slice_Tensor>::compare(x, 1, std::nullopt, c10::SymInt(3), 2);
    Keys<ops::native_layer_norm>::compare(x, pair, {}, w, 1e-5);
    Keys<ops::expand>::compare(x, wide, false);
    Keys<ops::_scaled_dot_product_flash_attention_for_cpu>::compare(x, x, x, 0.0, true, std::nullopt, 0.5);
  });
}

TEST(DirectCalls, TakePlainTensorsOfOneElementInAnyPlace) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto one = at::full({1, 1, 1, 1}, 2.0), weight = at::rand({2, 1, 1, 1});
    auto cut = distribute_tensor(weight, mesh, {Replicate()});
    for (int time = 0; time < 2; ++time) {
      EXPECT_TRUE(at::allclose(full_tensor(at::conv2d(one, cut)), at::conv2d(one, weight)));
      EXPECT_TRUE(at::allclose(full_tensor(at::full({}, 2.0) * cut), 2 * weight));
    }
  });
}

}  // namespace
}  // namespace intarsia::dispatch_key_test
