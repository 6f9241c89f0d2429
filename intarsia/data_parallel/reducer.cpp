#include "intarsia/data_parallel/reducer.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/end_of_backward.h"
#include "intarsia/data_parallel/module_names.h"
#include "intarsia/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

constexpr const char* kCause = "replicate";

// As modules are most often written: what is declared last gets its gradient first.
std::vector<size_t> last_first(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

// Those that share a lane, in the order in which they came.
std::vector<Reducer*>& reducers_along(const Lane& lane) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::map<const Lane*, std::vector<Reducer*>>;
  std::lock_guard lock(*mutex);
  return (*all)[&lane];
}

bool is_in_this_pass(const at::Tensor& leaf) {
  auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
  auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return node && nodes && nodes->count(node.get());
}

}  // namespace

Reducer::Reducer(const void* module, std::string name, const DeviceMesh& mesh, const NamedTensors& parameters,
                 const NamedTensors& buffers, ReducerOptions options)
    : module_(module), name_(std::move(name)), mesh_(mesh), axis_(Axis::of(mesh, 0)), lane_(Lane::of(axis_)),
      cause_(cause_text(kCause, name_)), options_(options) {
  CauseScope cause(kCause, false);
  for (auto& [leaf_name, tensor] : parameters) leaves_.emplace_back(leaf_name, tensor, mesh);
  for (auto& [buffer_name, tensor] : buffers) buffers_.emplace_back(tensor);
  auto others = agree_on_tensors("replicate", axis_, parameters, buffers, lane_.user_count());
  user_ = lane_.open(name_, others);
  buckets_ = std::make_unique<Buckets>(leaves_, last_first(leaves_.size()), options_.bucket_sizes);
  touched_.resize(leaves_.size());
}

Reducer::~Reducer() {
  std::erase(reducers_along(lane_), this);
  lane_.close(user_);
}

void Reducer::watch() {
  reducers_along(lane_).push_back(this);
  for (size_t i = 0; i < leaves_.size(); ++i) watch_leaf(leaves_[i].tensor.lock(), shared_from_this(), i);
}

void Reducer::set_comm_hook(CommHook hook) {
  TORCH_CHECK_VALUE(hook, "[set_comm_hook] the hook is empty. Give a function.");
  TORCH_CHECK(!hook_, "[set_comm_hook] ", name_, " has one already. Register one only.");
  hook_ = std::move(hook);
}

std::vector<std::vector<std::string>> Reducer::bucket_names() {
  std::vector<std::vector<std::string>> names;
  for (size_t b = 0; b < buckets_->size(); ++b) {
    auto& of_bucket = names.emplace_back();
    for (auto leaf : (*buckets_)[b].members) of_bucket.push_back(leaves_[leaf].name);
  }
  return names;
}

void Reducer::take_over(int64_t source) {
  CauseScope cause(cause_, false);
  std::vector<at::Tensor> tensors;
  for (auto& leaf : leaves_) tensors.push_back(leaf.tensor.lock());
  for (auto& buffer : buffers_) tensors.push_back(buffer.lock());
  broadcast_tensors(mesh_, tensors, source, nullptr);
}

// --- a backward pass

// A gradient that was averaged is one value for all simulated ranks; what is added to it may be one value per rank.
void Reducer::before_gradient(size_t index, const at::Tensor& grad) {
  auto leaf = leaves_[index].tensor.lock();
  if (syncs_) {
    if (!step_) open_step();
    arm();
    check_has_no_graph(kCause, leaves_[index].name, grad);
  }
  hold_hooks(leaf, /*tensor_hooks=*/false);
  auto& sum = leaf.mutable_grad();
  if (!is_per_rank(grad) || !sum.defined() || is_per_rank(sum)) return;
  at::NoGradGuard no_grad;
  Shards values;
  for (size_t slot = 0; slot < axis_.slot_count(); ++slot) values.push_back(sum.clone());
  sum = per_rank(std::move(values));
}

void Reducer::after_gradient(size_t index) {
  touched_[index] = true;
  unsynced_ = unsynced_ || !syncs_;
  if (!syncs_) return;
  at::NoGradGuard no_grad;
  auto& step = *step_;
  if (!step.fires[index]++) step.order.push_back(static_cast<int32_t>(index));
  if (options_.static_graph && (expected_.empty() || step.fires[index] < expected_[index])) return;
  mark_ready(index, true);
  launch_full_buckets();
}

