#include "tests/rules/harness.h"

#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/core/pending.h"
#include "intarsia/simulation/simulation.h"
#include "tests/support/dealer.h"

namespace intarsia {
namespace {

at::Tensor distinct(std::vector<int64_t> sizes) {
  auto count = c10::multiply_integers(sizes);
  static int64_t calls = 0;
  int64_t step = 7;
  while (count > 0 && std::gcd(step, count) > 1) step += 2;  // so that it is a permutation
  auto order = (at::arange(count) * step + ++calls) % std::max<int64_t>(count, 1);
  return order.to(at::kDouble).reshape(sizes);
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.is_floating_point()) return tensor;
  if (dtype == at::kBool) return tensor > 0.3;
  if (dtype == at::kByte) return (tensor * 2).round().abs().to(dtype);
  if (at::isIntegralType(dtype, false)) return (tensor * 2).round().to(dtype);
  if (at::isComplexType(dtype)) return at::complex(tensor, tensor.flip(at::IntArrayRef({})) * 0.5 - 0.25).to(dtype);
  return tensor.to(dtype);
}

c10::OperatorHandle find_op(const std::string& name) {
  auto dot = name.find('.');
  auto overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(), overload.c_str());
}

// The samples of a view serve its copying variant.
void add_copy_samples(std::vector<Sample>& list) {
  for (size_t i = 0, count = list.size(); i < count; ++i) {
    auto sample = list[i];
    auto dot = sample.op.find('.');
    sample.op.insert(dot == std::string::npos ? sample.op.size() : dot, "_copy");
    auto rule = rule_table().rules().find(sample.op);
    if (rule != rule_table().rules().end() && rule->second.copies == list[i].op) list.push_back(sample);
  }
}

// A list of tensors of which some may be missing.
bool is_optional_list(const c10::IValue& value, const c10::Argument& argument) {
  return value.isList() && !value.isTensorList() && argument.type()->str().find("Tensor?[]") != std::string::npos;
}

Placements column(const Trial& trial, size_t i, bool out) {
  Placements placements;
  for (auto& row : trial.rows) placements.push_back(out ? row.out[i] : row.in[i]);
  return placements;
}

std::vector<const Layout*> layouts(const Trial& trial, const DeviceMesh& mesh, size_t count, bool out) {
  std::vector<const Layout*> result;
  for (size_t i = 0; i < count; ++i) result.push_back(Layout::get(mesh, column(trial, i, out)));
  return result;
}

double largest_of(const at::Tensor& t) {
  bool any = t.defined() && t.numel() && (t.is_floating_point() || t.is_complex());
  return any ? t.abs().to(at::kDouble).nan_to_num(0, 0, 0).max().item<double>() : 0;
}

// Short floats are compared beside the largest value and the largest product of two: terms of a sum may be that large.
double tolerance_of(const at::Tensor& expected, const std::vector<at::Tensor>& inputs) {
  auto dtype = expected.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    return c10::elementSize(c10::toRealValueType(dtype)) == 4 ? 1e-4 : 1e-9;
  auto largest = largest_of(expected);
  for (auto& input : inputs) largest = std::max(largest, largest_of(input) * largest_of(input));
  return (dtype == at::kHalf ? 3e-3 : 2e-2) * std::max(1.0, largest);
}

}  // namespace

at::Tensor x(std::vector<int64_t> sizes) {
  auto count = c10::multiply_integers(sizes);
  return (distinct(std::move(sizes)) - count / 2 + 0.375) / 4;
}
at::Tensor pos(std::vector<int64_t> sizes) { return (distinct(std::move(sizes)) + 5) / 4; }
at::Tensor unit(std::vector<int64_t> sizes) {
  auto count = c10::multiply_integers(sizes);
  return (distinct(std::move(sizes)) - count / 2 + 0.25) / (count + 1.0);
}
at::Tensor below(int64_t n, std::vector<int64_t> sizes) { return distinct(std::move(sizes)).to(at::kLong) % n; }

