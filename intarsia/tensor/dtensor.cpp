#include "intarsia/tensor/dtensor.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/comm/trace.h"
#include "intarsia/core/foreign.h"
#include "intarsia/core/pending.h"
#include "intarsia/redistribute/run/exchange.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/redistribute/share.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/start.h"
#include "intarsia/tensor/autograd.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

const DTensorBody& checked_body(const at::Tensor& tensor, const char* where) {
  TORCH_CHECK_TYPE(is_dtensor(tensor), "[", where, "] needs a distributed tensor, but got a plain one of shape ",
                   tensor.defined() ? c10::str(tensor.sizes()) : "(undefined)", ". Make one with distribute_tensor.");
  return body_of(tensor);
}

const Layout* checked_layout(const DeviceMesh& mesh, const Placements& placements, int64_t ndim, const char* where) {
  start();
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh.ndim(), "[", where, "] ", placements.size(),
                    placements.size() == 1 ? " placement" : " placements", " given, but ", mesh.text(), " has ",
                    mesh.ndim(), mesh.ndim() == 1 ? " axis" : " axes", ". Give one placement per axis.");
  TORCH_CHECK_VALUE(have_one_value(placements), "[", where, "] ", str(placements),
                    " has no one value: it depends on which ",
                    "reduction is done first. Use one kind of Partial on all axes, or sums and averages.");
  return Layout::get(mesh, normalized(placements, ndim, where));
}

void check_device(const at::Tensor& tensor, const DeviceMesh& mesh, const char* where) {
  TORCH_CHECK_VALUE(tensor.device().type() == mesh.device_type() || tensor.is_meta(), "[", where, "] the tensor is on ",
                    tensor.device(), ", but ", mesh.text(), " is of ", c10::DeviceTypeName(mesh.device_type(), true),
                    ". Move the tensor there first.");
}

// The form of a tensor as a text, to compare it between ranks.
std::string form_text(const at::Tensor& tensor, bool requires_grad) {
  return c10::str(tensor.scalar_type(), tensor.sizes(), requires_grad ? " that requires grad" : "");
}

// A tensor with another order of dims than the usual, such as a transposed one, keeps it.
std::vector<int64_t> strides_like(const at::Tensor& data) {
  if (!data.is_contiguous() && data.is_non_overlapping_and_dense()) return data.strides().vec();
  auto strides = c10::contiguous_strides(data.sizes());
  return {strides.begin(), strides.end()};
}

void check_same_forms(const std::vector<std::string>& forms, const DeviceMesh& mesh) {
  if (std::all_of(forms.begin(), forms.end(), [&](auto& form) { return form == forms[0]; })) return;
  std::string text;
  for (size_t i = 0; i < forms.size(); ++i) {
    text += c10::str(i ? ", " : "", "rank ", Axis::whole(mesh).line().ranks[0][i], " ", forms[i]);
  }
  TORCH_CHECK_VALUE(false, "[distribute_tensor] the ranks of ", mesh.text(), " give different tensors: ", text,
                    ". Their values may differ, but not their shape, dtype and whether they require grad.");
}

// The position of the rank whose every coordinate is `source`, in the order of all ranks of the mesh.
int64_t place_of(int64_t source, const DeviceMesh& mesh) {
  int64_t place = 0;
  for (int64_t a = 0; a < mesh.ndim(); ++a) {
    TORCH_CHECK_VALUE(0 <= source && source < mesh.size(a), "[distribute_tensor] src_data_rank ", source,
                      " is not on axis \"", Axis::of(mesh, a).name(), "\" of ", mesh.text(), ". It must be below ",
                      mesh.size(a), ".");
    place = place * mesh.size(a) + source;
  }
  return place;
}

// For simulated ranks, whose tensors are all in this process.
std::vector<int64_t> compared_strides(const Shards& tensors, bool requires_grad, const DeviceMesh& mesh,
                                      int64_t place) {
  std::vector<std::string> forms;
  for (auto& tensor : tensors) {
    bool is_first = !forms.empty() && tensor.is_same(tensors[0]);
    forms.push_back(is_first ? forms[0] : form_text(tensor, requires_grad));
  }
  check_same_forms(forms, mesh);
  return strides_like(tensors[place]);
}

