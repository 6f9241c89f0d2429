// Which value of a parameter an op sees: the rows of Note [Reads are of the whole], one by one.

#include "intarsia/data_parallel/fully_shard/param_use.h"

#include <set>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_param_use_test {
namespace {

using Body = std::function<at::Tensor(const at::Tensor& w, const at::Tensor& x)>;

struct WeightedImpl : torch::nn::Module {
  WeightedImpl() { w = register_parameter("w", inputs(0, {4, 6})); }
  at::Tensor forward(const at::Tensor& x) { return body(w, x); }
  at::Tensor w;
  Body body;
};
INTARSIA_MODULE(Weighted);

// Its backward makes a tensor like the parameter, which outside of a backward pass sees shards.
struct LikeIt : torch::autograd::Function<LikeIt> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x, const at::Tensor& w) {
    weight = w;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    made = at::zeros_like(weight);
    weight = at::Tensor();
    return {grads[0], at::Tensor()};
  }
  static inline at::Tensor weight, made;
};

struct Given {
  Weighted model;
  Sharded group{nullptr};
  at::Tensor& w() { return model->w; }
  at::Tensor x = inputs(1, {3, 6});
};

at::Tensor on_mesh(const at::Tensor& value, const char* axis) {
  return distribute_tensor(value, init_device_mesh(at::kCPU, {2}, {axis}), {Shard(0)}, std::nullopt);
}

// A use of the parameter that no row above the one named decides, and what comes of it: distributed if the op saw
// shards.
struct Case {
  std::string when;
  at::Tensor (*use)(Given& given);
  bool with_gradients = false;
};
const std::vector<Case> kCases = {
    {"writes to a parameter: p.add_, p.copy_", [](Given& g) { return g.w().add_(1); }},
    {"meets a plain tensor: linear(x, w)", [](Given& g) { return at::linear(g.x, g.w()); }},
    {"in the forward of its module",
     [](Given& g) {
       g.model->body = [](auto& w, auto&) { return at::zeros_like(w); };
       return g.model->forward(g.x);
     }},
    {"a formula of backward",
     [](Given& g) {
       LikeIt::apply(g.x.clone().requires_grad_(), g.w()).sum().backward();
       return std::exchange(LikeIt::made, at::Tensor());
     },
     true},
    {"recorded by autograd", [](Given& g) { return g.w().clone(); }, true},
    {"meets distributed tensors on the mesh of the shards: grad.add(p)",
     [](Given& g) { return on_mesh(inputs(2, {4, 6}), "dp").add(g.w()); }},
    {"meets distributed tensors on other meshes",
     [](Given& g) {
       PlainTensorScope whole(PlainTensors::replicate);
       return to_local(on_mesh(inputs(2, {4, 6}), "other").add(g.w()));
     }},
    {"meets an unsharded parameter, or is one after unshard()",
     [](Given& g) {
       g.group.unshard();
       return at::zeros_like(g.w());
     }},
    {"makes a tensor like a parameter, or maps lists: zeros_like(p), _foreach_norm",
     [](Given& g) { return at::zeros_like(g.w()); }},
    {"reads parameters alone: w.norm(), b.mm(a)", [](Given& g) { return g.w().norm(); }},
};

TEST(ParamUses, EachRowDecidesForAnOpThatNoRowAboveItDecides) {
  std::set<std::string> tried;
  for (auto& one : kCases) {
    SCOPED_TRACE(one.when);
    auto world = simulate(2);
    Given given;
    given.group = fully_shard(given.model, all_ranks());
    auto rows = param_use_rows();
    auto row = std::find_if(rows.begin(), rows.end(), [&](auto& each) { return each.when == one.when; });
    ASSERT_NE(row, rows.end());
    tried.insert(one.when);
    torch::AutoGradMode mode(one.with_gradients);
    CommDebugMode comms;
    auto result = one.use(given);
    bool gathered = comms.text().find("all_gather") != std::string::npos;
    EXPECT_EQ(is_dtensor(result) ? ParamValue::shards : ParamValue::whole, row->sees);
    EXPECT_EQ(gathered, row->sees == ParamValue::whole) << comms.text();
  }
  EXPECT_EQ(tried.size(), param_use_rows().size());
}

TEST(ParamUses, TheFirstRowWhoseConditionHoldsDecides) {
  auto rows = param_use_rows();
  ParamUse all;
  for (auto& row : rows) {
    if (row.condition) all.*row.condition = true;
  }
  for (auto& row : rows) {
    EXPECT_STREQ(row_of(all).when, row.when);
    if (row.condition) all.*row.condition = false;
  }
  EXPECT_EQ(row_of({}).condition, nullptr);
}

}  // namespace
}  // namespace intarsia::data_parallel_param_use_test
