#include "intarsia/nn/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/dispatch/random_scope.h"
#include "intarsia/random/local_random_scope.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Generator default_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

at::Tensor read_state(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

// Sets the generator to an earlier state while it lives.
class ReplayScope {
 public:
  explicit ReplayScope(const at::Tensor& state) : generator_(default_generator()), now_(read_state(generator_)) {
    set(state);
  }
  ~ReplayScope() { set(now_); }
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  void set(const at::Tensor& state) {
    {
      std::lock_guard lock(generator_.mutex());
      generator_.set_state(state);
    }
    RandomScope::follow(generator_);
  }

  at::Generator generator_;
  at::Tensor now_;
};

struct HeldSegment final : torch::CustomClassHolder {
  explicit HeldSegment(RecomputedSegment segment) : run(std::move(segment)) {}
  RecomputedSegment run;
  std::optional<LocalRandomScope::Parts> random = LocalRandomScope::current();
};

// The anchor needs a gradient, so that the results do as well if only parameters need one.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<HeldSegment> segment, const at::Tensor& anchor,
                               at::TensorList inputs) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["state"] = read_state(default_generator());
    ctx->saved_data["segment"] = c10::IValue::make_capsule(segment);
    std::vector<int64_t> needs;
    for (auto& input : inputs) needs.push_back(input.defined() && input.requires_grad());
    ctx->saved_data["needs"] = needs;
    ctx->save_for_backward(inputs.vec());
    return segment->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto needs = ctx->saved_data["needs"].toIntVector();
    auto inputs = ctx->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined()) inputs[i] = inputs[i].detach().set_requires_grad(needs[i] != 0);
    }
    variable_list roots, seeds;
    {
      at::AutoGradMode grad_mode(true);
      ReplayScope replay(ctx->saved_data["state"].toTensor());
      auto segment = c10::static_intrusive_pointer_cast<HeldSegment>(ctx->saved_data["segment"].toCapsule());
      LocalRandomScope random(segment->random);  // as in the first run, whatever scope backward runs in
      auto results = segment->run(inputs);
      for (size_t i = 0; i < results.size(); ++i) {
        if (!results[i].requires_grad() || !gradients[i].defined()) continue;
        roots.push_back(results[i]);
        seeds.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    variable_list result(2);  // of the segment and the anchor
    for (size_t i = 0; i < inputs.size(); ++i) result.push_back(needs[i] ? inputs[i].grad() : at::Tensor());
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> recompute_segment(const RecomputedSegment& segment, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  auto anchor = at::empty({0}).set_requires_grad(true);
  return Checkpoint::apply(c10::make_intrusive<HeldSegment>(segment), anchor, at::TensorList(inputs));
}

}  // namespace intarsia
