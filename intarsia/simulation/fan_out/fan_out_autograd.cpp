#include "intarsia/simulation/fan_out/fan_out_autograd.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd.h>

#include "intarsia/dispatch/watch.h"
#include "intarsia/dispatch/without_data.h"
#include "intarsia/simulation/fan_out/fan_out.h"
#include "intarsia/simulation/fan_out/fan_out_draw.h"
#include "intarsia/simulation/fan_out/fan_out_write.h"
#include "intarsia/simulation/per_rank/per_rank.h"

namespace intarsia {
namespace {

using torch::autograd::CreationMeta;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  bool counts = tensor.defined() && tensor.requires_grad();
  return counts ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge();
}

// The small graphs of one op, one per rank.
struct Recorded {
  variable_list leaves;   // one per tensor among the arguments; undefined if it needs no gradient
  variable_list results;  // one per incoming gradient
};

// The node that stands for the small graphs of all ranks.
struct RankByRankBackward final : Node {
  RankByRankBackward(std::string name, std::vector<Recorded> ranks)
      : name_(std::move(name)), ranks_(std::move(ranks)) {}

  std::string name() const override { return "RankByRankBackward(" + name_ + ")"; }
  void release_variables() override { ranks_.clear(); }
  variable_list apply(variable_list&& grads) override;

 private:
  // The gradients of one rank's leaves.
  variable_list run(const Recorded& rank, const variable_list& grads);

  std::string name_;
  std::vector<Recorded> ranks_;
};

variable_list RankByRankBackward::run(const Recorded& rank, const variable_list& grads) {
  variable_list outputs, given, inputs, found(rank.leaves.size());
  for (size_t i = 0; i < rank.results.size(); ++i) {
    if (!grads[i].defined() || !rank.results[i].defined() || !rank.results[i].requires_grad()) continue;
    outputs.push_back(rank.results[i]);
    given.push_back(grads[i]);
  }
  std::vector<size_t> places;
  for (size_t i = 0; i < rank.leaves.size(); ++i) {
    if (!rank.leaves[i].defined() || !task_should_compute_output(i)) continue;
    inputs.push_back(rank.leaves[i]);
    places.push_back(i);
  }
  if (outputs.empty() || inputs.empty()) return found;
  auto values = torch::autograd::grad(outputs, inputs, given, true, at::GradMode::is_enabled(), true);
  for (size_t i = 0; i < places.size(); ++i) found[places[i]] = values[i];
  return found;
}

variable_list RankByRankBackward::apply(variable_list&& grads) {
  TORCH_CHECK(!ranks_.empty(), "[", name_, "] Trying to backward through the graph a second time, after its ",
              "values have been freed. Specify retain_graph=true in the first call.");
  bool again = at::GradMode::is_enabled();  // the gradients are to be differentiated again
  std::vector<Recorded> next;
  std::vector<variable_list> found;
  for (size_t slot = 0; slot < ranks_.size(); ++slot) {
    variable_list given;
    auto& record = next.emplace_back();
    record.leaves = ranks_[slot].leaves;
    for (auto& grad : grads) {
      auto value = grad.defined() ? value_at(grad, slot) : grad;
      bool counts = again && grad.defined() && grad.requires_grad();
      if (counts) value = value.detach().requires_grad_();
      record.leaves.push_back(counts ? value : at::Tensor());
      given.push_back(value);
    }
    found.push_back(run(ranks_[slot], given));
  }
  variable_list results(num_outputs()), recorded;
  for (size_t i = 0; i < results.size(); ++i) {
    bool any = std::any_of(found.begin(), found.end(), [i](auto& of_rank) { return of_rank[i].defined(); });
    if (!any) continue;
    bool counts = false;
    Shards values;
    for (size_t slot = 0; slot < found.size(); ++slot) {
      auto& value = found[slot][i];
      if (!value.defined()) value = at::zeros_like(ranks_[slot].leaves[i]);
      counts = counts || value.requires_grad();
      values.push_back(value.detach());
    }
    results[i] = per_rank(std::move(values));
    if (!again || !counts) continue;
    recorded.push_back(results[i]);
    for (size_t slot = 0; slot < found.size(); ++slot) next[slot].results.push_back(found[slot][i]);
  }
  if (recorded.empty()) return results;
  auto node = c10::make_intrusive<RankByRankBackward>(name_ + " backward", std::move(next));
  auto edges = next_edges();
  for (auto& grad : grads) edges.push_back(edge_of(grad));
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(recorded, node);
  return results;
}

// Passes gradients on, between a leaf and the tensor with its memory that an in-place op may write to.
struct Same final : Node {
  variable_list apply(variable_list&& grads) override { return std::move(grads); }
};

// A tensor with the memory and the version counter of `value`, but with another history: that of `leaf`, if defined.
at::Tensor writable(const at::Tensor& value, const at::Tensor& leaf) {
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = at::alias(value);
  }
  torch::autograd::impl::set_version_counter(result, torch::autograd::impl::version_counter(value));
  if (!leaf.defined()) return result;
  auto node = c10::make_intrusive<Same>();
  node->set_next_edges({edge_of(leaf)});
  torch::autograd::set_history(result, node);
  return result;
}