// Ranks that sharded tensors of different shapes would each see another whole: they compare before any data moves.
// Returns the strides of the source rank's tensor, whatever the strides of the others.
std::vector<int64_t> agreed_strides(const Shards& tensors, bool requires_grad, const DeviceMesh& mesh, int64_t source) {
  auto place = place_of(source, mesh);
  auto& everyone = Axis::whole(mesh);
  if (mesh.world().simulated()) return compared_strides(tensors, requires_grad, mesh, place);
  auto mine = form_text(tensors[0], requires_grad);
  auto strides = strides_like(tensors[0]);
  if (everyone.size() == 1) return strides;
  auto number = static_cast<int64_t>(std::hash<std::string>()(mine + c10::str(strides)) >> 1);
  bool unlike = number != exchange_max(everyone, number);
  if (!exchange_max(everyone, unlike)) return strides;
  check_same_forms(exchange_texts(everyone, mine), mesh);
  auto agreed = at::tensor(strides, at::kLong);
  everyone.broadcast({agreed}, place);
  return {agreed.data_ptr<int64_t>(), agreed.data_ptr<int64_t>() + agreed.numel()};
}

// Axis by axis, the rank at `source` scatters its tensor; after the last axis every rank has its part of the tensor of
// the rank whose every coordinate is `source`.
Shards deal(Shards tensors, const Layout& layout, int64_t source) {
  auto& mesh = layout.mesh();
  for (int64_t a = 0; a < mesh.ndim(); ++a) {
    auto& axis = Axis::of(mesh, a);
    auto& placement = layout.placements()[a];
    if (cut_dim(placement) < 0) {
      auto gives = [&](size_t slot) { return axis.position(slot) == source; };
      auto first = first_alike(
          tensors.size(), [&](size_t i) { return twin_hash(tensors[i]) + gives(i); },
          [&](size_t i, size_t j) { return gives(i) == gives(j) && are_twins(tensors[i], tensors[j]); });
      tensors = made_once(first, tensors, [&](size_t slot) {
        auto& t = tensors[slot];
        auto fresh = at::empty_like(t, at::MemoryFormat::Contiguous);
        if (gives(slot)) fresh.copy_(t);
        return tensors.size() > 1 ? shareable(fresh) : fresh;
      });
      axis.broadcast(tensors, source);
      continue;
    }
    std::vector<Trade> trades;
    for (size_t slot = 0; slot < tensors.size(); ++slot) {
      auto& t = tensors[slot];
      auto me = axis.position(slot), dim = cut_dim(placement);
      auto& trade = trades.emplace_back(axis, t.options());
      for (int64_t j = 0; me == source && j < axis.size(); ++j) trade.give(j, part_of(t, placement, axis.size(), j));
      auto extent = extent_of(cut_once({{0, t.size(dim)}}, placement, axis.size(), me));
      trade.get(source, with_size(t.sizes(), dim, extent));
    }
    auto dealt = exchange(axis, std::move(trades), false, Collective::scatter);
    for (size_t slot = 0; slot < tensors.size(); ++slot) tensors[slot] = dealt.pieces(slot)[0];
  }
  return tensors;
}

