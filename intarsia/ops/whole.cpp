// Ops that by their nature need their whole tensor: they run on gathered tensors, without a warning.

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Counts in given bins add up. Gathering the values once is better than a pending sum of counts, so that row is for a
// guide.
Rule histogram() {
  auto rule = on_whole_tensors();
  rule.rows = [](const OpCall& call) {
    Rows rows;
    if (call.arg("min").toScalar().toDouble() >= call.arg("max").toScalar().toDouble()) return rows;
    for (int64_t dim = 0; dim < call.inputs[0].dim(); ++dim) rows.push_back({{S(dim)}, {P_sum}, /*if_advised=*/true});
    return rows;
  };
  return rule;
}

}  // namespace

void add_whole(RuleTable& t) {
  t.add({"aten::_local_scalar_dense", "aten::equal", "aten::allclose", "aten::is_nonzero"}, on_whole_tensors());
  // The median and positions of elements: questions about all of the values at once.
  t.add({"aten::median", "aten::nanmedian", "aten::masked_select", "aten::nonzero", "aten::bincount",
         "aten::histogram.bins_tensor", "aten::histogram.bin_ct", "aten::_unique", "aten::_unique2", "aten::unique_dim",
         "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::_pdist_forward", "aten::_pdist_backward",
         "aten::masked_scatter", "aten::masked_scatter_backward", "aten::put", "aten::repeat_interleave.Tensor",
         "aten::_linalg_check_errors"},
        on_whole_tensors());
  t.add("aten::nonzero_static",
        on_whole_tensors()
            .with_shapes([](const OpCall& call) {
              return std::vector<std::vector<int64_t>>{{call.int_arg("size", 0), call.inputs[0].dim()}};
            })
            .with_dtypes([](const OpCall&) { return std::vector<c10::ScalarType>{at::kLong}; })
            .contiguous());
  t.add("aten::histc", histogram());
  t.traits("aten::histc").steered_by = {"min", "max"};
}

}  // namespace intarsia
