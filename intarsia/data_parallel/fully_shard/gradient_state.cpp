#include "intarsia/data_parallel/fully_shard/gradient_state.h"

#include <algorithm>
#include <utility>

#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using State = GradientState;
using Event = GradientEvent;

constexpr GradientTransition kTransitions[] = {
    {State::none, Event::before_accumulate, State::accumulating,
     "leaf.grad is kept aside, and autograd begins with nothing"},
    {State::pending, Event::before_accumulate, State::accumulating, "autograd adds to what earlier passes have left"},
    {State::pending_over_copies, Event::before_accumulate, State::accumulating, "leaf.grad is kept aside"},
    {State::unreduced, Event::before_accumulate, State::accumulating, "autograd adds to what came before in this pass"},
    {State::accumulating, Event::before_accumulate, State::accumulating,
     "what a pass has left that ended meanwhile is dropped"},
    {State::accumulating, Event::after_accumulate, State::unreduced,
     "leaf.grad is taken, and what was kept aside is put back"},
    {State::accumulating, Event::fail, State::none, "leaf.grad is dropped, and what was kept aside is put back"},
    {State::unreduced, Event::fail, State::none, "the gradient is dropped"},
    {State::unreduced, Event::defer, State::pending,
     "leaf.grad becomes terms of the average, what it was before included"},
    {State::pending, Event::fetch, State::unreduced, "the terms are taken from leaf.grad"},
    {State::unreduced, Event::send, State::none, "the gradient is kept no longer"},
    {State::none, Event::send, State::none, "zeros are sent"},
    {State::pending_over_copies, Event::send, State::pending_over_copies, "zeros are sent"},
    {State::none, Event::write, State::none, "the reduced gradient is added to leaf.grad"},
    {State::none, Event::write_terms, State::pending_over_copies,
     "leaf.grad becomes terms of the average over the copies"},
    {State::pending_over_copies, Event::write_terms, State::pending_over_copies,
     "the terms are added to those in leaf.grad"},
    {State::pending, Event::write_terms, State::pending, "the same, where all ranks are copies"},
    {State::pending_over_copies, Event::take_terms, State::none, "the terms are taken from leaf.grad"},
};

}  // namespace

c10::ArrayRef<GradientTransition> gradient_transitions() { return kTransitions; }

const char* name_of(GradientState state) {
  static constexpr const char* kNames[] = {"none", "pending", "pending_over_copies", "accumulating", "unreduced"};
  return kNames[static_cast<int>(state)];
}

const char* name_of(GradientEvent event) {
  static constexpr const char* kNames[] = {
      "before_accumulate", "after_accumulate", "fail", "defer", "fetch", "send", "write", "write_terms", "take_terms"};
  return kNames[static_cast<int>(event)];
}

void GradientSlot::set_layouts(const Layout* pending, const Layout* pending_over_copies) {
  pending_ = pending;
  pending_over_copies_ = pending_over_copies;
}

bool GradientSlot::is_laid_out(const Layout* layout) const {
  auto leaf = leaf_.lock();
  if (!leaf.defined() || !leaf.grad().defined()) return false;
  return is_dtensor(leaf.grad()) && &layout_of(leaf.grad()) == layout;
}

GradientState GradientSlot::state() const {
  if (kept_ != State::none) return kept_;
  return is_pending() ? State::pending : is_pending_over_copies() ? State::pending_over_copies : State::none;
}

GradientState GradientSlot::on(GradientEvent event) const {
  auto from = state();
  auto is_it = [&](auto& row) { return row.from == from && row.event == event; };
  TORCH_INTERNAL_ASSERT(std::any_of(std::begin(kTransitions), std::end(kTransitions), is_it), "[fully_shard] ",
                        name_of(event), " came for a gradient that is ", name_of(from));
  return from;
}

void GradientSlot::set_unreduced(at::Tensor grad) {
  unreduced_ = std::move(grad);
  if (kept_ == State::accumulating) return;
  kept_ = unreduced_.defined() ? State::unreduced : State::none;
}

void GradientSlot::begin_accumulating(at::Tensor start) {
  auto leaf = leaf_.lock();
  aside_ = leaf.grad();
  leaf.mutable_grad() = std::move(start);
  kept_ = State::accumulating;
}

at::Tensor GradientSlot::end_accumulating() {
  auto leaf = leaf_.lock();
  auto grad = leaf.grad();
  leaf.mutable_grad() = std::exchange(aside_, at::Tensor());
  kept_ = unreduced_.defined() ? State::unreduced : State::none;
  return grad;
}

}  // namespace intarsia
