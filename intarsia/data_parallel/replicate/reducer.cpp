#include "intarsia/data_parallel/replicate/reducer.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/end_of_backward.h"
#include "intarsia/data_parallel/module_names.h"
#include "intarsia/data_parallel/replicate/reducers.h"
#include "intarsia/data_parallel/set_data.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

// As most modules are written: what is declared last gets its gradient first.
std::vector<size_t> last_first(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

bool is_in_this_pass(const at::Tensor& leaf) {
  if (!leaf.defined()) return false;
  auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
  auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return node && nodes && nodes->count(node.get());
}

std::string bucket_text(int64_t bucket) { return c10::str("reduces bucket ", bucket); }

}  // namespace

Reducer::Reducer(const void* module, std::string name, const DeviceMesh& mesh, const NamedTensors& parameters,
                 const NamedTensors& buffers, const ReplicateOptions& options, FindUnaveraged find_unaveraged)
    : module_(module),
      name_(std::move(name)),
      mesh_(mesh),
      axis_(Axis::of(mesh, 0)),
      collective_order_(CollectiveOrder::of(axis_)),
      cause_(cause_text(kCause, name_)),
      options_(options),
      find_unaveraged_(std::move(find_unaveraged)),
      bucket_sizes_(BucketSizes::of(options)),
      order_(last_first(parameters.size())) {
  options_.ignored_modules.clear();  // they may be destroyed before this
  options_.ignored_parameters.clear();
  CauseScope cause(kCause, false);
  for (auto& [leaf_name, tensor] : parameters) leaves_.emplace_back(leaf_name, tensor, mesh);
  for (auto& [buffer_name, tensor] : buffers) buffers_.emplace_back(tensor);
  auto others = verify_tensors_across_ranks("replicate", axis_, parameters, buffers, collective_order_.module_count());
  id_ = collective_order_.open(name_, bucket_text, others);
  buckets_ = std::make_unique<Buckets>(leaves_, order_, bucket_sizes_);
  touched_.resize(leaves_.size());
}

Reducer::~Reducer() { collective_order_.close(id_); }

void Reducer::watch() {
  watch_set_data();
  add_reducer(collective_order_, weak_from_this());
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
  auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(tensor);
  };
  for (auto& leaf : leaves_) add(leaf.tensor.lock());
  for (auto& buffer : buffers_) add(buffer.lock());
  broadcast_tensors(mesh_, tensors, source, nullptr);
}

// At once: the module is in the middle of parallelize_module, which then leaves it as it was.
bool Reducer::take_data(size_t index, const at::Tensor&, const at::Tensor& data) {
  if (is_dtensor(data)) ReplicatedParam::check_layout(leaves_[index].name, data, mesh_);
  return false;
}

// --- a backward pass

