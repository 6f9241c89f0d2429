// torch::nn::init on parameters of every cut: the values of a plain parameter after the same seed.

#include "tests/ops/every_cut.h"

namespace intarsia::ops_init_test {
namespace {

namespace init = torch::nn::init;

CutCase fills(std::string name, std::function<at::Tensor(at::Tensor)> fill, std::vector<int64_t> shape) {
  CutCase c{
      std::move(name), function([fill](auto& t) { return fill(t[0].detach().clone()); }), {waves(std::move(shape))}};
  c.gradient = false;
  return c;
}

std::vector<CutCase> all_fills() {
  return {
      fills("constant_", [](at::Tensor t) { return init::constant_(t, 0.5); }, {5, 3}),
      fills("dirac_", [](at::Tensor t) { return init::dirac_(t); }, {5, 3, 3}),
      fills("eye_", [](at::Tensor t) { return init::eye_(t); }, {5, 3}),
      fills("normal_", [](at::Tensor t) { return init::normal_(t, 1, 0.5); }, {5, 3}),
      fills("ones_", [](at::Tensor t) { return init::ones_(t); }, {5, 3}),
      fills("orthogonal_", [](at::Tensor t) { return init::orthogonal_(t, 1.5); }, {5, 3}),
      fills("orthogonal_ wide", [](at::Tensor t) { return init::orthogonal_(t); }, {3, 2, 4}),
      fills("sparse_", [](at::Tensor t) { return init::sparse_(t, 0.4); }, {5, 3}),
      fills("uniform_", [](at::Tensor t) { return init::uniform_(t, -1, 2); }, {5, 3}),
      fills("kaiming_normal_", [](at::Tensor t) { return init::kaiming_normal_(t); }, {5, 3}),
      fills("kaiming_uniform_", [](at::Tensor t) { return init::kaiming_uniform_(t); }, {5, 3, 2}),
      fills("xavier_normal_", [](at::Tensor t) { return init::xavier_normal_(t); }, {5, 3}),
      fills("xavier_uniform_", [](at::Tensor t) { return init::xavier_uniform_(t); }, {5, 3}),
      fills("zeros_", [](at::Tensor t) { return init::zeros_(t); }, {5, 3}),
  };
}

TEST(NnInit, FillsAsOnPlainParameters) { check_every_cut(all_fills()); }

}  // namespace
}  // namespace intarsia::ops_init_test