const std::vector<Sample>& samples() {
  static auto* all = [] {
    auto* list = new std::vector<Sample>;
    add_pointwise_samples(*list);
    add_other_samples(*list);
    add_nn_samples(*list);
    add_convolution_samples(*list);
    add_structure_samples(*list);
    add_special_samples(*list);
    add_module_samples(*list);
    add_copy_samples(*list);
    return list;
  }();
  return *all;
}

bool is_inner(const std::string& op) {
  return op.find("backward") != std::string::npos || op.find("::_") != std::string::npos;
}

std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (auto& value : values) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

SampleCall::SampleCall(const Sample& sample, at::ScalarType dtype) : handle_(find_op(sample.op)) {
  auto& arguments = schema().arguments();
  TORCH_CHECK(sample.args.size() == arguments.size(), "the sample of ", sample.op, " has ", sample.args.size(),
              " arguments, the op ", arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto value = sample.args[i];
    if (value.isTensor()) {
      value = cast(value.toTensor(), dtype);
      tensors_.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(cast(tensor, dtype));
      value = list;
      for (const at::Tensor& tensor : list) tensors_.push_back(tensor);
    } else if (is_optional_list(value, arguments[i])) {
      for (auto& item : value.toListRef()) tensors_.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
    } else if (arguments[i].type()->str().find("Tensor") != std::string::npos) {
      tensors_.emplace_back();  // a missing optional tensor keeps its place
    }
    args_.push_back(std::move(value));
  }
  auto stack = args_;
  runs_ = sample.whole_numbers || !at::isIntegralType(dtype, true);
  if (!runs_) return;
  try {
    handle_.callBoxed(stack);
    for (auto& tensor : tensors_in(stack)) tensor.clone();
  } catch (const std::exception&) {
    runs_ = false;
    return;
  }
  expected_ = tensors_in(stack);
  for (auto& tensor : tensors_) inputs_.push_back(form_of(tensor));
  for (auto& tensor : expected_) outputs_.push_back(form_of(tensor));
}

std::vector<c10::IValue> SampleCall::with_tensors(const std::vector<at::Tensor>& tensors) const {
  auto stack = args_;
  size_t next = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      stack[i] = tensors[next++];
    } else if (stack[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < args_[i].toTensorList().size(); ++k) list.push_back(tensors[next++]);
      stack[i] = list;
    } else if (is_optional_list(args_[i], schema().arguments()[i])) {
      c10::List<std::optional<at::Tensor>> list;
      for (size_t k = 0; k < args_[i].toListRef().size(); ++k, ++next) {
        list.push_back(tensors[next].defined() ? std::optional(tensors[next]) : std::nullopt);
      }
      stack[i] = list;
    } else if (schema().arguments()[i].type()->str().find("Tensor") != std::string::npos) {
      ++next;
    }
  }
  return stack;
}

std::string SampleCall::text() const {
  std::string text = c10::toString(handle_.operator_name()) + "(";
  for (size_t i = 0; i < args_.size(); ++i) {
    if (i) text += ", ";
    if (args_[i].isTensor()) {
      text += c10::str(args_[i].toTensor().scalar_type(), args_[i].toTensor().sizes());
    } else if (args_[i].isTensorList() || is_optional_list(args_[i], schema().arguments()[i])) {
      text += "tensors";
    } else {
      text += c10::str(args_[i]);
    }
  }
  return text + ")";
}

bool possible(const SampleCall& call, const Rule& rule, const Trial& trial) {
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    auto placements = column(trial, i, false);
    if (!have_one_value(placements)) return false;
    for (auto& p : placements) {
      if (!call.tensors()[i].defined() ? !is_replicate(p) : !can_hold(p, call.tensors()[i].scalar_type())) return false;
    }
  }
  for (size_t i = 0; i < call.expected().size(); ++i) {
    if (!have_one_value(column(trial, i, true))) return false;
    if (call.expected()[i].numel() > 0) continue;
    for (auto& row : trial.rows) {
      if (!can_hold(row.out[i], call.expected()[i].scalar_type())) return false;
    }
  }
  if (!rule.legal) return true;
  auto world = simulate(c10::multiply_integers(trial.mesh_shape));
  auto mesh = init_device_mesh(at::kCPU, trial.mesh_shape);
  auto in = Layout::get(mesh, column(trial, 0, false)), out = Layout::get(mesh, column(trial, 0, true));
  return rule.legal(call.seen(), *in, *out);
}

