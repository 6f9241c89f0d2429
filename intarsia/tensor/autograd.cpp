#include "intarsia/tensor/autograd.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/local_shapes.h"
#include "intarsia/tensor/rehearsal.h"
#include "intarsia/tensor/strides.h"
#include "intarsia/tensor/to_mesh.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Layouts live forever, so a context can hold one as a number.
c10::IValue saved(const Layout* layout) { return reinterpret_cast<int64_t>(layout); }
const Layout* layout_from(const c10::IValue& value) { return reinterpret_cast<const Layout*>(value.toInt()); }

const Layout* settled(const Layout* layout) { return layout->with(settled(layout->placements())); }

// Contiguous shards that share no memory with the given ones, slot by slot.
Shards own_memory(const Shards& shards, const Shards& given) {
  auto shares = [&](size_t slot) { return shards[slot].is_alias_of(given[slot]); };
  auto same = [&](size_t i, size_t j) { return shares(i) == shares(j) && are_twins(shards[i], shards[j]); };
  auto first = first_alike(shards.size(), [&](size_t i) { return twin_hash(shards[i]); }, same);
  return made_once(first, shards, [&](size_t slot) {
    return shares(slot) ? shards[slot].clone(at::MemoryFormat::Contiguous) : shards[slot].contiguous();
  });
}

// The shards and the layout where a move begins: the tensor's own, or, if it reduces a pending value that has been
// reduced before, those of that result.
std::pair<const Layout*, Shards> start_of_move(const at::Tensor& tensor, const Layout* to) {
  auto& from = body_of(tensor);
  bool settles = from.layout->has_partial() && !to->has_partial();
  auto known = settles ? from.known_settled() : std::nullopt;
  return known ? std::pair(known->layout, known->shards) : std::pair(from.layout, from.shards());
}

at::Tensor move(const at::Tensor& tensor, const Layout* to, bool async_op) {
  auto& from = body_of(tensor);
  auto sizes = tensor.sizes();
  if (from.layout->mesh() != to->mesh()) return moved_to_meshes({tensor}, {to})[0];
  if (from.layout == to && !async_op) return wrap(shared_body_of(tensor), sizes, tensor.strides(), tensor.dtype());
  auto [begin, shards] = start_of_move(tensor, to);
  auto steps = plan(begin, to, sizes, c10::elementSize(tensor.scalar_type()));
  auto strides = c10::contiguous_strides(sizes);  // see Note [Strides of the whole]
  calls_on(to->mesh()).add(CauseScope::op(), from.layout, hash_of_form(*to, sizes), from.origin);
  OriginScope origin(from.origin);
  if (!async_op) {
    auto result = own_memory(run(steps, shards, sizes), shards);  // the caller may write to it
    auto moved = wrap(std::move(result), to, sizes, strides, tensor.dtype());
    body_of(moved).origin = from.origin;
    return moved;
  }
  auto body = c10::make_intrusive<DTensorBody>(Shards(), to);
  body->origin = from.origin;
  auto finish = run_async(steps, shards, sizes);
  auto result = wrap(body, sizes, strides, tensor.dtype());
  body->arrive_later([finish] { return made_once(finish(), [](auto& shard) { return shard.contiguous(); }); });
  return result;
}

at::Tensor local_value(const Shards& shards, const DeviceMesh& mesh) {
  TORCH_CHECK(!shards.empty(), "[to_local] this process takes no part in ", mesh.text(),
              ", so it holds no shard. Call it only on ranks of the mesh.");
  bool rehearses = is_rehearsing() && shards[0].is_meta();  // see Note [Tensors without data]
  return shards.size() == 1 && !rehearses ? shards[0].alias() : per_rank(shards);
}

// Makes a distributed gradient whose shards are a local gradient.
at::Tensor distributed_grad(const at::Tensor& grad, const Layout* layout, at::IntArrayRef sizes, const char* where) {
  auto& slots = layout->mesh().slots();
  Shards shards;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    auto value = value_at(grad, slot);
    auto shape = local_shape(*layout, sizes, slots[slot].coordinate);
    TORCH_CHECK_VALUE(value.sizes() == at::IntArrayRef(shape), "[", where, "] the gradient on rank ", slots[slot].rank,
                      " has shape ", value.sizes(), ", but ", str(*layout), " needs ", at::IntArrayRef(shape),
                      ". Pass grad_placements that fit.");
    shards.push_back(value.contiguous());
  }
  // One plain gradient for all simulated ranks becomes a separate one for each.
  if (slots.size() > 1 && !is_per_rank(grad)) shards = made_once(shards, [](auto& value) { return value.clone(); });
  auto strides = c10::contiguous_strides(sizes);
  return wrap(std::move(shards), layout, sizes, strides, grad.dtype());
}

void check_grad(const at::Tensor& grad, const char* where) {
  TORCH_CHECK_TYPE(is_dtensor(grad), "[", where, "] its gradient is a plain tensor of shape ", grad.sizes(),
                   ". Pass a distributed gradient to backward.");
}

