#include "intarsia/debug/module_trace.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include "intarsia/debug/text_table.h"

namespace intarsia {
namespace {

constexpr auto kOutside = "-";

bool within(const std::string& path, const std::string& module) {
  if (path == kOutside) return false;
  return module.empty() || path == module || path.compare(0, module.size() + 1, module + ".") == 0;
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

}  // namespace

// Forward is a stack of modules. Backward enters a module with the gradient of its result, and leaves it with that of
// its argument. A tensor is the result of one module and the argument of the next, so its gradient leaves only the
// module that it entered.
struct ModuleTrace::State {
  std::vector<std::string> forward;
  std::string backward = kOutside;
  bool after_backward = false;

  void begin(const std::string& path) {
    while (!forward.empty() && !within(path, forward.back())) forward.pop_back();  // an error may have left some
    if (forward.empty()) after_backward = false, backward = kOutside;
    forward.push_back(path);
  }
  void end(const std::string& path) {
    while (!forward.empty() && within(forward.back(), path)) forward.pop_back();
  }
  // The module that was running when `path` began.
  std::string parent() const { return forward.empty() ? kOutside : forward.back(); }
};

std::string str(Phase phase) {
  return phase == Phase::forward ? "forward" : phase == Phase::backward ? "backward" : "update";
}

std::string ModuleTrace::Entry::place() const {
  if (module == kOutside) return phase == Phase::update ? "the optimizer" : "the loss";
  return module.empty() ? "the module itself" : module;
}

ModuleTrace::ModuleTrace(ModuleRef module) : state_(std::make_shared<State>()) {
  attach(*module, "");
  for (auto& item : module->named_modules("", false)) attach(*item.value(), item.key());
  add_recorder(this);
}

ModuleTrace::~ModuleTrace() {
  remove_recorder(this);
  for (auto& handle : handles_) handle.remove();
}

void ModuleTrace::attach(torch::nn::Module& module, const std::string& path) {
  auto* hooks = hooks_of(module);
  if (!hooks) return;
  auto each = [](HookArguments& values, auto see) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values.is_tensor(i)) continue;
      auto& tensor = values.tensor(i);
      if (tensor.defined() && tensor.requires_grad() && !tensor.is_leaf()) see(tensor);
    }
  };
  auto before = [state = state_, path, each](auto&, HookArguments& inputs) {
    auto parent = state->parent();
    state->begin(path);
    each(inputs, [&](at::Tensor& tensor) {
      tensor.register_hook([state, path, parent](const at::Tensor&) {
        if (within(state->backward, path)) state->backward = parent;
      });
    });
  };
  auto after = [state = state_, path, each](auto&, HookArguments&, HookArguments& outputs) {
    state->end(path);
    each(outputs, [&](at::Tensor& tensor) {
      tensor.register_hook([state, path](const at::Tensor&) { state->backward = path, state->after_backward = true; });
    });
  };
  // Around the hooks of styles: what they send belongs to the module.
  handles_.push_back(hooks->register_forward_pre_hook(before, true));
  handles_.push_back(hooks->register_forward_hook(after));
}

Phase ModuleTrace::phase() const {
  if (in_backward()) return Phase::backward;
  return state_->after_backward ? Phase::update : Phase::forward;
}

std::string ModuleTrace::module() const {
  if (in_backward()) return state_->backward;
  return state_->parent();
}

void ModuleTrace::on_comm(const CommEvent& event) {
  if (in_backward()) state_->after_backward = true;
  entries_.push_back({module(), phase(), event});
}

std::string ModuleTrace::text(const std::string& module, Phase phase) const {
  std::string text;
  for (auto& entry : entries_) {
    if (entry.phase == phase && within(entry.module, module)) text += str(entry.event) + "\n";
  }
  return text;
}

std::string ModuleTrace::table() const {
  TextTable table({"phase", "module", "collective", "axis", "for", ">count", ">bytes"});
  for (size_t i = 0; i < entries_.size();) {
    auto& [module, phase, event] = entries_[i];
    auto place = entries_[i].place();
    int64_t count = 0, bytes = 0;
    auto same = [&](const Entry& other) {
      return other.module == module && other.phase == phase && other.event.kind == event.kind &&
             other.event.axis == event.axis && other.event.op == event.op;
    };
    for (; i < entries_.size() && same(entries_[i]); ++i) {
      ++count, bytes += std::max(entries_[i].event.sent, entries_[i].event.received);
    }
    table.add({str(phase), place, event.kind, event.axis, event.op, std::to_string(count), std::to_string(bytes)});
  }
  return table.text();
}

}  // namespace intarsia
