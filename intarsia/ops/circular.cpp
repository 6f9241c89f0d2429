// Circular padding: rows of the far end of a dim are put before it, and rows of its beginning after it.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/layouts.h"
#include "intarsia/ops/recut.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The dim is cut: one exchange brings every rank the rows of its share, around the end where they lie there.
at::Tensor wrapped_around(const at::Tensor& x, int64_t dim, int64_t before, int64_t after) {
  auto size = x.size(dim);
  std::vector<Source> sources;
  for (int64_t j = -before; j < size + after; ++j) sources.push_back({0, (j + size) % size});
  return recut({x}, dim, sources);
}

// The adjoint: every row gets its own gradient and those of its copies.
at::Tensor folded_back(const at::Tensor& padded, int64_t dim, int64_t before, int64_t after) {
  auto grad = settle(padded);
  auto size = grad.size(dim) - before - after;
  at::Tensor sum;
  for (int64_t turn : {0, -1, 1}) {  // a row lies at before + i, and its copies one size before or after
    std::vector<Source> sources(size);
    bool any = false;
    for (int64_t i = 0; i < size; ++i) {
      auto at = before + i + turn * size;
      if (at < 0 || at >= grad.size(dim)) continue;
      sources[i] = {0, at};
      any = true;
    }
    if (!any) continue;
    auto part = recut({grad}, dim, sources);
    sum = sum.defined() ? at::add(sum, part) : part;
  }
  return sum;
}

struct WrapAround : torch::autograd::Function<WrapAround> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim, int64_t before, int64_t after, bool back) {
    ctx->saved_data["dim"] = dim, ctx->saved_data["before"] = before, ctx->saved_data["after"] = after;
    ctx->saved_data["back"] = back;
    at::AutoDispatchBelowADInplaceOrView guard;
    CauseScope cause("aten::_pad_circular", true);
    return (back ? folded_back : wrapped_around)(x, dim, before, after);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& saved = ctx->saved_data;
    return {apply(grads[0], saved["dim"].toInt(), saved["before"].toInt(), saved["after"].toInt(), !saved["back"].toBool()),
            {}, {}, {}, {}};
  }
};

at::Tensor pad_circular(const at::Tensor& self, at::IntArrayRef pads) {
  // The plain op on a tensor without data: its own checks speak.
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

}  // namespace

void add_circular_pad(RuleTable&) {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  static bool done = (library->impl("_pad_circular", pad_circular), true);
  (void)done;
}

}  // namespace intarsia
