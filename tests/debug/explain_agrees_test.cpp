// explain asks the same functions as dispatch does, so it never says otherwise: tried with every sample, cut in every way.

#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/comm/simulation.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/debug/explain.h"
#include "intarsia/dispatch/op.h"
#include "tests/rules/harness.h"
#include "tests/support/lay_out.h"

namespace intarsia::debug_explain_agrees_test {
namespace {

// explain fills tensor arguments in order, so none may be missing between others, and a list takes all that are left.
bool can_be_asked(const SampleCall& sample) {
  Op op(sample.handle());
  if (op.is_random) return false;
  auto lists = std::count(op.kinds.begin(), op.kinds.end(), ArgKind::tensor_list);
  auto single = std::count(op.kinds.begin(), op.kinds.end(), ArgKind::tensor);
  auto& tensors = sample.tensors();
  bool all = std::all_of(tensors.begin(), tensors.end(), [](auto& t) { return t.defined(); });
  return all && !tensors.empty() && (lists == 0 || single == 0);
}

std::map<std::string, c10::IValue> arguments_of(const SampleCall& sample) {
  std::map<std::string, c10::IValue> arguments;
  auto args = sample.seen().args;
  for (size_t i = 0; i < args.size(); ++i) {
    bool tensor = args[i].isTensor() || args[i].isTensorList() || (args[i].isList() && !args[i].isIntList() && !args[i].isBoolList() &&
                                                                   !args[i].isDoubleList());
    if (!tensor) arguments[sample.schema().arguments()[i].name()] = args[i];
  }
  return arguments;
}

// Numbers with a fraction have no such reduction.
bool is_bitwise(const Placement& p) {
  auto op = pending_op(p);
  return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
}

// How dispatch leaves the results: [S(0)], [R]
std::string dispatched(const SampleCall& sample, const Row& row, const DeviceMesh& mesh) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < sample.tensors().size(); ++i) inputs.push_back(lay_out(sample.tensors()[i], mesh, {row.in[i]}));
  auto stack = sample.with_tensors(inputs);
  at::NoGradGuard no_grad;
  sample.handle().callBoxed(stack);
  std::string text;
  for (auto& tensor : tensors_in(stack)) {
    if (!tensor.defined() || !is_dtensor(tensor)) return "";
    text += (text.empty() ? "" : ", ") + str(placements_of(tensor));
  }
  return text;
}

TEST(Explain, NeverContradictsDispatch) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  int64_t asked = 0;
  std::set<std::string> along;
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    if (!plain.runs() || !can_be_asked(plain)) continue;
    auto& rule = rule_table().rules().at(sample.op);
    auto rows = rule.rows(plain.seen());
    for (size_t d = 0; d < plain.seen().inputs[0].sizes.size(); ++d) {  // also cuts that no row of the rule has
      Row cut{Placements(plain.tensors().size(), Replicate()), {}};
      cut.in[0] = Shard(d);
      rows.push_back(cut);
    }
    for (auto& row : rows) {
      if (std::any_of(row.in.begin(), row.in.end(), is_bitwise)) continue;
      SCOPED_TRACE(plain.text() + "  " + str(Row{row.in, {}}));
      std::vector<Imagined> imagined;
      for (size_t i = 0; i < plain.tensors().size(); ++i) {
        auto& tensor = plain.tensors()[i];
        imagined.push_back({tensor.sizes().vec(), {row.in[i]}, tensor.scalar_type()});
      }
      auto found = dispatched(plain, row, mesh);
      if (found.empty()) continue;
      Explanation told;
      try {
        told = explain(sample.op, imagined, mesh, arguments_of(plain));
      } catch (const c10::Error& error) {
        auto text = std::string(error.what_without_backtrace());
        EXPECT_TRUE(text.find("without data") != text.npos || text.find("meta") != text.npos) << text;
        continue;
      }
      EXPECT_EQ(told.chosen.substr(told.chosen.find(" -> ") + 4), found) << told.text;
      if (told.along) along.insert(sample.op);
      ++asked;
    }
  }
  std::cout << asked << " calls explained, of which " << along.size() << " ops along a cut\n";
  EXPECT_GT(asked, 2000);
  EXPECT_GT(along.size(), 40u);
}

}  // namespace
}  // namespace intarsia::debug_explain_agrees_test
