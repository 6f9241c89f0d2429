#pragma once
// ModuleTrace: records which module of a model sent what, in forward, backward and the optimizer's step.

#include <memory>
#include <string>
#include <vector>

#include "intarsia/comm/trace.h"
#include "intarsia/nn/hooks.h"
#include "intarsia/nn/module_ref.h"

namespace intarsia {

enum class Phase { forward, backward, update };  // update: after a backward and outside of both
std::string str(Phase phase);

//   ModuleTrace trace(*model);
//   train_step();
//   trace.text("layers.0", Phase::forward);  // all_gather tp 3072B ... one line per collective
//
// Collectives are attributed to the innermost module with hooks (INTARSIA_MODULE) whose forward, or whose part of
// backward, is running. Records while it lives, on one thread.
class ModuleTrace final : public Recorder {
 public:
  explicit ModuleTrace(ModuleRef module);
  ~ModuleTrace() override;
  ModuleTrace(const ModuleTrace&) = delete;
  ModuleTrace& operator=(const ModuleTrace&) = delete;

  struct Entry {
    std::string module;  // its path; "" is the module itself, "-" is what runs outside it: loss and optimizer
    Phase phase;
    CommEvent event;
    std::string place() const;  // the module as text
  };
  const std::vector<Entry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

  // The collectives of a module and of its submodules, one per line. "" is all of the model, without loss and
  // optimizer.
  std::string text(const std::string& module, Phase phase) const;
  // The collectives of each module, in order; consecutive equal ones are one line with a count.
  std::string table() const;

  // The module and phase that run now.
  std::string module() const;
  Phase phase() const;

 private:
  struct State;
  void on_comm(const CommEvent& event) override;
  void on_fallback(const FallbackEvent&) override {}
  void attach(torch::nn::Module& module, const std::string& path);

  std::shared_ptr<State> state_;  // shared with hooks on activations, which may outlive the trace
  std::vector<HookHandle> handles_;
  std::vector<Entry> entries_;
};

}  // namespace intarsia
