#include "intarsia/data_parallel/shard_group.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/flat_parts.h"
#include "intarsia/data_parallel/gradients.h"
#include "intarsia/data_parallel/module_names.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

constexpr const char* kShardCause = "fully_shard";
enum Word : int64_t { kGather = 0, kReduce = 1 };

// Copies along the axis of the mesh, and shards along one of a single rank.
ShardingAxes replicated_axes(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.ndim() == 1 && !mesh.slots().empty(), "[replicate] expects a mesh of one axis that this process takes ",
                    "part in, not ", mesh.text(), ". Take a slice of it by name.");
  DeviceMesh grid(mesh.device_type(), {mesh.group_count(), mesh.size(), 1}, mesh.ranks().vec());
  return {mesh, 0, &Axis::of(grid, 2), &Axis::of(mesh, 0), &Axis::whole(mesh)};
}

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0 && !is_in_hook_of_program(); }

}  // namespace

ShardGroup::ShardGroup(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
                       const ShardGroupOptions& options)
    : module_(module), name_(std::move(name)), axes_(axes), lane_(Lane::of(*axes.all)), order_(ShardOrder::of(lane_)),
      options_(options), cause_(cause_text(kShardCause, name_)), came_(parameters.size()), used_(parameters.size()), used_last_(parameters.size(), true) {
  CauseScope cause(kShardCause, false);
  auto others = agree_on_tensors(kShardCause, *axes_.all, parameters, {}, lane_.user_count());
  user_ = lane_.open(name_, others);
  members_.reserve(parameters.size());
  for (auto& [leaf_name, leaf] : parameters) {
    auto dtype = leaf.is_floating_point() ? options_.param_dtype : std::nullopt;
    members_.emplace_back(leaf_name, leaf, axes_, options_.dim_of(leaf_name, leaf), dtype);
  }
  if (options_.reshard_to) kept_.emplace(axes_, *options_.reshard_to);
}

ShardGroup::~ShardGroup() {
  for (auto& member : members_) {
    for (auto& memory : member.memories()) disown_storage(memory.storage());
  }
  order_.gone(this);
  lane_.close(user_);
}

void ShardGroup::own_memories(const TwoValues& member) {
  for (auto& memory : member.memories()) own_storage(memory.storage(), weak_from_this());
}

void ShardGroup::start() {
  at::NoGradGuard no_grad;
  order_.came(this);
  for (size_t i = 0; i < members_.size(); ++i) {
    own_memories(members_[i]);
    members_[i].become_shards();
    watch_leaf(members_[i].leaf(), shared_from_this(), i);
    hold_hooks(members_[i].leaf(), /*tensor_hooks=*/true);
  }
}

void ShardGroup::set_name(const std::string& name) {
  name_ = name;
  cause_ = cause_text(kShardCause, name_);
  lane_.rename(user_, name);
}

std::vector<std::shared_ptr<ShardGroup>> ShardGroup::prefetched(bool in_backward) const {
  std::vector<std::shared_ptr<ShardGroup>> groups;
  for (auto& weak : prefetched_[in_backward]) {
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

int64_t ShardGroup::bytes() const {
  int64_t sum = 0;
  for (auto& member : members_) sum += member.bytes_of_whole();
  return sum;
}

// --- whole and shards

void ShardGroup::check_has_data() const {
  if (is_rehearsing()) return;
  for (auto& member : members_) {
    TORCH_CHECK(member.has_data(), "[fully_shard] \"", member.name(), "\" of ", name_, " is on meta: it has no values yet. Give ",
                "them before the model is used.");
  }
}

void ShardGroup::begin_unshard() {
  if (whole_ || begun_) return;
  check_has_data();
  at::NoGradGuard no_grad;
  if (axes_.shard->size() > 1) order_.word(user_, kGather);
  CauseScope cause(cause_, false);
  begun_ = true;
  gathered_version_ = version();
  from_kept_ = kept_ && kept_->has(gathered_version_);
  if (from_kept_) return kept_->gather(members_, incoming_, &gathering_);
  ShardsList outgoing;
  CountsList counts;
  incoming_.clear();
  for (auto& member : members_) {
    outgoing.push_back(member.outgoing());
    incoming_.push_back(member.incoming());
    counts.push_back(member.counts());
  }
  if (own_gather_) return all_gather_by(*own_gather_, *axes_.shard, outgoing, incoming_, counts, &gathering_);
  all_gather(*axes_.shard, outgoing, incoming_, counts, &gathering_);
}

void ShardGroup::wait_for_gathering() {
  if (gathering_) gathering_();
  gathering_ = nullptr;
  begun_ = false;
}

uint64_t ShardGroup::version() const {
  return std::accumulate(members_.begin(), members_.end(), uint64_t{0}, [](auto sum, auto& one) { return sum + one.version(); });
}

void ShardGroup::unshard() {
  if (whole_) return;
  at::NoGradGuard no_grad;
  do {  // shards may have been written since they were sent
    begin_unshard();
    wait_for_gathering();
  } while (version() != gathered_version_);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!from_kept_) members_[i].arrived(incoming_[i]);
    members_[i].become_whole();
  }
  incoming_.clear();
  if (kept_) kept_->drop();
  whole_ = true;
  order_.gathered(*this, is_in_backward());
}

