// explain asks the same functions as dispatch does, so it never says otherwise: tried with every sample, cut in every
// way.

#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/core/pending.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/debug/explain.h"
#include "intarsia/debug/explain_text.h"
#include "intarsia/dispatch/op.h"
#include "intarsia/simulation/simulation.h"
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
    bool tensor = args[i].isTensor() || args[i].isTensorList() ||
                  (args[i].isList() && !args[i].isIntList() && !args[i].isBoolList() && !args[i].isDoubleList());
    if (!tensor) arguments[sample.schema().arguments()[i].name()] = args[i];
  }
  return arguments;
}

// Numbers with a fraction have no such reduction.
bool is_bitwise(const Placement& p) {
  auto op = pending_op(p);
  return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
}

// What dispatch does with a call: how the results lie, and what moved.
struct Done {
  std::string layouts;  // [S(0)], [R]; empty if a result is not distributed
  std::string moved;
};

std::string text_of(const std::vector<CommEvent>& events) {
  std::string text;
  for (auto& event : events) text += str(event) + "\n";
  return text;
}

Done dispatched(const c10::OperatorHandle& op, std::vector<c10::IValue> stack) {
  at::NoGradGuard no_grad;
  CommDebugMode comms;
  op.callBoxed(stack);
  std::string text;
  for (auto& tensor : tensors_in(stack)) {
    if (!tensor.defined() || !is_dtensor(tensor)) return {};
    shards_of(tensor);  // what is on its way arrives
    text += (text.empty() ? "" : ", ") + str(placements_of(tensor));
  }
  return {text, comms.text()};
}

// The placements of all inputs, per axis of a mesh.
using Cut = std::vector<Placements>;

// Each row on every axis, on the first alone, and cuts of the first input in every way, also those that no row of the
// rule has.
std::vector<Cut> cuts_of(const SampleCall& sample, const Rule& rule, int64_t axes) {
  Placements whole(sample.tensors().size(), Replicate());
  std::vector<Placements> rows;
  for (auto& row : rule.rows(sample.seen())) {
    if (std::none_of(row.in.begin(), row.in.end(), is_bitwise)) rows.push_back(row.in);
  }
  std::vector<Cut> cuts;
  for (auto& row : rows) {
    cuts.push_back(Cut(axes, row));
    if (axes == 1) continue;
    cuts.push_back({row, whole});
  }
  auto dims = static_cast<int64_t>(sample.seen().inputs[0].sizes.size());
  auto cut = [&](int64_t dim) {
    auto placements = whole;
    placements[0] = Shard(dim);
    return placements;
  };
  for (int64_t d = 0; d < dims; ++d) {
    if (axes == 1) cuts.push_back({cut(d)});
    for (int64_t e = 0; e < dims && axes == 2; ++e) cuts.push_back({cut(d), cut(e)});
  }
  return cuts;
}

Placements placements_at(const Cut& cut, size_t input) {
  Placements placements;
  for (auto& axis : cut) placements.push_back(axis[input]);
  return placements;
}

std::string str(const SampleCall& sample, const Cut& cut) {
  std::string text = sample.text();
  for (size_t i = 0; i < sample.tensors().size(); ++i) text += " " + intarsia::str(placements_at(cut, i));
  return text;
}

struct Count {
  int64_t asked = 0;
  std::set<std::string> along;
};

void ask(const Sample& sample, const SampleCall& plain, const Cut& cut, const DeviceMesh& mesh, Count& count) {
  std::vector<at::Tensor> inputs;
  std::vector<Imagined> imagined;
  for (size_t i = 0; i < plain.tensors().size(); ++i) {
    auto& tensor = plain.tensors()[i];
    auto placements = placements_at(cut, i);
    if (!have_one_value(placements)) return;
    inputs.push_back(lay_out(tensor, mesh, placements));
    imagined.push_back({tensor.sizes().vec(), placements, tensor.scalar_type()});
  }
  auto done = dispatched(plain.handle(), plain.with_tensors(inputs));
  if (done.layouts.empty()) return;
  auto told = explain(sample.op, imagined, mesh, arguments_of(plain));
  EXPECT_EQ(told.chosen.substr(told.chosen.find(" -> ") + 4), done.layouts) << told.text;
  // index_select moves the rows that its places name, and a rehearsal has other places.
  auto moved = sample.op == "aten::index_select" ? text_of(told.moves) : done.moved;
  EXPECT_EQ(text_of(told.moves), moved) << told.text;
  if (told.along) count.along.insert(sample.op);
  ++count.asked;
}

Count ask_all(const DeviceMesh& mesh) {
  Count count;
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    if (!plain.runs() || !can_be_asked(plain)) continue;
    for (auto& cut : cuts_of(plain, rule_table().rules().at(sample.op), mesh.ndim())) {
      SCOPED_TRACE(str(plain, cut));
      ask(sample, plain, cut, mesh, count);
    }
  }
  std::cout << count.asked << " calls explained, of which " << count.along.size() << " ops along a cut\n";
  return count;
}

TEST(Explain, NeverContradictsDispatch) {
  auto world = simulate(2);
  auto count = ask_all(init_device_mesh(at::kCPU, {2}));
  EXPECT_GT(count.asked, 2000);
  EXPECT_GT(count.along.size(), 40u);
}