// See Note [Gradients that are lent]. Simulated ranks share one gradient, and what explain counts has no memory.
bool Reducer::may_lend(const Bucket& bucket) const {
  if (hook_ || options_.gradient_as_bucket_view || axis_.slot_count() != 1 || axis_.size() == 1 || is_rehearsing()) return false;
  auto is_plain = [&](size_t leaf) { return !leaves_[leaf].layout; };
  return !Reduction::is_small(axis_, bucket.bytes) && std::all_of(bucket.members.begin(), bucket.members.end(), is_plain);
}

void Reducer::open_step() {
  step_.emplace();
  all_know_ = false;
  step_->ready.resize(leaves_.size());
  step_->fires.resize(leaves_.size());
  for (size_t b = 0; b < buckets_->size(); ++b) {
    auto& bucket = (*buckets_)[b];
    bucket.missing = bucket.members.size();
    bucket.lends = may_lend(bucket);
  }
  // What will get no gradient need not be waited for.
  for (size_t i = 0; i < leaves_.size(); ++i) {
    bool idle = !expected_.empty() ? expected_[i] == 0
                                   : options_.find_unused_parameters && !is_in_this_pass(leaves_[i].tensor.lock());
    if (idle) mark_ready(i, touched_[i]);
  }
}

void Reducer::arm() {
  if (step_->armed) return;
  step_->armed = true;
  auto self = shared_from_this();
  at_end_of_backward(
      [self] {
        if (self->step_) self->end_step(Part::active);
        self->end_steps_of_others();
      },
      [self] {
        if (!self->step_) return;
        self->all_know_ ? self->clear_step() : self->end_step(Part::failed);
      });
}

void Reducer::mark_ready(size_t leaf, bool contributes) {
  auto& step = *step_;
  auto bucket = buckets_->bucket_of(leaf);
  TORCH_CHECK(bucket >= step.launched, "[replicate] \"", leaves_[leaf].name, "\" of ", name_, " got a second gradient in one ",
              "backward pass, after its bucket was sent. If every step does the same, set static_graph.");
  auto grad = leaves_[leaf].tensor.lock().grad();
  auto terms = contributes && grad.defined() ? leaves_[leaf].terms(grad, axis_) : Shards();
  if ((*buckets_)[bucket].lends) {
    buckets_->lend(leaf, terms.empty() ? at::Tensor() : terms[0]);
  } else {
    buckets_->put(leaf, terms);
  }
  if (step.ready[leaf]) return;
  step.ready[leaf] = true;
  --(*buckets_)[bucket].missing;
}

void Reducer::launch_full_buckets() {
  auto& next = step_->launched;
  while (next < buckets_->size() && (*buckets_)[next].missing == 0) launch(next);
}

// Not on behalf of this module: ranks at different ones must be able to tell each other.
void Reducer::check_turn(size_t bucket) {
  CauseScope cause(kCause, false);
  all_know_ = true;
  lane_.check(user_, static_cast<int64_t>(bucket));
  all_know_ = false;
}

void Reducer::launch(size_t index) {
  step_->launched = index + 1;
  auto& bucket = (*buckets_)[index];
  check_turn(index);
  CauseScope cause(cause_, false);
  if (!hook_) {
    if (bucket.lends) {
      auto [from, to] = buckets_->on_loan(bucket);
      bucket.reduction = std::make_shared<Reduction>(axis_, std::move(from), std::move(to), bucket.op);
    } else {
      bucket.reduction = std::make_shared<Reduction>(axis_, bucket.values, bucket.op);
    }
    lane_.begin(bucket.reduction);
    return;
  }
  GradientBucket given{axis_, bucket.values, bucket.op, index, index + 1 == buckets_->size(), bucket_names()[index]};
  bucket.wait = hook_(given);
}

// --- the end of a backward pass

void Reducer::end_step(Part part) {
  try {
    auto reports = exchange(part);
    if (part == Part::active) settle(reports);
  } catch (...) {
    clear_step();
    throw;
  }
  clear_step();
}

// Whether gradients of passes without sync are there, and nobody has averaged them or taken them away.
bool Reducer::waits() const {
  if (!unsynced_ || !syncs_ || step_) return false;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (touched_[i] && leaves_[i].tensor.lock().grad().defined()) return true;
  }
  return false;
}

void Reducer::end_steps_of_others() {
  std::vector<std::shared_ptr<Reducer>> waiting;
  for (auto* other : reducers_along(lane_)) {
    if (other->waits()) waiting.push_back(other->shared_from_this());
  }
  for (auto& other : waiting) {
    other->open_step();
    other->end_step(Part::active);
  }
}