void ShardGroup::reshard() {
  if (!whole_ && !begun_) return;
  at::NoGradGuard no_grad;
  if (begun_) wait_for_gathering();
  incoming_.clear();
  for (auto& member : members_) member.become_shards();
  whole_ = false;
}

void ShardGroup::reshard_after_forward() {
  if (is_in_backward()) return;
  if (kept_ && whole_) kept_->keep(members_, gathered_version_);
  reshard();
}

void ShardGroup::reshard_after_backward() {
  if (reshard_after_backward_ && !is_held()) need_shards();
}

bool ShardGroup::is_frozen() const {
  return std::none_of(members_.begin(), members_.end(), [](auto& member) { return member.leaf().requires_grad(); });
}

void ShardGroup::hold(bool held) {
  holds_ += held ? 1 : -1;
  if (!holds_) order_.released(*this);
}

void ShardGroup::take_value(const at::Tensor& leaf, const at::Tensor& value) {
  need_shards();
  for (auto& member : members_) {
    if (!member.leaf().is_same(leaf)) continue;
    for (auto& memory : member.memories()) disown_storage(memory.storage());
    member.replace(value);
    own_memories(member);
  }
}

void ShardGroup::need_whole() {
  if (is_in_backward()) {
    order_.used_in_backward(shared_from_this());
  } else {
    order_.used(*this);
    if (whole_ && version() != gathered_version_) reshard();  // shards were written by a handle that we do not know
  }
  if (!whole_) unshard();
}

void ShardGroup::need_shards() {
  pinned_ = false;
  if (kept_) kept_->drop();
  reshard();
}

bool ShardGroup::lies_on(const DeviceMesh& mesh) const {
  return std::any_of(members_.begin(), members_.end(), [&](auto& member) { return mesh_of(member.sharded()) == mesh; });
}

at::Tensor ShardGroup::shards_for(const at::Tensor& whole) const {
  for (auto& member : members_) {
    if (!whole.storage().is_alias_of(member.memories()[0].storage())) continue;
    TORCH_CHECK(whole.sizes() == member.sharded().sizes() && whole.storage_offset() == 0, "[fully_shard] a part of \"",
                member.name(), "\", of shape ", whole.sizes(), ", is written or meets shards. Use the parameter itself.");
    return member.sharded();
  }
  TORCH_INTERNAL_ASSERT(false, "a whole of another group");
}

// --- gradients

void ShardGroup::before_gradient(size_t index, const at::Tensor& grad) {
  order_.used_in_backward(shared_from_this());
  check_has_no_graph(kShardCause, members_[index].name(), grad);
  hold_hooks(members_[index].leaf(), /*tensor_hooks=*/true);
  members_[index].lend_gradient();
}

void ShardGroup::after_gradient(size_t index) {
  members_[index].take_gradient();
  came_[index] = true;
  if (!syncs_) members_[index].show_as_pending(options_.reduce_dtype);
  if (!all_came()) return;
  if (syncs_) return reduce();
  std::fill(came_.begin(), came_.end(), false);
  if (reshard_after_backward_) reshard();
}

// Whether all gradients are there that this pass will bring.
bool ShardGroup::all_came() const {
  auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (size_t i = 0; i < members_.size(); ++i) {
    if (came_[i]) continue;
    auto leaf = members_[i].leaf();
    if (!leaf.requires_grad()) continue;
    // A leaf that changes its dtype has lost its node: it is taken to be used as in the last step.
    auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
    bool may_come = options_.param_dtype && !node ? used_last_[i] : node && (!nodes || nodes->count(node.get()));
    if (may_come) return false;
  }
  return true;
}

// Ranks on which other parameters are frozen would send other sizes.
int64_t ShardGroup::fingerprint() const {
  int64_t hash = 0;
  for (auto& member : members_) hash = (hash * 31 + member.leaf().requires_grad()) % 999'983;
  return hash;
}

void ShardGroup::reduce() {
  at::NoGradGuard no_grad;
  order_.word(user_, kReduce + fingerprint());
  CauseScope cause(cause_, false);
  auto& round = rounds_.emplace_back();
  ShardsList send;
  CountsList counts;
  for (size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    if (!member.leaf().requires_grad()) continue;
    round.members.push_back(i);
    if (!came_[i]) member.fetch_pending();
    used_[i] = used_[i] || member.has_gradient();
    send.push_back(member.parts_of_gradient(options_.reduce_dtype.value_or(member.gradient_dtype())));
    counts.push_back(member.gradient_counts());
    member.drop_gradient();
    came_[i] = false;
  }
  reduce_over_shards(round, send, counts);
  if (reshard_after_backward_) reshard();
  order_.reducing(shared_from_this());
}

