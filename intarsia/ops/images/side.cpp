#include "intarsia/ops/images/side.h"

#include <ATen/ATen.h>

namespace intarsia {
namespace {

std::vector<int64_t> padding_amounts(const at::Tensor& tensor, const Sides& sides, size_t slot, int64_t sign) {
  std::vector<int64_t> pads(2 * tensor.dim(), 0);
  for (auto& side : sides) {
    auto clipped = clip(side.wanted(slot), side.size);
    pads[2 * (tensor.dim() - 1 - side.dim)] = sign * clipped.before;
    pads[2 * (tensor.dim() - 1 - side.dim) + 1] = sign * clipped.after;
  }
  return pads;
}

bool any(const std::vector<int64_t>& pads) {
  return std::any_of(pads.begin(), pads.end(), [](auto pad) { return pad != 0; });
}

}  // namespace

Side make_side(int64_t dim, const Window& window, const Layout& input_layout, int64_t input_size,
               const Layout& output_layout, int64_t output_size) {
  auto axes = axes_cutting(input_layout, dim);
  Side side{dim,
            input_size,
            window,
            Axis::of(input_layout.mesh(), axes),
            held_along(output_layout, dim, output_size),
            {dim, held_along(input_layout, dim, input_size), {}}};
  for (auto& out : side.outputs) side.plan.needed.push_back(clip(read_by(window, out), input_size).inside);
  return side;
}

Shards fetch(Shards shards, const Sides& sides) {
  for (auto& side : sides) shards = fetch_rows(shards, side.plan, side.axis);
  return shards;
}

Shards give_back(Shards fetched, const Sides& sides) {
  for (size_t i = sides.size(); i-- > 0;) fetched = return_rows(fetched, sides[i].plan, sides[i].axis);
  return fetched;
}

at::Tensor pad_to_wanted(const at::Tensor& fetched, const Sides& sides, size_t slot, const c10::Scalar& value) {
  auto pads = padding_amounts(fetched, sides, slot, 1);
  return any(pads) ? at::constant_pad_nd(fetched, pads, value) : fetched;
}

at::Tensor crop_to_needed(const at::Tensor& wanted, const Sides& sides, size_t slot) {
  auto pads = padding_amounts(wanted, sides, slot, -1);
  return any(pads) ? at::constant_pad_nd(wanted, pads) : wanted;
}

}  // namespace intarsia