template <class Make>
at::Tensor make_shards(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements,
                       at::TensorOptions options, const char* where, Make make) {
  at::detail::check_size_nonnegative(size);
  auto* layout = checked_layout(mesh, placements, size.size(), where);
  bool requires_grad = options.requires_grad();
  options = options.requires_grad(false).device(options.has_device() ? options.device() : mesh.device_type());
  auto& slots = mesh.slots();
  auto same = [&](size_t i, size_t j) {  // if they differ, everything is replicated
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      bool differ = slots[i].coordinate[axis] != slots[j].coordinate[axis];
      if (differ && !is_replicate(layout->placements()[axis])) return false;
    }
    return true;
  };
  auto hash = [&](size_t i) {
    uint64_t sum = 0;
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      sum = 31 * sum + (is_replicate(layout->placements()[axis]) ? 0 : slots[i].coordinate[axis]);
    }
    return sum;
  };
  auto shards = made_once(first_alike(slots.size(), hash, same), Shards(slots.size()), [&](size_t slot) {
    return make(local_shape(*layout, size, slots[slot].coordinate), options, slots[slot]);
  });
  auto dtype = options.dtype();
  auto result = wrap(std::move(shards), layout, size, c10::contiguous_strides(size), dtype);
  body_of(result).origin = calls_on(mesh).add_new(where, layout, hash_of_form(*layout, size));
  return requires_grad ? result.set_requires_grad(true) : result;
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                             std::optional<int64_t> src_data_rank) {
  TORCH_CHECK_VALUE(tensor.defined(), "[distribute_tensor] the tensor is undefined. Give it a value first.");
  check_no_wrapper(tensor, "distribute_tensor");
  auto* layout = checked_layout(mesh, placements, tensor.dim(), "distribute_tensor");
  if (is_dtensor(tensor)) {
    TORCH_CHECK_VALUE(mesh_of(tensor) == mesh, "[distribute_tensor] the tensor is already distributed, on ",
                      mesh_of(tensor).text(), ", not on ", mesh.text(), ". Call full_tensor first.");
    TORCH_CHECK_VALUE(placements_of(tensor) == layout->placements(),
                      "[distribute_tensor] the tensor is already distributed as ", str(placements_of(tensor)),
                      ", not as ", str(layout->placements()), ". Use redistribute.");
    return tensor;
  }
  check_device(tensor, mesh, "distribute_tensor");
  if (layout->has_partial()) {
    auto dealt = distribute_tensor(tensor.detach(), mesh, settled(layout->placements()), src_data_rank);
    auto result = wrap(shards_in(dealt, layout), layout, dealt.sizes(), dealt.strides(), dealt.dtype());
    body_of(result).origin = body_of(dealt).origin;
    return tensor.requires_grad() ? result.set_requires_grad(true) : result;
  }
  auto data = tensor.detach();
  at::NoGradGuard no_grad;
  CauseScope cause("distribute_tensor", false);
  // Without a source nothing is sent, and a rank may do it alone.
  auto& calls = calls_on(mesh);
  auto origin = src_data_rank ? calls.add_new("distribute_tensor", layout, hash_of_form(*layout, {}))
                              : calls.add("distribute_tensor", layout, hash_of_form(*layout, tensor.sizes()), {});
  OriginScope moves(origin);
  Shards shards;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) shards.push_back(value_at(data, slot));
  auto strides = strides_like(value_at(data, 0));
  if (src_data_rank) {
    if (!shards.empty()) strides = agreed_strides(shards, tensor.requires_grad(), mesh, *src_data_rank);
    shards = deal(std::move(shards), *layout, *src_data_rank);
  } else {
    for (size_t slot = 0; slot < shards.size(); ++slot) {
      shards[slot] = shard_of(shards[slot], *layout, mesh.slots()[slot].coordinate);
    }
    shards = made_once(shards, [](auto& shard) { return shard.clone(at::MemoryFormat::Contiguous); });
  }
  auto result = wrap(std::move(shards), layout, data.sizes(), strides, data.dtype());
  body_of(result).origin = origin;
  return tensor.requires_grad() ? result.set_requires_grad(true) : result;
}

at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options) {
  TORCH_CHECK_VALUE(local.defined(), "[from_local] the tensor is undefined. Give it a value first.");
  check_no_wrapper(local, "from_local");
  TORCH_CHECK_TYPE(!is_dtensor(local), "[from_local] the tensor is already distributed, as ",
                   is_dtensor(local) ? str(layout_of(local)) : "", ". Use redistribute.");
  check_device(local, mesh, "from_local");
  auto* layout = checked_layout(mesh, placements, local.dim(), "from_local");
  return from_local_with_grad(local, layout, options);
}

at::Tensor to_local(const at::Tensor& tensor, const std::optional<Placements>& grad_placements) {
  auto& body = checked_body(tensor, "to_local");
  auto* grad_layout = body.layout->with(settled(body.layout->placements()));
  if (grad_placements) grad_layout = checked_layout(body.layout->mesh(), *grad_placements, tensor.dim(), "to_local");
  return to_local_with_grad(tensor, grad_layout);
}