// An averaged gradient is one value for all simulated ranks; what is added to it may be one value per rank.
void Reducer::before_gradient(size_t index, const at::Tensor& grad) {
  auto leaf = leaves_[index].tensor.lock();
  if (syncs_) {
    bool is_first = !step_;
    if (is_first) step_.emplace();
    arm();  // before anything can fail: the other ranks wait for this step
    if (is_first) prepare_step();
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
  with_advice([&] {
    mark_ready(index);
    launch_full_buckets();
  });
}

// See Note [Gradients that are lent]. Simulated ranks share one gradient, and tensors without data have no memory.
bool Reducer::may_lend(const Bucket& bucket) const {
  if (hook_ || options_.gradient_as_bucket_view || axis_.slot_count() != 1 || axis_.size() == 1 || is_rehearsing())
    return false;
  auto is_plain = [&](size_t leaf) { return !leaves_[leaf].layout; };
  return !Reduction::is_small(axis_, bucket.bytes) &&
         std::all_of(bucket.members.begin(), bucket.members.end(), is_plain);
}

void Reducer::open_step() {
  step_.emplace();
  prepare_step();
}

void Reducer::prepare_step() {
  all_know_ = false;
  step_->ready.resize(leaves_.size());
  step_->fires.resize(leaves_.size());
  step_->own.resize(leaves_.size());
  empty_buckets();
  follow_parameters();
  // Leaves that will get no gradient need not be waited for.
  for (size_t i = 0; i < leaves_.size(); ++i) {
    auto leaf = leaves_[i].tensor.lock();
    bool idle = !expected_.empty() ? expected_[i] == 0 : options_.find_unused_parameters && !is_in_this_pass(leaf);
    if (idle || !leaf.defined()) mark_ready(i);
  }
}

void Reducer::empty_buckets() {
  for (size_t b = 0; b < buckets_->size(); ++b) {
    auto& bucket = (*buckets_)[b];
    bucket.missing = bucket.members.size();
    bucket.lends = may_lend(bucket);
  }
}

// A parameter may have got another dtype, shape or layout (to, set_data, parallelize_module). All ranks that did the
// same get the same buckets; if they differ, the first bucket raises an error that shows both.
void Reducer::follow_parameters() {
  bool changed = false;
  for (auto& leaf : leaves_) {
    auto now = leaf.tensor.lock();
    if (!now.defined() || leaf.fits(now)) continue;
    leaf = ReplicatedParam(leaf.name, now, mesh_);
    changed = true;
  }
  if (!changed) return;
  buckets_ = std::make_unique<Buckets>(leaves_, order_, bucket_sizes_);
  empty_buckets();
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

// See Note [What a rank sends].
void Reducer::mark_ready(size_t leaf) {
  auto& step = *step_;
  auto bucket = buckets_->bucket_of(leaf);
  TORCH_CHECK(bucket >= step.launched, "[replicate] \"", leaves_[leaf].name, "\" of ", name_,
              " got a second gradient in one ",
              "backward pass, after its bucket was sent. If every step does the same, set static_graph.");
  auto tensor = leaves_[leaf].tensor.lock();
  auto grad = tensor.defined() && !step.sends_zeros ? tensor.grad() : at::Tensor();
  auto terms = grad.defined() ? leaves_[leaf].terms(grad, axis_) : Shards();
  if ((*buckets_)[bucket].lends) {
    buckets_->lend(leaf, terms.empty() ? at::Tensor() : terms[0]);
  } else {
    bool in_place = options_.gradient_as_bucket_view && !step.fires[leaf] && grad.defined();
    if (in_place) step.own[leaf] = grad.clone();
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

// Not on behalf of this module: ranks at different modules must be able to exchange their positions.
void Reducer::check_turn(size_t bucket) {
  CauseScope cause(kCause, false);
  all_know_ = true;
  collective_order_.agree_if_shared(id_, static_cast<int64_t>(bucket));
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
    collective_order_.begin(bucket.reduction);
    return;
  }
  GradientBucket given{axis_, bucket.values, bucket.op, index, index + 1 == buckets_->size(), bucket_names()[index]};
  bucket.wait = hook_(given);
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
                                      const NamedTensors& parameters, const NamedTensors& buffers,
                                      const ReplicateOptions& options, FindUnaveraged find_unaveraged) {
  BucketSizes::of(options);  // an error before anything is changed
  TORCH_CHECK_VALUE(mesh.defined() && mesh.ndim() == 1, "[replicate] expects a mesh of one axis, not ",
                    mesh.defined() ? mesh.text() : "none", ". Take a slice of it by name, or flatten it.");
  TORCH_CHECK_VALUE(!mesh.slots().empty(), "[replicate] this process takes no part in ", mesh.text(), ".");
  c10::InferenceMode off(false);  // parameters made here are trained
  make_per_rank(buffers, mesh.slots().size());
  auto reducer =
      std::make_shared<Reducer>(module, name, mesh, parameters, buffers, options, std::move(find_unaveraged));
  if (options.init_sync) reducer->take_over(0);
  reducer->watch();
  return reducer;
}

}  // namespace intarsia