std::vector<std::vector<at::Tensor>> run_on_ranks(const SampleCall& call, const Rule& rule, const Trial& trial) {
  auto world = simulate(c10::multiply_integers(trial.mesh_shape));
  auto mesh = init_device_mesh(at::kCPU, trial.mesh_shape);
  auto in = layouts(trial, mesh, call.tensors().size(), false);
  auto out = layouts(trial, mesh, call.expected().size(), true);
  std::vector<Parts> dealt;
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    auto& whole = call.tensors()[i];
    dealt.push_back(whole.defined() ? deal_out(whole, column(trial, i, false), trial.mesh_shape) : Parts(mesh.size()));
  }
  auto seen = call.seen();
  std::vector<std::vector<at::Tensor>> results;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    std::vector<at::Tensor> mine;
    for (auto& pieces : dealt) mine.push_back(pieces[rank]);
    auto stack = call.with_tensors(mine);
    auto& slot = mesh.slots()[rank];
    for (auto& name : rule.local.size_args) {
      auto shape = local_shape(*out[0], call.expected()[0].sizes(), slot.coordinate);
      auto arg = seen.arg_index(name.c_str());
      stack[arg] = local_size(seen.schema.arguments()[arg], shape);
    }
    if (rule.local.run) {
      LocalCall local{seen, in, out, slot, stack, call.handle()};
      rule.local.run(local);
    } else {
      call.handle().callBoxed(stack);
    }
    results.push_back(tensors_in(stack));
  }
  return results;
}

std::string verdict(const SampleCall& call, const std::vector<std::vector<at::Tensor>>& results, const Trial& trial,
                    bool values) {
  for (size_t i = 0; i < call.expected().size(); ++i) {
    auto& expected = call.expected()[i];
    auto placements = column(trial, i, true);
    for (auto& p : placements) {
      if (!can_hold(p, expected.scalar_type())) return "no " + str(p) + " of this dtype";
    }
    Parts pieces;
    for (auto& mine : results) {
      if (mine.size() != call.expected().size()) return c10::str("a rank has ", mine.size(), " results");
      pieces.push_back(mine[i]);
    }
    if (!values) {
      for (auto& piece : pieces) piece = at::zeros_like(piece);
    }
    try {
      auto whole = put_together(pieces, placements, trial.mesh_shape, expected.sizes());
      auto goal = values ? expected : at::zeros_like(expected);
      auto wrong = difference(whole, goal, tolerance_of(expected, call.tensors()));
      if (!wrong.empty() && goal.scalar_type() == at::kFloat) {  // of a long sum little may be left: beside the largest
        auto scale = std::max(1.0, largest_of(goal));
        if (difference(whole / scale, goal / scale, 1e-6).empty()) wrong.clear();
      }
      if (!wrong.empty()) return "output " + std::to_string(i) + ": " + wrong;
    } catch (const c10::Error& error) {
      return "output " + std::to_string(i) + ": " + error.what_without_backtrace();
    }
  }
  return "";
}

std::string try_rows(const SampleCall& call, const Rule& rule, const Trial& trial, bool values) {
  try {
    return verdict(call, run_on_ranks(call, rule, trial), trial, values);
  } catch (const c10::Error& error) {
    return std::string("throws ") + error.what_without_backtrace();
  }
}

std::string text_of(const Trial& trial) {
  std::string text;
  for (auto& row : trial.rows) text += (text.empty() ? "" : "  and  ") + str(row);
  return text + " on " + c10::str(c10::IntArrayRef(trial.mesh_shape));
}

}  // namespace intarsia
