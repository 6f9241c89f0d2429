#include "intarsia/debug/explain_step.h"

#include <map>
#include <set>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "intarsia/comm/engine.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/debug/no_data_memory.h"
#include "intarsia/debug/text_table.h"
#include "intarsia/dispatch/watch.h"
#include "intarsia/nn/rollback.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/rehearsal_engine.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

// A plain tensor of the rank with a form but no data.
at::Tensor without_data(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) {
  return per_rank({at::empty_strided(sizes, strides, at::TensorOptions().device(at::kMeta).dtype(dtype))});
}

// Takes the data from the tensors of a module, under their own handles, and restores it.
class WithoutData {
 public:
  explicit WithoutData(const torch::nn::Module& module) {
    std::set<c10::TensorImpl*> seen;
    for (auto& tensor : tensors_of(module)) {
      auto* impl = tensor.unsafeGetTensorImpl();
      if (!seen.insert(impl).second) continue;
      tensors_.emplace_back(tensor, impl->shallow_copy_and_detach(c10::VariableVersion(0), true));
      become(tensor, without_data(tensor.sizes(), tensor.strides(), tensor.scalar_type()).getIntrusivePtr());
    }
  }
  ~WithoutData() {
    for (auto& [tensor, data] : tensors_) become(tensor, data);
  }
  WithoutData(const WithoutData&) = delete;
  WithoutData& operator=(const WithoutData&) = delete;

 private:
  static void become(const at::Tensor& tensor, const c10::intrusive_ptr<c10::TensorImpl>& other) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other);
    tensor.mutable_grad() = at::Tensor();
    // The gradient accumulator remembers the device that the tensor had.
    if (auto* autograd = torch::autograd::impl::get_autograd_meta(tensor)) autograd->grad_accumulator_.reset();
  }
  std::vector<std::pair<at::Tensor, c10::intrusive_ptr<c10::TensorImpl>>> tensors_;
};

std::string layout_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  if (is_dtensor(tensor)) return str(placements_of(tensor));
  return is_per_rank(tensor) ? "local" : "plain";
}

int64_t local_bytes(const at::Tensor& tensor) {
  int64_t most = 0;
  if (!is_dtensor(tensor) && !is_per_rank(tensor)) return tensor.numel() * tensor.element_size();
  auto& shards = is_per_rank(tensor) ? values_of(tensor) : shards_of(tensor);
  for (auto& shard : shards) most = std::max<int64_t>(most, shard.numel() * shard.element_size());
  return most;
}

bool makes_new_values(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns()) {
    if (result.alias_info()) return false;
  }
  return true;
}

std::vector<at::Tensor> tensors_among(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  for (auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

std::vector<at::Tensor> imagined_inputs(const std::vector<Imagined>& inputs, const DeviceMesh& mesh) {
  std::vector<at::Tensor> tensors;
  for (auto& input : inputs) {
    auto options = at::TensorOptions().device(at::kMeta).dtype(input.dtype);
    auto strides = c10::contiguous_strides(input.shape);
    tensors.push_back(input.placements.empty() ? without_data(input.shape, strides, input.dtype)
                                               : empty(input.shape, mesh, input.placements, options));
  }
  return tensors;
}

at::Tensor loss_of(const TrainingStep& step, const std::vector<at::Tensor>& inputs) {
  auto loss = step(inputs);
  TORCH_CHECK_VALUE(loss.defined() && loss.requires_grad(), "[explain] the step gives no loss with a gradient. ",
                    "Return a number that depends on the parameters.");
  return loss;
}

// Removes hooks of data parallelism from the parameters in its destructor.
class Unwatch {
 public:
  explicit Unwatch(const torch::nn::Module& module) : leaves_(module.parameters()) {}
  ~Unwatch() {
    for (auto& leaf : leaves_) unwatch_leaf(leaf);
  }
  Unwatch(const Unwatch&) = delete;
  Unwatch& operator=(const Unwatch&) = delete;

 private:
  std::vector<at::Tensor> leaves_;
};

bool is_watched(const torch::nn::Module& module) {
  auto leaves = module.parameters();
  return std::any_of(leaves.begin(), leaves.end(), [](auto& leaf) { return watcher_of(leaf) != nullptr; });
}

void check_is_plain(const torch::nn::Module& module) {
  for (auto& tensor : tensors_of(module)) {
    TORCH_CHECK_VALUE(!is_dtensor(tensor) && !watcher_of(tensor), "[explain] a tensor of shape ", tensor.sizes(),
                      " of ", module.name(),
                      " is distributed or replicated already. Explain a module before it is parallelized.");
  }
}

// One run of the step, and its record.
class Rehearsal {
 public:
  Rehearsal(torch::nn::Module& module, StepExplanation& result) : module_(module), trace_(module), result_(result) {
    for (auto& item : module.named_parameters()) names_[item.value().unsafeGetTensorImpl()] = item.key();
  }

  void run(const TrainingStep& step, const std::vector<at::Tensor>& inputs, NoDataMemory& memory) {
    memory_ = &memory;
    memory.forget_peak();
    result_.memory.at_rest = memory.now();
    OpWatch watch([this](const SeenOp& op) { see(op); });
    auto loss = loss_of(step, inputs);
    rehearses_forward_ = false;
    loss.backward();
    note_peak();
    finish_gradients();
    for (auto& entry : trace_.entries()) result_.collectives.push_back(entry);
  }

 private:
  void see(const SeenOp& op) {
    note_collectives();
    note_peak();
    if (!rehearses_forward_ || !makes_new_values(op.schema)) return;
    auto module = trace_.module();
    auto name = op.schema.name().substr(op.schema.name().find("::") + 2);
    for (auto& input : tensors_among(op.arguments)) {
      auto parameter = names_.find(input.unsafeGetTensorImpl());
      if (parameter != names_.end()) name += " " + parameter->second;
    }
    for (auto& output : tensors_among(op.results)) {
      result_.activations.push_back({module, name, value_at(output, 0).sizes().vec(), layout_text(output)});
    }
  }

  // An op's own collectives come before its result.
  void note_collectives() { result_.before.resize(trace_.entries().size(), result_.activations.size()); }

  void note_peak() {
    if (memory_->peak() <= result_.memory.peak) return;
    result_.memory.peak = memory_->peak();
    result_.memory.module = trace_.module();
    result_.memory.phase = trace_.phase();
  }

  // An optimizer reads each gradient in its parameter's layout.
  void finish_gradients() {
    note_collectives();
    CauseScope cause("the gradient", true);
    for (auto& item : module_.named_parameters()) {
      auto& parameter = item.value();
      auto gradient = parameter.grad();
      result_.parameters.push_back(
          {item.key(), parameter.sizes().vec(), layout_text(parameter), layout_text(gradient), local_bytes(parameter)});
      if (result_.parameters.back().layout == "local") result_.parameters.back().layout = "plain";
      if (is_dtensor(parameter) && is_dtensor(gradient)) redistribute(gradient, placements_of(parameter));
    }
    note_collectives();
  }

  torch::nn::Module& module_;
  ModuleTrace trace_;
  StepExplanation& result_;
  NoDataMemory* memory_ = nullptr;
  bool rehearses_forward_ = true;
  std::map<c10::TensorImpl*, std::string> names_;
};

}  // namespace

at::Tensor sum_of(const HookArguments& results) {
  at::Tensor sum;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results.is_tensor(i) || !results.tensor(i).requires_grad()) continue;
    auto term = at::sum(results.tensor(i));
    sum = sum.defined() ? at::add(sum, term) : term;
  }
  return sum;
}

