#include "intarsia/random/draw.h"

#include <cmath>
#include <memory>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/TensorGeometry.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/dispatch/errors.h"
#include "intarsia/dispatch/generator.h"
#include "intarsia/random/drawer.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/rules/table.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Below this, drawing all numbers costs less than finding those of a rank.
constexpr int64_t kSmall = 2048;

struct DrawPlan {
  c10::OperatorHandle op;
  TensorForm form;             // of the whole
  std::vector<int64_t> order;  // of the dims, in the order of drawing: the last one varies fastest
  bool contiguous;             // decides which kernel LibTorch uses
  StreamUse use;               // none: drawn whole
  std::vector<HeldRuns> held;  // per slot
  std::vector<size_t> twin;    // per slot: the first one that holds the same
};

// Kernels go through memory: from the dim with the largest stride to that with the smallest.
std::vector<int64_t> memory_order(const TensorForm& form) {
  std::vector<int64_t> order(form.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return form.strides[a] > form.strides[b]; });
  return order;
}

// Of complex numbers, real and imaginary parts are drawn in turn, each with half of the variance.
Stack real_arguments(const DrawPlan& plan, Stack arguments) {
  if (c10::isComplexType(plan.form.dtype) && plan.op.operator_name().name == "aten::normal_") {
    arguments[2] = arguments[2].toDouble() / std::sqrt(2);
  }
  return arguments;
}

// Whether the op does not support complex numbers; the plain op raises that error.
bool refuses(const c10::OperatorHandle& op, c10::ScalarType dtype) {
  auto& name = op.operator_name().name;
  return c10::isComplexType(dtype) && name != "aten::normal_" && name != "aten::uniform_";
}

HeldRuns held_at(const DrawPlan& plan, const Layout& layout, const Slot& slot) {
  std::vector<int64_t> sizes;
  std::vector<Intervals> positions;
  for (auto d : plan.order) {
    sizes.push_back(plan.form.sizes[d]);
    positions.push_back(intervals_of(layout, d, plan.form.sizes[d], slot.coordinate));
  }
  if (c10::isComplexType(plan.form.dtype)) {
    sizes.push_back(2);
    positions.push_back({{0, 2}});
  }
  return {std::move(sizes), std::move(positions)};
}

// A tensor of probabilities, one per element, in the given layout.
Shards beside(const Stack& stack, const Layout* layout) {
  if (!stack[1].isTensor()) return {};
  auto others = stack[1].toTensor();
  auto sizes = stack[0].toTensor().sizes();
  return shards_in(others.sizes() == sizes ? others : at::expand_copy(others, sizes), layout);
}

// The plain op itself, on a tensor of the size that one device would have.
void draw_whole(const DrawPlan& plan, const Stack& stack, const Shards& shards, const Layout& layout) {
  auto whole = at::empty_strided(plan.form.sizes, plan.form.strides, shards[0].options());
  auto arguments = stack;
  auto all = beside(stack, Layout::replicated(layout.mesh()));
  arguments[0] = whole;
  if (!all.empty()) arguments[1] = all[0];
  plan.op.callBoxed(arguments);
  auto& slots = layout.mesh().slots();
  Shards parts;
  for (auto& slot : slots) parts.push_back(shard_of(whole, layout, slot.coordinate));
  write_once(shards, parts, [&](size_t slot) { shards[slot].copy_(parts[slot]); });
}

at::Tensor in_order(const DrawPlan& plan, const at::Tensor& shard) {
  auto ordered = shard.permute(plan.order);
  return c10::isComplexType(plan.form.dtype) ? at::view_as_real(ordered) : ordered;
}

void draw_slot(const DrawPlan& plan, Drawer& drawer, size_t slot, const Shards& shards, const Shards& others) {
  if (plan.twin[slot] != slot) {
    if (!are_twins(shards[slot], shards[plan.twin[slot]])) shards[slot].copy_(shards[plan.twin[slot]]);
    return;
  }
  WriteForTwins twins(others.empty() ? at::Tensor() : others[slot]);
  for (size_t other = slot + 1; other < shards.size(); ++other) {
    if (plan.twin[other] == slot && may_write_once(shards[slot], shards[other])) twins.add(shards[slot], shards[other]);
  }
  auto target = in_order(plan, shards[slot]);
  auto flat = target.is_contiguous() ? target.view(-1) : at::empty({target.numel()}, target.options());
  drawer.draw(flat, plan.held[slot], others.empty() ? at::Tensor() : in_order(plan, others[slot]).reshape(-1));
  if (!target.is_contiguous()) target.copy_(flat.view(target.sizes()));
}

// The axes along which one rank may hold an invalid probability while another does not.
std::vector<int64_t> refusing_axes(const Layout& layout, const Shards& others) {
  std::vector<int64_t> cut;
  for (int64_t axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (!others.empty() && cut_dim(layout.placements()[axis]) >= 0) cut.push_back(axis);
  }
  return cut;
}