// Creates a view again from another base, as autograd requests after a write through the view.
struct Replay final : torch::autograd::ViewFunc {
  Replay(c10::OperatorHandle op, Arguments args, size_t self, size_t result, int64_t item)
      : op(std::move(op)), args(std::move(args)), self(self), result(result), item(item) {}

  at::Tensor operator()(const at::Tensor& base) const override {
    auto stack = args;
    stack[self] = base;
    op.callBoxed(stack);
    return item < 0 ? stack[result].toTensor() : at::Tensor(stack[result].toTensorList().get(item));
  }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<Replay>(op, args, self, result, item);
  }

  c10::OperatorHandle op;
  Arguments args;  // the viewed tensor's place is left empty
  size_t self, result;
  int64_t item;  // in a list of results; -1 if there is none
};

// One call, from its arguments to the results of all ranks.
class RecordedCall {
 public:
  RecordedCall(const c10::OperatorHandle& op, Arguments args)
      : op_(op),
        args_(std::move(args)),
        written_(written_arguments(op)),
        slots_(slots_of(args_)),
        targets_(op, args_, slots_) {
    for (auto& arg : args_) {
      for (auto& tensor : tensors_in(arg)) {
        edges_.push_back(edge_of(tensor));
        records_ = records_ || edges_.back().is_valid();
      }
    }
    records_ = records_ && at::GradMode::is_enabled();
    if (records_ && !written_.empty()) check_write();
  }

  void run(torch::jit::Stack& stack) {
    by_form_ = without_data(args_);
    DrawnAlike draws(op_, args_);
    for (size_t slot = 0; slot < slots_; ++slot) {
      draws.begin(slot);
      call(slot);
    }
    draws.finish();
    finish_writes();
    targets_.finish();
    for (size_t r = 0; r < op_.schema().returns().size(); ++r) {
      auto same = argument_returned(op_.schema(), r);
      stack.push_back(same >= 0 ? args_[same] : result(r));
    }
    record();
  }

 private:
  void check_write() {
    bool in_place = written_.size() == 1 && written_[0] == 0 && args_[0].isTensor();
    TORCH_CHECK_NOT_IMPLEMENTED(in_place, "[", op_.operator_name(),
                                "] writes to given tensors, which has no gradient, ",
                                "but one of the arguments requires grad. Use the op that returns a new tensor.");
    torch::autograd::check_inplace(args_[0].toTensor(), true);
  }

  bool writes(size_t arg) const { return std::find(written_.begin(), written_.end(), arg) != written_.end(); }