at::Tensor full_tensor(const at::Tensor& tensor, const std::optional<Placements>& grad_placements) {
  auto& mesh = checked_body(tensor, "full_tensor").layout->mesh();
  CauseScope cause("full_tensor", false);
  auto whole = redistribute_with_grad(tensor, Layout::replicated(mesh), false);
  auto* grad_layout = Layout::replicated(mesh);
  if (grad_placements) grad_layout = checked_layout(mesh, *grad_placements, tensor.dim(), "full_tensor");
  auto result = whole_with_grad(whole, grad_layout);
  // The caller may write to the result, and must not reach one of the replicas.
  return layout_of(tensor).is_replicated() ? result.clone() : result;
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements, bool async_op) {
  auto& body = checked_body(tensor, "redistribute");
  auto* layout = checked_layout(body.layout->mesh(), placements, tensor.dim(), "redistribute");
  CauseScope cause("redistribute", false);
  return redistribute_with_grad(tensor, layout, async_op);
}

at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements) {
  checked_body(tensor, "redistribute");
  auto* layout = checked_layout(mesh, placements, tensor.dim(), "redistribute");
  CauseScope cause("redistribute", false);
  return redistribute_with_grad(tensor, layout, false);
}

const Layout& layout_of(const at::Tensor& tensor) { return *checked_body(tensor, "layout_of").layout; }
const DeviceMesh& mesh_of(const at::Tensor& tensor) { return checked_body(tensor, "mesh_of").layout->mesh(); }

const Placements& placements_of(const at::Tensor& tensor) {
  return checked_body(tensor, "placements_of").layout->placements();
}

Shards shards_of(at::Tensor&& tensor) { return shards_of(static_cast<const at::Tensor&>(tensor)); }

const Shards& shards_of(const at::Tensor& tensor) {
  checked_body(tensor, "shards_of");
  return body_of(tensor).hand_out();
}

// The local tensors behind any tensor.
static Shards locals_of(const at::Tensor& tensor) {
  if (is_dtensor(tensor)) return body_of(tensor).last_known_shards();
  return is_per_rank(tensor) ? values_of(tensor) : Shards{tensor};
}

bool is_alias_of(const at::Tensor& a, const at::Tensor& b) {
  if (is_dtensor(a) && is_dtensor(b) && &body_of(a).root() == &body_of(b).root()) return true;
  for (auto& one : locals_of(a)) {
    for (auto& other : locals_of(b)) {
      if (one.is_alias_of(other)) return true;
    }
  }
  return false;
}

at::Tensor zeros(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options) {
  if (std::any_of(size.begin(), size.end(), [](auto n) { return n < 0; })) at::zeros(size);  // raises its own error
  return full(size, 0, mesh, placements, options.has_dtype() ? options : options.dtype(at::get_default_dtype()));
}

at::Tensor ones(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements, at::TensorOptions options) {
  return full(size, 1, mesh, placements, options.has_dtype() ? options : options.dtype(at::get_default_dtype()));
}

at::Tensor empty(at::IntArrayRef size, const DeviceMesh& mesh, const Placements& placements,
                 at::TensorOptions options) {
  return make_shards(size, mesh, placements, options, "empty",
                     [](at::IntArrayRef shape, auto options, auto&) { return at::empty(shape, options); });
}

at::Tensor full(at::IntArrayRef size, const at::Scalar& value, const DeviceMesh& mesh, const Placements& placements,
                at::TensorOptions options) {
  if (!options.has_dtype() && value.isIntegral(false)) options = options.dtype(at::kLong);
  if (!options.has_dtype() && value.isBoolean()) options = options.dtype(at::kBool);
  auto* layout = checked_layout(mesh, placements, size.size(), "full");
  return make_shards(size, mesh, placements, options, "full", [&](at::IntArrayRef shape, auto options, auto& slot) {
    // Where the reduction is pending: see Note [A value as a pending reduction].
    return at::full(shape, share_of(value, *layout, slot.coordinate), options);
  });
}

}  // namespace intarsia