StepExplanation explain(ModuleRef target, const DeviceMesh& mesh, const MakeParallel& make,
                        const std::vector<Imagined>& inputs, const TrainingStep& step) {
  auto& module = *target;
  check_is_plain(module);
  RehearsalScope rehearses;
  NoDataMemory memory;
  Rollback rollback(module);  // gradients and hooks
  WithoutData without(module);
  Unwatch unwatch(module);
  WorldScope world(rehearsal_engine(mesh.size()));
  auto stage = init_device_mesh(mesh.device_type(), mesh.shape().vec(), mesh.names());
  make(stage);
  StepExplanation result;
  result.mesh = mesh.text();
  try {
    auto given = imagined_inputs(inputs, stage);
    if (is_watched(module)) {                // groups learn the order of use
      OpWatch nobody([](const SeenOp&) {});  // ops give their results instead of running
      loss_of(step, given).backward();
      module.zero_grad();
    }
    Rehearsal(module, result).run(step, given, memory);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "[explain] the step cannot run on tensors without data: ", error.what_without_backtrace(),
                "\nThe step cannot read values.");
  }
  return result;
}

StepExplanation explain(ModuleRef module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const std::vector<Imagined>& inputs, const TrainingStep& step) {
  return explain(module, mesh, [&](const DeviceMesh& stage) { parallelize_module(module, stage, plan); }, inputs, step);
}

int64_t StepExplanation::count(Phase phase) const {
  return std::count_if(collectives.begin(), collectives.end(), [&](auto& entry) { return entry.phase == phase; });
}

int64_t StepExplanation::bytes(Phase phase) const {
  int64_t sum = 0;
  for (auto& entry : collectives) sum += entry.phase == phase ? entry.event.bytes() : 0;
  return sum;
}

std::string StepExplanation::text() const {
  int64_t held = 0;
  TextTable parameter_table({"parameter", "shape", "layout", "gradient", ">bytes of a rank"});
  for (auto& p : parameters) {
    held += p.local_bytes;
    parameter_table.add(
        {p.name, c10::str(c10::IntArrayRef(p.shape)), p.layout, p.gradient, std::to_string(p.local_bytes)});
  }
  TextTable steps({"phase", "module", "what", "result", "layout", ">bytes sent"});
  size_t next = 0;
  auto send = [&] {
    auto& entry = collectives[next++];
    auto& event = entry.event;
    steps.add({str(entry.phase), entry.place(), event.kind + " " + event.axis + " for " + event.op, "", "",
               std::to_string(event.bytes())});
  };
  for (size_t i = 0; i < activations.size(); ++i) {
    while (next < collectives.size() && before[next] <= i && collectives[next].phase == Phase::forward) send();
    auto& a = activations[i];
    auto place = ModuleTrace::Entry{a.module, Phase::forward, {}}.place();
    steps.add({"forward", place, a.op, c10::str(c10::IntArrayRef(a.shape)), a.layout, ""});
  }
  while (next < collectives.size()) send();
  auto text = "One training step on " + mesh + "\n\n" + parameter_table.text() + "\n" + steps.text() + "\n";
  for (auto phase : {Phase::forward, Phase::backward, Phase::update}) {
    text +=
        str(phase) + ": " + std::to_string(count(phase)) + " collectives, " + std::to_string(bytes(phase)) + " bytes\n";
  }
  text += "parameters of a rank: " + std::to_string(held) + " bytes\n";
  auto place = ModuleTrace::Entry{memory.module, memory.phase, {}}.place();
  return text + "memory of a rank: " + std::to_string(memory.at_rest) + " bytes at rest, " +
         std::to_string(memory.peak) + " at most (" + str(memory.phase) + ", " + place + ")\n";
}

}  // namespace intarsia
