// Fourier transforms along some dims: the others may be sharded.

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Dtypes = std::vector<c10::ScalarType>;

// A real signal keeps half of the last transformed dim; the reverse transform gets its size as an argument.
std::vector<std::vector<int64_t>> transformed(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  auto dims = call.dims_arg("dim", call.inputs[0].dim());
  if (dims.empty()) return {};
  if (call.bool_arg("onesided", false)) shape[dims.back()] = shape[dims.back()] / 2 + 1;
  if (call.arg_index("last_dim_size") >= 0) shape[dims.back()] = call.int_arg("last_dim_size", 0);
  return {shape};
}

// MKL moves the transformed dims behind the others: these in the order of their strides, and of the transformed ones
// the last one named comes last (a complex signal has no special dim).
std::vector<int64_t> order_of_transform(const OpCall& call) {
  auto& input = call.inputs[0];
  auto dims = call.dims_arg("dim", input.dim());
  std::vector<int64_t> order(input.dim());
  std::iota(order.begin(), order.end(), 0);
  if (!at::hasMKL()) return order;
  auto strides = at::infer_dense_strides(input.sizes, input.strides);
  auto by_stride = [&](auto a, auto b) { return strides[a] > strides[b]; };
  bool named = call.arg_index("onesided") >= 0 || call.arg_index("last_dim_size") >= 0;
  std::stable_sort(dims.begin(), dims.end() - (named ? 1 : 0), by_stride);
  std::erase_if(order, [&](auto d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); });
  std::stable_sort(order.begin(), order.end(), by_stride);
  order.insert(order.end(), dims.begin(), dims.end());
  return order;
}

Dtypes complex_of(const OpCall& call) { return {c10::toComplexType(call.inputs[0].dtype)}; }
Dtypes real_of(const OpCall& call) { return {c10::toRealValueType(call.inputs[0].dtype)}; }

// A Fourier transform is linear, and independent of the dims that it does not name.
Rule fourier() {
  Rule rule = rows("fourier", [](const OpCall& call) {
    Rows rows = {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}};
    auto dims = call.dims_arg("dim", call.inputs[0].dim());
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) rows.push_back({{S(d)}, {S(d)}});
    }
    return rows;
  });
  rule.aligned = true;
  return unless_empty(std::move(rule).with_shapes(transformed).ordered(order_of_transform));
}

}  // namespace

void add_transforms(RuleTable& t) {
  t.add({"aten::_fft_r2c", "aten::_fft_c2c"}, fourier().with_dtypes(complex_of));
  t.add("aten::_fft_c2r", fourier().with_dtypes(real_of));
}

}  // namespace intarsia