// The layout of the gradient of a move: that of the tensor that was moved. Its pending reductions are not needed, but a
// gradient that arrives with the same ones may keep them.
const Layout* way_back(const Layout* from, const Layout* grad) {
  auto placements = settled(from->placements());
  if (grad->mesh() != from->mesh()) return from->with(placements);
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    auto& now = grad->placements()[axis];
    if (is_partial(now) && now == from->placements()[axis]) placements[axis] = now;
  }
  return from->with(placements);
}

// Node for the gradient of a move between meshes; its own gradient is that move.
struct GradientToMesh : torch::autograd::Function<GradientToMesh> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& grad, int64_t to) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["from"] = saved(body_of(grad).layout);
    return gradient_to_mesh(grad, layout_from(to));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}};
    check_grad(grads[0], "redistribute");
    return {redistribute_with_grad(grads[0], settled(layout_from(ctx->saved_data["from"])), false), {}};
  }
};

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, int64_t to, bool async_op) {
    ctx->set_materialize_grads(false);  // zeros would be a plain tensor
    ctx->saved_data["from"] = saved(body_of(tensor).layout);
    return move(tensor, layout_from(to), async_op);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}};
    check_grad(grads[0], "redistribute");
    CauseScope cause("redistribute backward", false);
    auto* from = layout_from(ctx->saved_data["from"]);
    auto* target = way_back(from, body_of(grads[0]).layout);
    if (body_of(grads[0]).layout->mesh() != from->mesh())
      return {GradientToMesh::apply(grads[0], saved(target).toInt()), {}, {}};
    return {redistribute_with_grad(grads[0], target, false), {}, {}};
  }
};

struct ToLocal : torch::autograd::Function<ToLocal> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, int64_t grad_layout, bool whole) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["grad_layout"] = grad_layout;
    ctx->saved_data["sizes"] = tensor.sizes().vec();
    auto& body = body_of(tensor);
    auto& shards = whole ? body.shards() : body.hand_out();
    auto& mesh = body.layout->mesh();
    if (whole && !shards.empty() && mesh.group_count() == 1) return shards[0].alias();
    return local_value(shards, mesh);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}};
    auto sizes = ctx->saved_data["sizes"].toIntVector();
    return {distributed_grad(grads[0], layout_from(ctx->saved_data["grad_layout"]), sizes, "to_local"), {}, {}};
  }
};

struct FromLocal : torch::autograd::Function<FromLocal> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, int64_t layout_value, at::IntArrayRef shape,
                            at::IntArrayRef stride) {
    auto* layout = layout_from(layout_value);
    ctx->set_materialize_grads(false);
    ctx->saved_data["layout"] = layout_value;
    auto slots = layout->mesh().slots().size();
    Shards shards;
    for (size_t slot = 0; slot < slots; ++slot) shards.push_back(value_at(local, slot));
    // A plain tensor given to many simulated ranks is copied for each.
    bool is_copied = slots > 1 && !is_per_rank(local);
    if (is_copied) shards = made_once(shards, [](auto& value) { return value.clone(); });
    if (!is_copied)
      std::transform(shards.begin(), shards.end(), shards.begin(), [](auto& value) { return value.alias(); });
    auto strides = stride.vec();
    fit_strides(shards, shape, strides);
    auto body = c10::make_intrusive<DTensorBody>(std::move(shards), layout);
    body->origin = calls_on(layout->mesh()).add_new("from_local", layout, hash_of_form(*layout, shape));
    return wrap(std::move(body), shape, strides, local.dtype());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}};
    check_grad(grads[0], "from_local");
    auto* layout = layout_from(ctx->saved_data["layout"]);
    CauseScope cause("from_local backward", false);
    auto grad = redistribute_with_grad(grads[0], settled(layout), false);
    for (size_t axis = 0; axis < layout->placements().size(); ++axis) {
      auto& placement = layout->placements()[axis];
      if (!is_partial(placement) || pending_op(placement) == ReduceOp::sum) continue;
      TORCH_CHECK_NOT_IMPLEMENTED(pending_op(placement) == ReduceOp::avg, "[from_local] has no gradient for ",
                                  str(layout->placements()), ". Use Partial(sum) or Partial(avg), or detach.");
      grad = at::div(grad, layout->mesh().size(axis));  // each rank's value has the weight 1/n
    }
    return {to_local_with_grad(grad, settled(layout)), {}, {}, {}};
  }
};

}  // namespace

at::Tensor redistribute_with_grad(const at::Tensor& tensor, const Layout* to, bool async_op) {
  return Redistribute::apply(tensor, saved(to).toInt(), async_op);
}

at::Tensor to_local_with_grad(const at::Tensor& tensor, const Layout* grad_layout) {
  return ToLocal::apply(tensor, saved(grad_layout).toInt(), false);
}

at::Tensor whole_with_grad(const at::Tensor& replicated, const Layout* grad_layout) {
  return ToLocal::apply(replicated, saved(grad_layout).toInt(), true);
}

at::Tensor from_local_with_grad(const at::Tensor& local, const Layout* layout, const FromLocalOptions& options) {
  auto [input, shape, stride] = fit_local_shapes(local, layout, options);
  return FromLocal::apply(input, saved(layout).toInt(), shape, stride);
}

}  // namespace intarsia