  void call(size_t slot) {
    Recorded rank;
    auto& local = given_.emplace_back();
    for (size_t i = 0; i < args_.size(); ++i) {
      local.push_back(argument_at(args_[i], slot, [&](const at::Tensor& tensor) {
        auto value = tensor_at(tensor, slot, by_form_);
        auto& leaf = rank.leaves.emplace_back();
        if (!records_) return value;
        if (tensor.defined() && tensor.requires_grad()) leaf = value.detach().requires_grad_();
        if (writes(i)) return writable(value, leaf);
        return leaf.defined() ? leaf : value;
      }));
    }
    results_.push_back(local);
    by_form_ ? call_without_data(op_, results_.back()) : op_.callBoxed(results_.back());
    ranks_.push_back(std::move(rank));
  }

  void finish_writes() {
    for (auto i : written_) {
      auto tensors = tensors_in(args_[i]);
      for (size_t t = 0; t < tensors.size(); ++t) {
        if (!tensors[t].defined()) continue;
        Shards values;
        for (auto& local : given_) values.push_back(tensors_in(local[i])[t].detach());
        set_values(tensors[t], std::move(values));
        if (!tensors[t].is_inference()) torch::autograd::impl::bump_version(tensors[t]);
      }
    }
  }

  c10::IValue result(size_t r) {
    auto& first = results_[0][r];
    if (first.isTensor()) return tensor_result(r, -1, [r](Arguments& of_rank) { return of_rank[r].toTensor(); });
    if (!first.isTensorList()) return join(results_, r, op_);
    check_equal_lists(results_, r, op_);
    c10::List<at::Tensor> list;
    for (int64_t item = 0; item < static_cast<int64_t>(first.toTensorList().size()); ++item) {
      auto get = [&](Arguments& of_rank) { return at::Tensor(of_rank[r].toTensorList().get(item)); };
      list.push_back(tensor_result(r, item, get));
    }
    return list;
  }

  template <class Get>
  at::Tensor tensor_result(size_t r, int64_t item, Get get) {
    variable_list values;
    for (auto& of_rank : results_) values.push_back(get(of_rank));
    if (!values[0].defined()) return values[0];
    auto self = argument_viewed(op_.schema(), args_, r);
    size_t same = 0, alias = 0;
    for (size_t slot = 0; self >= 0 && slot < values.size(); ++slot) {
      auto& given = given_[slot][self].toTensor();
      same += values[slot].is_same(given);
      alias += values[slot].is_alias_of(given);
    }
    if (same == values.size()) return args_[self].toTensor();  // contiguous() of what is so already
    Shards plain;
    for (auto& value : values) plain.push_back(value.detach());
    auto result = per_rank(std::move(plain));
    if (alias > 0) result = as_view(result, self, r, item, alias == values.size());
    bool counts = std::any_of(values.begin(), values.end(), [](auto& value) { return value.requires_grad(); });
    if (!records_ || !counts) return result;
    recorded_.push_back(result);
    for (size_t slot = 0; slot < values.size(); ++slot) ranks_[slot].results.push_back(values[slot]);
    return result;
  }

  // Writing through a view that is a copy on some ranks, or that is one of several views, has no gradient.
  at::Tensor as_view(const at::Tensor& result, int64_t self, size_t r, int64_t item, bool everywhere) {
    auto meta = !at::GradMode::is_enabled() ? CreationMeta::NO_GRAD_MODE
                : item >= 0 || !everywhere  ? CreationMeta::MULTI_OUTPUT_NODE
                                            : CreationMeta::DEFAULT;
    auto args = args_;
    args[self] = c10::IValue();
    auto replay = std::make_unique<Replay>(op_, std::move(args), self, r, item);
    return torch::autograd::as_view(args_[self].toTensor(), result, true, true, std::move(replay), nullptr, meta);
  }