void ShardGroup::reduce_over_shards(Round& round, const ShardsList& send, const CountsList& counts) {
  auto& axis = *axes_.shard;
  auto op = divide_factor_ ? ReduceOp::sum : ReduceOp::avg;
  round.parts = own_reduce_ ? reduce_scatter_by(*own_reduce_, axis, send, counts, &round.wait)
                            : reduce_scatter(axis, send, counts, op, &round.wait);
}

// What was added up becomes terms of an average over the copies.
void ShardGroup::divide(Round& round) const {
  double copies = axes_.replicate ? static_cast<double>(axes_.replicate->size()) : 1;
  double divisor = divide_factor_ ? *divide_factor_ / copies : own_reduce_ ? static_cast<double>(axes_.shard->size()) : 1;
  if (divisor == 1) return;
  for (auto& part : round.parts) std::for_each(part.begin(), part.end(), [&](auto& local) { local.div_(divisor); });
}

void ShardGroup::reduce_rest() {
  if (std::any_of(members_.begin(), members_.end(), [](auto& member) { return !member.leaf().defined(); })) return;  // abandoned
  bool any = std::find(came_.begin(), came_.end(), true) != came_.end();
  // Taken only in reduce(), when all ranks are there: what is left after an error must be in reach of zero_grad.
  for (size_t i = 0; i < members_.size(); ++i) any = any || (!came_[i] && members_[i].has_pending());
  if (any && syncs_) reduce();
}

void ShardGroup::reduce_over_copies(Round& round) {
  if (!axes_.replicate || !syncs_copies_) return;
  for (size_t m = 0; m < round.members.size(); ++m) {
    auto earlier = members_[round.members[m]].take_pending_over_copies();
    for (size_t slot = 0; slot < earlier.size(); ++slot) round.parts[m][slot].add_(earlier[slot]);
    if (!earlier.empty()) used_[round.members[m]] = true;
  }
  round.parts = all_reduce(*axes_.replicate, round.parts, ReduceOp::avg);
}

void ShardGroup::run_reduced_hook(const Round& round) const {
  if (reduced_hook_ && !waits_for_copies()) change_as_flat(round.parts, reduced_hook_);
}

void ShardGroup::finish_reductions() {
  at::NoGradGuard no_grad;
  CauseScope cause(cause_, false);
  for (auto& round : rounds_) {
    if (round.finished) continue;
    if (round.wait) round.wait();
    round.wait = nullptr;
    divide(round);
    reduce_over_copies(round);
    run_reduced_hook(round);
    round.finished = true;
  }
}

void ShardGroup::append_uses(std::vector<Use>& uses) const {
  for (size_t i = 0; i < members_.size(); ++i) {
    uses.push_back(!members_[i].leaf().requires_grad() ? Use::frozen : used_[i] ? Use::used : Use::none);
  }
}

void ShardGroup::write_gradients(const Reports& reports, size_t first) {
  std::set<size_t> written;
  for (auto& round : rounds_) {
    for (size_t m = 0; m < round.members.size(); ++m) {
      auto i = round.members[m];
      if (!reports.any_used(first + i) && !options_.unused_as_zeros) continue;
      members_[i].add_gradient(round.parts[m], waits_for_copies());
      if (!waits_for_copies()) written.insert(i);
    }
  }
  for (auto i : written) run_post_accumulate_hooks(members_[i].leaf());
  used_last_ = used_;
  std::fill(used_.begin(), used_.end(), false);
}

void ShardGroup::forget_step() {
  rounds_.clear();
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].end_loan();  // of a pass that failed, as what follows
    if (came_[i] && syncs_) members_[i].drop_gradient();
    came_[i] = used_[i] = false;
  }
  reshard_after_backward();
}

std::shared_ptr<ShardGroup> make_shard_group(const void* module, const std::string& name, const DeviceMesh& mesh,
                                             const NamedTensors& parameters, const NamedTensors& buffers,
                                             const ShardGroupOptions& options, bool init_sync) {
  WorldScope world(mesh.world());  // for meshes of more axes
  auto axes = options.replicated ? replicated_axes(mesh) : ShardingAxes::of(mesh);
  axes.on_full_mesh = options.on_full_mesh;
  for (auto& [leaf_name, tensor] : parameters) at_rest(leaf_name, axes, tensor, std::nullopt);  // an error before anything is sent
  if (init_sync) {
    std::vector<at::Tensor> tensors;
    for (auto& [leaf_name, tensor] : parameters) {
      if (!is_cut_along(tensor, axes) && !tensor.is_meta() && !is_rehearsing()) tensors.push_back(tensor);
    }
    CauseScope cause(kShardCause, false);
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) broadcast_tensors(mesh, tensors, 0, nullptr, axis);
  }
  for (auto& [buffer_name, buffer] : buffers) {
    bool born = !options.on_full_mesh && lies_on(buffer, mesh);
    if (born) buffer.set_data(full_tensor(buffer.detach()));  // activations are plain
  }
  make_per_rank(buffers, mesh.slots().size());
  auto group = std::make_shared<ShardGroup>(module, name, axes, parameters, options);
  group->start();
  return group;
}

}  // namespace intarsia
