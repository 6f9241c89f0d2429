// A custom op gets a sharding rule, and the rule is proven.
//
//   build/examples/3_a_rule_of_your_own
//
// prints:
//   without a rule: 1 fallback, [R]
//   with a rule:    0 fallbacks, [S(0)]
//   proof: every row is right
//   a wrong row is found: P(sum) -> P(sum) on 2 ranks: output 0 differs from the plain op's

#include <iostream>

#include <torch/library.h>
#include <torch/torch.h>

#include "intarsia/debug/prove.h"
#include "intarsia/intarsia.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

using namespace intarsia;

// x * sigmoid(beta * x), as a library of yours might have it: an op with a kernel for CPU tensors.
at::Tensor swish(const at::Tensor& x, double beta) { return x * torch::sigmoid(x * beta); }

TORCH_LIBRARY(mylib, library) {
  library.def("swish(Tensor x, float beta) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, swish));
  library.def("unruled(Tensor x, float beta) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, swish));
  library.def("misruled(Tensor x, float beta) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, swish));
}

void report(const char* what, const char* op, const at::Tensor& x) {
  auto call = c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<at::Tensor(const at::Tensor&, double)>();
  CommDebugMode comms;
  auto y = call.call(x, 2.0);
  auto count = comms.fallbacks().size();
  std::cout << what << count << (count == 1 ? " fallback, " : " fallbacks, ") << str(placements_of(y)) << "\n";
}

int main() {
  // The rule: elementwise, so every dim may be cut. Rows can also be written out, as in the second one, which is wrong:
  // swish(a + b) is not swish(a) + swish(b).
  rule_table().add("mylib::swish", pointwise());
  rule_table().add("mylib::misruled", rows("mine", [](const OpCall&) { return Rows{{{P_sum}, {P_sum}}}; }));

  auto world = simulate(4);
  auto x = distribute_tensor(torch::randn({8, 3}), init_device_mesh(torch::kCPU, {4}), {Shard(0)});
  report("without a rule: ", "mylib::unruled", x);
  report("with a rule:    ", "mylib::swish", x);

  // The proof: all rows, on 2, 3 and 4 ranks, with sizes that do not divide.
  auto wrong = prove("mylib::swish", {torch::randn({5, 3}), 2.0});
  std::cout << "proof: " << (wrong.empty() ? "every row is right" : wrong[0]) << "\n";
  std::cout << "a wrong row is found: " << prove("mylib::misruled", {torch::randn({5, 3}), 2.0}).at(0) << "\n";
  return wrong.empty() ? 0 : 1;
}