void draw_own(const DrawPlan& plan, const Stack& stack, const Shards& shards, const Layout& layout,
              at::CPUGeneratorImpl& generator) {
  auto others = beside(stack, &layout);
  auto total = plan.form.numel() * (c10::isComplexType(plan.form.dtype) ? 2 : 1);
  std::unique_lock lock(generator.mutex_);  // like the plain op: what other threads draw comes before or after
  Drawer drawer(plan.op, real_arguments(plan, stack), plan.use, total, c10::toRealValueType(plan.form.dtype),
                plan.contiguous, generator);
  SlotErrors errors;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    errors.attempt(slot, [&] { draw_slot(plan, drawer, slot, shards, others); });
  }
  drawer.finish(generator);
  lock.unlock();  // ranks that exchange messages may be threads
  try {
    errors.raise(plan.op.operator_name().name, layout.mesh(), refusing_axes(layout, others));
  } catch (...) {
    lock.lock();
    drawer.undo(generator);
    throw;
  }
}

// Nothing is drawn on the meta device, but the plain op checks its arguments.
void draw_without_data(const DrawPlan& plan, Stack arguments, const at::Tensor& shard) {
  arguments[0] = shard;
  plan.op.callBoxed(arguments);
}

void draw(const DrawPlan& plan, Stack& stack) {
  auto self = stack[0].toTensor();
  auto& body = body_of(self);
  auto& shards = body.shards();
  auto& mesh = body.layout->mesh();
  if (!shards.empty() && shards[0].is_meta()) {
    draw_without_data(plan, stack, shards[0]);
  } else if (!shards.empty()) {
    AgreedDraw agreed(c10::toString(plan.op.operator_name()), mesh, stack);
    auto generator = generator_of(mesh, stack);
    if (plan.use.unit && generator.device().is_cpu()) {
      draw_own(plan, stack, shards, *body.layout, *generator.get<at::CPUGeneratorImpl>());
    } else {
      draw_whole(plan, stack, shards, *body.layout);
    }
  }
  body.written();
  stack = {self};
}

// Whether elements share memory: the plain op rejects that, or goes through them in an unspecified order.
bool overlaps(const TensorForm& form, const std::vector<int64_t>& order) {
  int64_t reach = 0;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    if (form.sizes[*d] <= 1) continue;
    if (form.strides[*d] <= reach) return true;
    reach += (form.sizes[*d] - 1) * form.strides[*d];
  }
  return false;
}

void find_runs(DrawPlan& plan, const Layout& layout) {
  for (auto& slot : layout.mesh().slots()) {
    plan.held.push_back(held_at(plan, layout, slot));
    auto twin = std::find(plan.held.begin(), plan.held.end(), plan.held.back()) - plan.held.begin();
    plan.twin.push_back(static_cast<size_t>(twin));
  }
}

Lowering draw_along(const c10::OperatorHandle& op, const CutCall& c) {
  auto& self = c.input(0);
  if (!c.is_distributed(0) || self.dim() == 0 || c.has_partial(0)) return {};
  bool has_others = c.call.inputs.size() == 2;
  if (has_others && (!c.is_distributed(1) || c.has_partial(1) || !c.on_one_mesh())) return {};
  auto order = memory_order(self);
  if (overlaps(self, order)) return {};
  auto plan = std::make_shared<DrawPlan>(DrawPlan{op, self, std::move(order), true, {}, {}, {}});
  if (op.operator_name().name == "aten::normal_")
    plan->contiguous = at::geometry_is_contiguous(self.sizes, self.strides);
  bool small = self.numel() < kSmall;
  if (!small && !refuses(op, self.dtype) && c.now[0]->mesh().device_type() == at::kCPU) {
    Stack arguments(c.call.args.begin(), c.call.args.end());
    if (has_others) arguments[1] = at::empty({1}, c.input(1).dtype);
    plan->use = use_of(op, real_arguments(*plan, arguments), c10::toRealValueType(self.dtype), plan->contiguous);
    find_runs(*plan, *c.now[0]);
  }
  return [plan](Stack& stack) { draw(*plan, stack); };
}

}  // namespace

void add_draws(RuleTable& t) {
  for (std::string name : {"uniform_", "normal_", "log_normal_", "cauchy_", "geometric_", "exponential_",
                           "bernoulli_.float", "bernoulli_.Tensor", "random_", "random_.from", "random_.to"}) {
    auto dot = name.find('.');
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                             dot == name.npos ? "" : name.substr(dot + 1).c_str());
    t.lower("aten::" + name, [op](const CutCall& c) { return draw_along(op, c); });
  }
  t.traits({"aten::bernoulli_", "aten::uniform_", "aten::normal_", "aten::random_", "aten::cauchy_", "aten::geometric_",
            "aten::exponential_", "aten::log_normal_"},
           [](Traits& traits) { traits.overwrites_at_random = true; });
}

}  // namespace intarsia
