// Fourier transforms along some dims: the others may be cut.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Dtypes = std::vector<c10::ScalarType>;

// A real signal keeps half of the last transformed dim, which comes back by name.
std::vector<std::vector<int64_t>> transformed(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  auto dims = call.dims_arg("dim", call.inputs[0].dim());
  if (dims.empty()) return {};
  if (call.bool_arg("onesided", false)) shape[dims.back()] = shape[dims.back()] / 2 + 1;
  if (call.arg_index("last_dim_size") >= 0) shape[dims.back()] = call.int_arg("last_dim_size", 0);
  return {shape};
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
  return unless_empty(std::move(rule).with_shapes(transformed));
}

}  // namespace

void add_transforms(RuleTable& t) {
  t.add({"aten::_fft_r2c", "aten::_fft_c2c"}, fourier().with_dtypes(complex_of));
  t.add("aten::_fft_c2r", fourier().with_dtypes(real_of));
}

}  // namespace intarsia