  void record() {
    if (!records_) return;
    if (!written_.empty()) {
      for (size_t slot = 0; slot < given_.size(); ++slot) ranks_[slot].results = {given_[slot][0].toTensor()};
    } else if (recorded_.empty()) {
      return;
    }
    auto node = c10::make_intrusive<RankByRankBackward>(op_.schema().name(), std::move(ranks_));
    node->set_next_edges(std::move(edges_));
    if (written_.empty()) {
      torch::autograd::set_history(recorded_, node);
    } else {
      torch::autograd::rebase_history(args_[0].toTensor(), node);
    }
  }

  const c10::OperatorHandle& op_;
  Arguments args_;
  std::vector<size_t> written_;
  size_t slots_;
  PlainTargets targets_;
  edge_list edges_;               // one per tensor among the arguments
  bool records_ = false;          // for autograd
  bool by_form_ = false;          // there are no data
  std::vector<Arguments> given_;  // to each rank
  std::vector<Arguments> results_;
  std::vector<Recorded> ranks_;
  variable_list recorded_;  // the results that have gradients
};

template <class Is>
bool any_plain(c10::ArrayRef<c10::IValue> args, Is is) {
  for (auto& arg : args) {
    for (auto& tensor : tensors_in(arg)) {
      if (tensor.defined() && tensor.dim() > 0 && !is_per_rank(tensor) && is(tensor)) return true;
    }
  }
  return false;
}

bool meet_plain(c10::ArrayRef<c10::IValue> args) {
  return any_plain(args, [](auto&) { return true; });
}

// Whether plain arguments may be replaced by others with the same values: the op only creates new tensors. An op may
// write to a tensor that needs no gradient whatever its schema says, as batch_norm does to its running statistics.
bool only_reads_plain(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> args) {
  auto aliases = [](auto& one) { return one.alias_info() != nullptr; };
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), aliases) &&
         std::none_of(schema.returns().begin(), schema.returns().end(), aliases) &&
         !any_plain(args, [](auto& tensor) { return !tensor.requires_grad(); });
}

// The plain tensor as a per-rank one with its value on every rank. Gradients go directly where those of the plain one
// go: a node in between would first add them up, see Note [Gradients rank by rank].
at::Tensor for_every_rank(const at::Tensor& plain, size_t slots, bool by_form) {
  if (!plain.defined() || plain.dim() == 0 || is_per_rank(plain)) return plain;
  auto result = per_rank(Shards(slots, tensor_at(plain, 0, by_form).detach()));
  if (!plain.is_inference())
    torch::autograd::impl::set_version_counter(result, torch::autograd::impl::version_counter(plain));
  if (plain.requires_grad() && at::GradMode::is_enabled())
    torch::autograd::impl::set_gradient_edge(result, edge_of(plain));
  return result;
}

void lift_plain(at::ArrayRef<c10::IValue> args, torch::jit::Stack& stack) {
  auto slots = slots_of(args);
  auto by_form = without_data(args);
  for (auto i = stack.size() - args.size(); i < stack.size(); ++i) {
    stack[i] =
        argument_at(stack[i], 0, [&](const at::Tensor& tensor) { return for_every_rank(tensor, slots, by_form); });
  }
}

}  // namespace

void RankByRank::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto count = op.schema().arguments().size();
  c10::ArrayRef<c10::IValue> args(stack->data() + stack->size() - count, count);
  bool mixed = composite_ && meet_plain(args), differ = differ_by_rank(args);
  if (mixed && !differ && only_reads_plain(op.schema(), args)) {
    lift_plain(args, *stack);
    mixed = false;
  }
  if (!differ && !mixed) return usual_.callBoxed(op, keys, stack);
  auto run = [&] { RecordedCall(op, pop_arguments(op, *stack)).run(*stack); };
  if (C10_LIKELY(!OpWatch::open())) return run();
  OpWatch::run(op.schema(), *stack, run);
}

}  // namespace intarsia