TEST(Explain, NeverContradictsDispatchOverTwoAxes) {
  auto world = simulate(4);
  auto count = ask_all(init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"}));
  EXPECT_GT(count.asked, 4000);
  EXPECT_GT(count.along.size(), 40u);
}

// --- ops that LibTorch makes of others: the names that users know

struct Composite {
  const char* op;
  std::vector<const char*> tensors;
  std::map<std::string, c10::IValue> arguments;
};

std::vector<Composite> composites() {
  using Sizes = std::vector<int64_t>;
  return {
      {"softmax.int", {"[8, 12] S(0), S(1)"}, {{"dim", 1}}},
      {"log_softmax.int", {"[8, 12] R, S(0)"}, {{"dim", 1}}},
      {"dropout", {"[8, 12] S(0)"}, {{"p", 0.5}, {"train", true}}},
      {"flatten.using_ints", {"[8, 4, 3] S(0), S(1)"}, {{"start_dim", 0}}},
      {"flatten.using_ints", {"[8, 4, 3] S(0), R"}, {{"start_dim", 1}}},
      {"layer_norm", {"[8, 12] S(0), S(1)", "[12] R, S(0)", "[12]"}, {{"normalized_shape", Sizes{12}}}},
      {"layer_norm", {"[8, 12] S(0), R"}, {{"normalized_shape", Sizes{12}}}},
      {"batch_norm",
       {"[8, 6, 4] S(0), S(1)", "[6]", "[6]", "none", "none"},
       {{"training", true}, {"momentum", 0.1}, {"eps", 1e-5}, {"cudnn_enabled", false}}},
      {"group_norm", {"[8, 6, 4] S(0)"}, {{"num_groups", 2}}},
      {"scaled_dot_product_attention",
       {"[4, 6, 5, 8] S(0), S(1)", "[4, 6, 5, 8] S(0), S(1)", "[4, 6, 5, 8] S(0), S(1)"},
       {}},
      {"cross_entropy_loss", {"[8, 12] S(0), S(1)", "[8] S(0) long"}, {}},
      {"nll_loss", {"[8, 12] S(0)", "[8] S(0) long"}, {}},
      {"embedding", {"[10, 4] S(0), R", "[8] R, S(0) long"}, {}},
      {"linear", {"[8, 12] S(0)", "[6, 12] R, S(0)", "[6] R, S(0)"}, {}},
      {"matmul", {"[8, 12] R, S(1)", "[12, 6] R, S(0)"}, {}},
      {"binary_cross_entropy_with_logits", {"[8] S(0)", "[8] S(0)"}, {}},
      {"conv2d", {"[4, 3, 8, 8] S(0), S(3)", "[6, 3, 3, 3]"}, {{"padding", Sizes{1, 1}}}},
      {"max_pool2d", {"[4, 3, 8, 8] S(0), S(3)"}, {{"kernel_size", Sizes{2, 2}}}},
      {"reshape", {"[8, 4, 3] S(0), S(1)"}, {{"shape", Sizes{32, 3}}}},
      {"chunk", {"[8, 12] S(0), S(1)"}, {{"chunks", 3}, {"dim", 1}}},
      {"add_.Tensor", {"[8, 12] S(0), R", "[8, 12] R, S(1)"}, {}},
      {"mul_.Tensor", {"[8, 12] P(sum), R", "[8, 12]"}, {}},
      {"nonzero", {"[8] S(0)"}, {}},
      {"einsum", {"[8, 12] S(0)", "[12, 6] R, S(1)"}, {{"equation", "ij,jk->ik"}}},
  };
}

at::Tensor values_for(const Imagined& imagined) {
  if (imagined.dtype == at::kLong) return at::zeros(imagined.shape, at::kLong);
  return at::rand(imagined.shape, at::TensorOptions(imagined.dtype));
}

TEST(Explain, KnowsOpsThatAreMadeOfOthers) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  for (auto& [name, texts, arguments] : composites()) {
    SCOPED_TRACE(name);
    std::vector<Imagined> imagined;
    std::vector<at::Tensor> inputs;
    for (auto* text : texts) {
      auto& tensor = imagined.emplace_back(parse_imagined(text));
      auto placements = tensor.placements;
      placements.resize(2, Replicate());
      inputs.push_back(tensor.defined ? lay_out(values_for(tensor), mesh, placements) : at::Tensor());
    }
    auto told = explain(name, imagined, mesh, arguments);
    auto dot = std::string(name).find('.');
    auto base = "aten::" + std::string(name).substr(0, dot),
         overload = dot == std::string::npos ? "" : std::string(name).substr(dot + 1);
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
    std::vector<c10::IValue> stack;
    size_t next = 0;
    for (auto& argument : op.schema().arguments()) {
      auto given = arguments.find(argument.name());
      bool list = argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
      bool tensor = argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
      if (given != arguments.end())
        stack.push_back(given->second);
      else if (list)
        stack.emplace_back(std::vector<at::Tensor>(inputs.begin() + next, inputs.end()));
      else if (tensor && next < inputs.size())
        inputs[next].defined() ? stack.emplace_back(inputs[next]) : stack.emplace_back(), ++next;
      else
        stack.push_back(argument.default_value().value_or(c10::IValue()));
    }
    auto done = dispatched(op, stack);
    EXPECT_EQ(told.chosen.substr(told.chosen.find(" -> ") + 4), done.layouts) << told.text;
    EXPECT_EQ(text_of(told.moves), done.moved) << told.text;
  }
}

}  // namespace
}  // namespace intarsia::debug_explain_agrees_test
