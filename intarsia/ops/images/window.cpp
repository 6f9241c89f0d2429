#include "intarsia/ops/images/window.h"

namespace intarsia {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

Interval read_by(const Window& w, Interval out) {
  if (out.size() <= 0) return {0, 0};
  if (!w.transposed) return {out.begin * w.stride - w.padding, (out.end - 1) * w.stride - w.padding + w.reach()};
  auto first = -floor_div(-(out.begin + w.padding - w.reach() + 1), w.stride);  // rounded up
  return {first, std::max(first, floor_div(out.end - 1 + w.padding, w.stride) + 1)};
}

Interval written_by(const Window& w, Interval in) {
  if (in.size() <= 0) return {0, 0};
  return {in.begin * w.stride - w.padding, (in.end - 1) * w.stride - w.padding + w.reach()};
}

Clipped clip(Interval run, int64_t size) {
  auto inside = overlap(run, {0, size});
  if (inside.size() == 0) return {{0, 0}, run.size(), 0};
  return {inside, inside.begin - run.begin, run.end - inside.end};
}

}  // namespace intarsia