// Every rank sends every bucket and its report, whatever part it takes.
Reports Reducer::exchange(Part part) {
  at::NoGradGuard no_grad;
  flush();
  CauseScope cause(kCause, false);
  lane_.advance_all();
  Reports reports;
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
  bool may_miss = options_.find_unused_parameters || options_.static_graph;
  std::vector<std::string> names;
  for (auto& leaf : leaves_) names.push_back(leaf.name);
  reports.check(kCause, names, name_, may_miss ? Reports::Missing::allowed : Reports::Missing::forbidden);
  all_know_ = false;
  return reports;
}

void Reducer::flush() {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!step_->ready[i]) mark_ready(i, touched_[i]);
  }
  launch_full_buckets();
}

Use Reducer::use_of(size_t leaf, const at::Tensor& tensor) const {
  bool changed = !expected_.empty() && step_->fires[leaf] != expected_[leaf];
  if (!tensor.requires_grad()) return Use::frozen;
  return changed ? Use::changed : touched_[leaf] && tensor.grad().defined() ? Use::used : Use::none;
}

Report Reducer::report(Part part) const {
  Report report{part, steps_, {}, {}};
  for (size_t i = 0; i < leaves_.size(); ++i) {
    report.uses.push_back(part == Part::active ? use_of(i, leaves_[i].tensor.lock()) : Use::none);
  }
  if (order_known_) return report;
  report.order = step_->order;
  for (auto i : last_first(leaves_.size())) {
    if (!step_->fires[i]) report.order.push_back(static_cast<int32_t>(i));
  }
  return report;
}

void Reducer::settle(const Reports& reports) {
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

void Reducer::write_gradients(const Reports& reports, double scale) {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    auto& leaf = leaves_[i];
    auto tensor = leaf.tensor.lock();
    if (!reports.any_used(i) || !tensor.requires_grad()) continue;
    auto& grad = tensor.mutable_grad();
    auto& bucket = (*buckets_)[buckets_->bucket_of(i)];
    if (bucket.lends) {
      bucket.reduction.reset();  // which holds what is lent
      buckets_->hand_over(i, grad, scale);
      run_post_accumulate_hooks(tensor);
      continue;
    }
    auto value = leaf.gradient(buckets_->places_of(i), mesh_);
    if (scale != 1 && !leaf.is_summed()) value.mul_(scale);
    bool alike = grad.defined() && is_dtensor(grad) == is_dtensor(value) && is_per_rank(grad) == is_per_rank(value) &&
                 (!is_dtensor(grad) || &layout_of(grad) == &layout_of(value));
    if (options_.gradient_as_bucket_view) {
      grad = value;
    } else if (alike) {
      grad.copy_(value);
    } else {
      grad = value.clone();
    }
    run_post_accumulate_hooks(tensor);
  }
}

void Reducer::sync_buffers(int64_t source, Wait* wait) {
  if (!options_.broadcast_buffers || buffers_.empty()) return;
  std::vector<at::Tensor> tensors;
  for (auto& buffer : buffers_) tensors.push_back(buffer.lock());
  broadcast_tensors(mesh_, tensors, source, wait);
}

// As the first active rank saw it.
void Reducer::learn_order(const Reports& reports) {
  if (order_known_) return;
  order_known_ = true;
  auto& order = reports.all()[reports.first(Part::active)].order;
  buckets_ = std::make_unique<Buckets>(leaves_, std::vector<size_t>(order.begin(), order.end()), options_.bucket_sizes);
}

void Reducer::clear_step() {
  step_.reset();
  for (size_t b = 0; b < buckets_->size(); ++b) {
    auto& bucket = (*buckets_)[b];
    bucket.reduction.reset();
    bucket.wait = nullptr;
    for (auto& tensor : bucket.lent) tensor.reset();
  }
}

std::shared_ptr<Reducer> make_reducer(const void* module, const std::string& name, const DeviceMesh& mesh,
                                      const NamedTensors& parameters, const NamedTensors& buffers, const ReducerOptions& options,
                                      bool init_sync) {
  TORCH_CHECK_VALUE(mesh.defined() && mesh.ndim() == 1, "[replicate] expects a mesh of one axis, not ",
                    mesh.defined() ? mesh.text() : "none", ". Take a slice of it by name, or flatten it.");
  TORCH_CHECK_VALUE(!mesh.slots().empty(), "[replicate] this process takes no part in ", mesh.text(), ".");
  make_per_rank(buffers, mesh.slots().size());
  auto reducer = std::make_shared<Reducer>(module, name, mesh, parameters, buffers, options);
  if (init_sync) reducer->take_over(0);
  reducer->watch();
  return reducer;
}

}  // namespace intarsia
