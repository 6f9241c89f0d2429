#include "intarsia/random/draw.h"

#include <cmath>
#include <memory>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/TensorGeometry.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/dispatch/generator.h"
#include "intarsia/random/drawer.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Below this, drawing all numbers costs less than finding one's own.
constexpr int64_t kSmall = 2048;

struct DrawPlan {
  c10::OperatorHandle op;
  TensorForm form;             // of the whole
  std::vector<int64_t> order;  // of the dims, as they are drawn: the last one varies fastest
  bool contiguous;             // for the kernel that LibTorch takes
  Use use;                     // none: drawn whole
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

// The plain op itself, on as much as one device would have.
void draw_whole(const DrawPlan& plan, const Stack& stack, const Shards& shards, const Layout& layout) {
  auto whole = at::empty_strided(plan.form.sizes, plan.form.strides, shards[0].options());
  auto arguments = stack;
  arguments[0] = whole;
  plan.op.callBoxed(arguments);
  auto& slots = layout.mesh().slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) shards[slot].copy_(shard_of(whole, layout, slots[slot].coordinate));
}

void draw_own(const DrawPlan& plan, const Stack& stack, const Shards& shards, at::CPUGeneratorImpl& generator) {
  auto parts = c10::isComplexType(plan.form.dtype) ? 2 : 1;
  auto dtype = c10::toRealValueType(plan.form.dtype);
  Drawer drawer(plan.op, real_arguments(plan, stack), plan.use, c10::multiply_integers(plan.form.sizes) * parts, dtype,
                plan.contiguous, generator);
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    if (plan.twin[slot] != slot) {
      shards[slot].copy_(shards[plan.twin[slot]]);
      continue;
    }
    auto target = shards[slot].permute(plan.order);
    if (parts == 2) target = at::view_as_real(target);
    auto flat = target.is_contiguous() ? target.view(-1) : at::empty({target.numel()}, dtype);
    drawer.draw(flat, plan.held[slot]);
    if (!target.is_contiguous()) target.copy_(flat.view(target.sizes()));
  }
  drawer.finish(generator);
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
  agree_on_generator(mesh, stack);
  if (!shards.empty()) {
    auto generator = generator_of(mesh, stack);
    if (shards[0].is_meta()) {
      draw_without_data(plan, stack, shards[0]);
    } else if (plan.use.unit && generator.device().is_cpu()) {
      draw_own(plan, stack, shards, *generator.get<at::CPUGeneratorImpl>());
    } else {
      draw_whole(plan, stack, shards, *body.layout);
    }
  }
  body.written();
  stack = {self};
}

// Whether elements share memory: the plain op refuses that, or goes through it in an order of its own.
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

Way draw_along(const c10::OperatorHandle& op, const CutCall& c) {
  auto& self = c.input(0);
  if (!c.is_distributed(0) || self.dim() == 0 || c.has_partial(0)) return {};
  auto order = memory_order(self);
  if (overlaps(self, order)) return {};
  auto plan = std::make_shared<DrawPlan>(DrawPlan{op, self, std::move(order), true, {}, {}, {}});
  if (op.operator_name().name == "aten::normal_") plan->contiguous = at::geometry_is_contiguous(self.sizes, self.strides);
  bool small = c10::multiply_integers(self.sizes) < kSmall;
  if (!small && c.now[0]->mesh().device_type() == at::kCPU) {
    Stack arguments(c.call.args.begin(), c.call.args.end());
    plan->use = use_of(op, real_arguments(*plan, arguments), c10::toRealValueType(self.dtype), plan->contiguous);
    find_runs(*plan, *c.now[0]);
  }
  return [plan](Stack& stack) { draw(*plan, stack); };
}

}  // namespace

void add_draws(RuleTable& t) {
  for (std::string name : {"uniform_", "normal_", "log_normal_", "cauchy_", "geometric_", "exponential_", "bernoulli_.float", "random_",
                           "random_.from", "random_.to"}) {
    auto dot = name.find('.');
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                             dot == name.npos ? "" : name.substr(dot + 1).c_str());
    t.along("aten::" + name, [op](const CutCall& c) { return draw_along(op, c); });
  }
}

}  // namespace intarsia
