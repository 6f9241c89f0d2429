// Circular padding: rows from the end of a dim are put before it, and rows from its beginning after it.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// For a sharded dim: one exchange sends every rank the rows of its share, around the end if necessary.
at::Tensor wrapped_around(const at::Tensor& x, int64_t dim, int64_t before, int64_t after) {
  auto size = x.size(dim);
  std::vector<Source> sources;
  for (int64_t j = -before; j < size + after; ++j) sources.push_back({0, (j + size) % size});
  return recut({x}, dim, sources);
}

// What a member of the line needs for the gradient of its rows: their positions in the padded dim, and those of their
// copies, one size before or after.
struct Folding {
  std::vector<int64_t> positions;  // its rows first
  std::vector<int64_t> rows;       // the local row of every copy
  int64_t own = 0;
};

std::vector<Folding> foldings(const Layout& layout, int64_t dim, int64_t size, int64_t before, int64_t after) {
  std::vector<Folding> all;
  for (auto& runs : held_by_members(layout, dim, size)) {
    auto& f = all.emplace_back();
    for (auto& run : runs) {
      for (auto i = run.begin; i < run.end; ++i) f.positions.push_back(before + i);
    }
    f.own = f.positions.size();
    for (int64_t row = 0; row < f.own; ++row) {
      for (auto at : {f.positions[row] - size, f.positions[row] + size}) {
        if (at >= 0 && at < before + size + after) f.positions.push_back(at), f.rows.push_back(row);
      }
    }
  }
  return all;
}

// What every share of a longer dim takes of the padded one: the list of its member. The dim is so long that every share
// has room for the longest list, and no shard is strided.
std::vector<Source> listed_positions(const Layout& layout, int64_t dim, const std::vector<Folding>& members) {
  size_t longest = 0;
  for (auto& f : members) longest = std::max(longest, f.positions.size());
  std::vector<Source> sources(longest * members.size());
  auto places = held_by_members(layout, dim, sources.size());
  for (size_t m = 0; m < members.size(); ++m) {
    size_t next = 0;
    auto& positions = members[m].positions;
    for (auto& run : places[m]) {
      for (auto p = run.begin; p < run.end && next < positions.size(); ++p) sources[p] = {0, positions[next++]};
    }
    TORCH_INTERNAL_ASSERT(next == positions.size());
  }
  return sources;
}

// Replaces strided shards of the dim by plain ones.
at::Tensor in_one_run(const at::Tensor& x, int64_t dim) {
  auto& layout = *body_of(x).layout;
  auto placements = layout.placements();
  for (auto& placement : placements) {
    if (cut_dim(placement) == dim) placement = Shard(dim);
  }
  auto* plain = layout.with(placements);
  return plain == &layout ? x : wrap(shards_in(x, plain), plain, x.sizes(), x.strides(), x.dtype());
}

// The adjoint: every row gets its own gradient and those of its copies. One exchange sends a member all of them.
at::Tensor folded_back(const at::Tensor& padded, int64_t dim, int64_t before, int64_t after) {
  auto grad = in_one_run(settle(padded), dim);
  auto& layout = *body_of(grad).layout;
  auto size = grad.size(dim) - before - after;
  auto members = foldings(layout, dim, size, before, after);
  auto gathered = recut({grad}, dim, listed_positions(layout, dim, members));
  auto& axis = Axis::of(layout.mesh(), axes_cutting(layout, dim));
  Shards sums;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    auto& f = members[axis.position(slot)];
    auto& shard = body_of(gathered).shards()[slot];
    auto sum = shard.narrow(dim, 0, f.own).clone(at::MemoryFormat::Contiguous);
    if (!f.rows.empty()) sum.index_add_(dim, at::tensor(f.rows, at::kLong), shard.narrow(dim, f.own, f.rows.size()));
    sums.push_back(sum);
  }
  auto shape = grad.sizes().vec();
  shape[dim] = size;
  return wrap(std::move(sums), &layout, shape, c10::contiguous_strides(shape), grad.dtype());
}

struct WrapAround : torch::autograd::Function<WrapAround> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim, int64_t before, int64_t after,
                            bool back) {
    ctx->saved_data["dim"] = dim, ctx->saved_data["before"] = before, ctx->saved_data["after"] = after;
    ctx->saved_data["back"] = back;
    at::AutoDispatchBelowADInplaceOrView guard;
    CauseScope cause("aten::_pad_circular", true);
    return (back ? folded_back : wrapped_around)(x, dim, before, after);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& saved = ctx->saved_data;
    return {
        apply(grads[0], saved["dim"].toInt(), saved["before"].toInt(), saved["after"].toInt(), !saved["back"].toBool()),
        {},
        {},
        {},
        {}};
  }
};

at::Tensor pad_circular(const at::Tensor& self, at::IntArrayRef pads) {
  // The plain op on a tensor without data: its own checks run.
  at::_pad_circular(at::empty(self.sizes(), self.options().device(at::kMeta)), pads);
  auto x = self;
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    auto dim = x.dim() - 1 - static_cast<int64_t>(i);
    auto before = pads[2 * i], after = pads[2 * i + 1];
    if (before < 0 || after < 0) {
      auto cropped = std::min<int64_t>(before, 0), end = std::min<int64_t>(after, 0);
      x = at::narrow(x, dim, -cropped, x.size(dim) + cropped + end);
    }
    before = std::max<int64_t>(before, 0), after = std::max<int64_t>(after, 0);
    if (!before && !after) continue;
    if (is_cut(x, {dim})) {
      x = WrapAround::apply(x, dim, before, after, false);
    } else {
      x = at::cat({at::narrow(x, dim, x.size(dim) - before, before), x, at::narrow(x, dim, 0, after)}, dim);
    }
  }
  return x.is_same(self) ? at::clone(self) : x;
}

// The plain op fills a tensor that it creates. Under a guide, that tensor is replicated.
at::Tensor pad_whole(const at::Tensor& self, at::IntArrayRef pads) {
  return pad_circular(is_dtensor(self) ? redistribute(self, Placements(mesh_of(self).ndim(), Replicate())) : self,
                      pads);
}

}  // namespace

void add_circular_pad(RuleTable& t) { t.gradient("aten::_pad_circular", &pad_circular, &pad_whole); }

}  // namespace intarsia
