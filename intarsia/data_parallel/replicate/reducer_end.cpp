// The end of a backward pass: see Note [A step of a reducer].

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/replicate/reducer.h"
#include "intarsia/data_parallel/replicate/reducers.h"
#include "intarsia/data_parallel/replicate/unaveraged.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {

void Reducer::with_advice(const std::function<void()>& body) const {
  try {
    body();
  } catch (c10::DistError& error) {
    if (!joining_) {
      error.add_context(
          "If the ranks have different numbers of batches, run the training loop in join: "
          "replica_of(model).join([&] { ... }).");
    }
    throw;
  }
}

void Reducer::end_step(Part part) {
  try {
    with_advice([&] {
      auto reports = exchange(part);
      if (part == Part::active) settle(reports);
    });
  } catch (...) {
    clear_step();
    throw;
  }
  clear_step();
}

// Whether there are gradients of passes without sync that have been neither averaged nor removed.
bool Reducer::waits() const {
  if (!unsynced_ || !syncs_ || step_) return false;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    auto leaf = leaves_[i].tensor.lock();
    if (touched_[i] && leaf.defined() && leaf.grad().defined()) return true;
  }
  return false;
}

void Reducer::end_steps_of_others() {
  std::vector<std::shared_ptr<Reducer>> waiting;
  for (auto& other : reducers_along(collective_order_)) {
    if (other->waits()) waiting.push_back(other);
  }
  for (auto& other : waiting) {
    other->open_step();
    other->end_step(Part::active);
  }
}

// Every rank sends every bucket and its report, whatever its part.
StepReports Reducer::exchange(Part part) {
  at::NoGradGuard no_grad;
  step_->sends_zeros = part != Part::active;
  flush();
  CauseScope cause(kCause, false);
  collective_order_.advance_all();
  StepReports reports;
  reports.begin(axis_, report(part));
  Wait buffers;
  if (!joining_) sync_buffers(0, &buffers);  // the first rank takes part
  for (size_t b = 0; b < buckets_->size(); ++b) {
    auto& bucket = (*buckets_)[b];
    if (bucket.reduction) bucket.reduction->finish();
    if (bucket.wait) bucket.wait();
  }
  reports.finish();
  if (buffers) buffers();
  if (joining_ && reports.count(Part::active)) sync_buffers(reports.first(Part::active), nullptr);
  all_know_ = true;
  if (reports.any_unaveraged()) raise_unaveraged(kCause, name_, axis_, unaveraged());
  bool may_miss = options_.find_unused_parameters || options_.static_graph;
  std::vector<std::string> names;
  for (auto& leaf : leaves_) names.push_back(leaf.name);
  reports.check(kCause, names, name_, may_miss ? StepReports::Missing::allowed : StepReports::Missing::forbidden);
  all_know_ = false;
  return reports;
}

void Reducer::flush() {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!step_->ready[i]) mark_ready(i);
  }
  launch_full_buckets();
}

Use Reducer::use_of(size_t leaf, const at::Tensor& tensor) const {
  if (!tensor.defined()) return Use::gone;
  bool changed = !expected_.empty() && step_->fires[leaf] != expected_[leaf];
  if (!tensor.requires_grad()) return Use::frozen;
  return changed ? Use::changed : touched_[leaf] && tensor.grad().defined() ? Use::used : Use::none;
}

std::vector<std::string> Reducer::unaveraged() const {
  return find_unaveraged_ ? find_unaveraged_() : std::vector<std::string>();
}

StepReport Reducer::report(Part part) const {
  StepReport report{part, steps_, {}, {}};
  for (size_t i = 0; i < leaves_.size(); ++i) {
    report.uses.push_back(part == Part::active ? use_of(i, leaves_[i].tensor.lock()) : Use::none);
  }
  if (part == Part::active) report.unaveraged = !unaveraged().empty();
  if (order_known_) return report;
  report.order = step_->order;
  for (size_t i = leaves_.size(); i-- > 0;) {
    if (!step_->fires[i]) report.order.push_back(static_cast<int32_t>(i));
  }
  return report;
}

void Reducer::settle(const StepReports& reports) {
  at::NoGradGuard no_grad;
  bool scales = joining_ && !divide_by_all_;
  auto active = static_cast<double>(reports.count(Part::active));
  write_gradients(reports, scales ? static_cast<double>(axis_.size()) / active : 1);
  std::fill(touched_.begin(), touched_.end(), false);
  unsynced_ = false;
  ++steps_;
  if (options_.static_graph && expected_.empty()) expected_ = step_->fires;
  learn_order(reports);
}

void Reducer::write_gradients(const StepReports& reports, double scale) {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    auto tensor = leaves_[i].tensor.lock();
    if (!tensor.defined()) continue;
    if (reports.any_used(i) && tensor.requires_grad()) {
      write_gradient(i, tensor, scale);
      run_post_accumulate_hooks(tensor);
    } else if (step_->own[i].defined()) {
      tensor.mutable_grad().copy_(step_->own[i]);
    }
  }
}

void Reducer::write_gradient(size_t index, const at::Tensor& tensor, double scale) {
  auto& leaf = leaves_[index];
  auto& grad = tensor.mutable_grad();
  auto& bucket = (*buckets_)[buckets_->bucket_of(index)];
  if (bucket.lends) {
    bucket.reduction.reset();  // it holds what is lent
    return buckets_->hand_over(index, grad, scale);
  }
  auto value = leaf.gradient(buckets_->places_of(index), mesh_);
  if (scale != 1 && !leaf.is_summed()) value.mul_(scale);
  // As in LibTorch: after to(dtype) an existing gradient keeps its dtype.
  if (grad.defined() && grad.scalar_type() != value.scalar_type()) value = value.to(grad.scalar_type());
  bool alike = grad.defined() && is_dtensor(grad) == is_dtensor(value) && is_per_rank(grad) == is_per_rank(value) &&
               (!is_dtensor(grad) || &layout_of(grad) == &layout_of(value));
  if (options_.gradient_as_bucket_view) {
    grad = value;
  } else if (alike) {
    grad.copy_(value);
  } else {
    grad = value.clone();
  }
}

void Reducer::sync_buffers(int64_t source, Wait* wait) {
  if (!options_.broadcast_buffers || buffers_.empty()) return;
  std::vector<at::Tensor> tensors;
  for (auto& buffer : buffers_) {
    if (auto tensor = buffer.lock(); tensor.defined()) tensors.push_back(tensor);
  }
  broadcast_tensors(mesh_, tensors, source, wait);
}

// The order that the first active rank saw.
void Reducer::learn_order(const StepReports& reports) {
  if (order_known_) return;
  order_known_ = true;
  auto& order = reports.all()[reports.first(Part::active)].order;
  order_.assign(order.begin(), order.end());
  buckets_ = std::make_unique<Buckets>(leaves_, order_, bucket_sizes_);
}

}  // namespace intarsia
