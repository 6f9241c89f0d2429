// Any op that has a rule, as the samples of the rules call it, on values of the program: so every rule takes part in
// random programs, in layouts and among neighbours that nobody chose.

#include <ATen/ATen.h>

#include "tests/random/program.h"
#include "tests/rules/harness.h"

namespace intarsia {
namespace {

// A value in the shape of another: repeated or cut short as it takes.
at::Tensor fitted(const at::Tensor& value, at::IntArrayRef sizes) {
  auto count = c10::multiply_integers(sizes);
  auto flat = value.reshape({-1});
  return flat.repeat({count / flat.numel() + 1}).narrow(0, 0, count).view(sizes);
}

// Samples have the same few numbers again and again. Here no two are equal: which one is the larger must not hang on
// how a pending sum is rounded.
at::Tensor without_ties(Builder& b, const at::Tensor& input) {
  auto values = input.clone();
  if (input.scalar_type() != at::kDouble) return values;
  auto factors = at::empty({input.numel()}, at::kDouble);
  for (int64_t i = 0; i < input.numel(); ++i) factors[i] = 1 - 1e-3 * static_cast<double>(b.below(1 << 30)) / (1 << 30);
  return values.mul_(factors.view(input.sizes()));
}

// An input of the sample, touched by a value of the program so that gradients flow through both. Only a little, for
// some ops take no number below zero or above one.
size_t touched(Builder& b, const at::Tensor& input, bool may_be_jumbled) {
  auto i = b.any();
  bool fits = b.at(i).scalar_type() == at::kDouble && b.at(i).numel() > 0 && at::isfinite(b.at(i)).all().item<bool>();
  auto own = b.leaf(without_ties(b, input), may_be_jumbled);
  if (!fits || input.scalar_type() != at::kDouble || input.numel() == 0 || !b.chance(0.5)) return own;
  auto sizes = input.sizes().vec();
  b.emit("v" + std::to_string(own) + " + a little of v" + std::to_string(i),
         [=](const ProgramValues& v) { return ProgramValues{v[own] + at::tanh(fitted(v[i], sizes)) * 1e-3}; });
  return own + 1;
}

// The bits of a number, vectors of which any multiple is one, degrees that are cut to whole numbers: not the same after
// a sum in another order. And views that do not call themselves so, so that nobody knows what a write to them changes.
bool is_brittle(const std::string& op) {
  return op == "aten::_unsafe_view" || op == "aten::lift" || op.starts_with("aten::unsafe_") ||
         op.ends_with(".dtype") || op == "aten::linalg_eig" || op.find("polynomial") != std::string::npos;
}

// Of what their callers have made contiguous, or of what lies between the elements: not for inputs that have gaps in
// memory.
bool takes_memory_for_granted(const std::string& op) {
  return is_inner(op) || op == "aten::native_group_norm" || op.starts_with("aten::as_strided");
}

}  // namespace

void draw_sample(Builder& b) {
  auto& sample = samples()[b.below(samples().size())];
  if (is_brittle(sample.op)) return;
  auto call = std::make_shared<SampleCall>(sample, at::kDouble);
  if (!call->runs() || !sample.values) return;
  std::vector<int64_t> places;  // of the inputs among the program's values; -1 where there is none
  std::string text = call->text() + " of";
  for (auto& input : call->tensors()) {
    places.push_back(input.defined() ? static_cast<int64_t>(touched(b, input, !takes_memory_for_granted(sample.op)))
                                     : -1);
    text += " v" + std::to_string(places.back());
  }
  bool differentiable = sample.gradient;
  b.emit(text, [=](const ProgramValues& v) {
    ProgramValues inputs, results;
    for (auto place : places) {
      inputs.push_back(place < 0 ? at::Tensor() : differentiable ? v[place] : v[place].detach());
    }
    auto stack = call->with_tensors(inputs);
    call->handle().callBoxed(stack);
    for (auto& result : tensors_in(stack)) {
      if (result.defined()) results.push_back(result);
    }
    return results;
  });
}

}  // namespace intarsia
