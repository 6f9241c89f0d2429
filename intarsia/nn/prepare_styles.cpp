// The styles that prepare the arguments and results of a user's module, by hooks.

#include "intarsia/nn/hooks.h"
#include "intarsia/nn/op_style.h"
#include "intarsia/nn/styles.h"

namespace intarsia {
namespace {

void check_lengths(const EntryLayouts& now, const EntryLayouts& desired, const char* style, const char* kind) {
  TORCH_CHECK_VALUE(!now.empty() && now.size() == desired.size(), "[", style, "] ", kind, "_layouts has ", now.size(),
                    " entries and desired_", kind, "_layouts has ", desired.size(),
                    ". Give both one entry for each; std::nullopt leaves one alone.");
}

void check_count(const EntryLayouts& layouts, std::optional<size_t> count, const StyleTarget& target, const char* style,
                 const char* kind) {
  TORCH_CHECK_VALUE(!count || *count == layouts.size(), "[", style, "] ", kind, "_layouts has ", layouts.size(),
                    " entries, but the forward of ", target.path.empty() ? "the module" : "\"" + target.path + "\"",
                    ", of type ", target.module.name(), ", has ", count.value_or(0), " ", kind,
                    "s. Give one entry for each; std::nullopt leaves one alone.");
}

using Styles = std::vector<std::optional<OpStyle>>;

Styles styles_of(const EntryLayouts& now, const EntryLayouts& desired, const DeviceMesh& mesh, bool local) {
  Styles styles(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i]) styles[i] = OpStyle{mesh, *now[i], desired[i], std::nullopt, local};
  }
  return styles;
}

void prepare(const Styles& styles, HookArguments& values, const char* where, const char* kind) {
  TORCH_CHECK_VALUE(values.size() == styles.size(), "[", where, "] the forward gave ", values.size(), " ", kind,
                    "s, but there are layouts for ", styles.size(), ". Give one entry for each.");
  for (size_t i = 0; i < styles.size(); ++i) {
    if (!styles[i]) continue;
    auto make = [&](const at::Tensor& tensor) { return styles[i]->finish(styles[i]->prepare(tensor)); };
    if (values.is<std::optional<at::Tensor>>(i)) {
      auto& value = values.get<std::optional<at::Tensor>>(i);
      if (value) value = make(*value);
    } else {
      TORCH_CHECK_TYPE(values.is_tensor(i), "[", where, "] ", kind, " ", i,
                       " is no tensor, but has a layout. Use std::nullopt for it.");
      if (values.tensor(i).defined()) values.tensor(i) = make(values.tensor(i));
    }
  }
}

ForwardHooks& hooks_for(const StyleTarget& target, const char* style) {
  return need_hooks(target.module, "parallelize_module",
                    c10::str(style, " at ", target.path.empty() ? "the module itself" : "\"" + target.path + "\""));
}

}  // namespace

PrepareModuleInput::PrepareModuleInput(PrepareModuleInputOptions options) : options_(std::move(options)) {
  check_lengths(options_.input_layouts, options_.desired_input_layouts, "PrepareModuleInput", "input");
}

void PrepareModuleInput::check(const StyleTarget& target) const {
  auto& hooks = hooks_for(target, "PrepareModuleInput");
  check_count(options_.input_layouts, hooks.input_count(), target, "PrepareModuleInput", "input");
}

void PrepareModuleInput::apply(const StyleTarget& target) const {
  auto styles =
      styles_of(options_.input_layouts, options_.desired_input_layouts, target.mesh, options_.use_local_output);
  hooks_for(target, "PrepareModuleInput").register_forward_pre_hook([styles](auto&, HookArguments& inputs) {
    prepare(styles, inputs, "PrepareModuleInput", "input");
  });
}

PrepareModuleOutput::PrepareModuleOutput(PrepareModuleOutputOptions options) : options_(std::move(options)) {
  check_lengths(options_.output_layouts, options_.desired_output_layouts, "PrepareModuleOutput", "output");
}

void PrepareModuleOutput::check(const StyleTarget& target) const {
  auto& hooks = hooks_for(target, "PrepareModuleOutput");
  check_count(options_.output_layouts, hooks.output_count(), target, "PrepareModuleOutput", "output");
}

void PrepareModuleOutput::apply(const StyleTarget& target) const {
  auto styles =
      styles_of(options_.output_layouts, options_.desired_output_layouts, target.mesh, options_.use_local_output);
  hooks_for(target, "PrepareModuleOutput")
      .register_forward_hook([styles](auto&, HookArguments&, HookArguments& outputs) {
        prepare(styles, outputs, "PrepareModuleOutput", "output");
      });
}

PrepareModuleInputOutput::PrepareModuleInputOutput(PrepareModuleInputOutputOptions options)
    : input_({options.input_layouts, options.desired_input_layouts, options.use_local_input}),
      output_({options.output_layouts, options.desired_output_layouts, options.use_local_output}) {}

void PrepareModuleInputOutput::check(const StyleTarget& target) const {
  input_.check(target);
  output_.check(target);
}

void PrepareModuleInputOutput::apply(const StyleTarget& target) const {
  input_.apply(target);
  output_.apply(target);
}

}  // namespace intarsia
