#include "intarsia/data_parallel/fully_shard/param_use.h"

#include <algorithm>

namespace intarsia {
namespace {

constexpr ParamUseRow kRows[] = {
    {"writes to a parameter: p.add_, p.copy_", &ParamUse::writes, ParamValue::shards},
    {"meets a plain tensor: linear(x, w)", &ParamUse::meets_plain, ParamValue::whole},
    {"in the forward of its module", &ParamUse::in_forward, ParamValue::whole},
    {"a formula of backward", &ParamUse::in_formula, ParamValue::whole},
    {"recorded by autograd", &ParamUse::is_recorded, ParamValue::whole},
    {"meets distributed tensors on the mesh of the shards: grad.add(p)", &ParamUse::meets_shards, ParamValue::shards},
    {"meets distributed tensors on other meshes", &ParamUse::meets_dtensor, ParamValue::whole},
    {"meets an unsharded parameter, or is one after unshard()", &ParamUse::meets_whole, ParamValue::whole},
    {"makes a tensor like a parameter, or maps lists: zeros_like(p), _foreach_norm", &ParamUse::keeps_shards,
     ParamValue::shards},
    {"reads parameters alone: w.norm(), b.mm(a)", nullptr, ParamValue::whole},
};

}  // namespace

c10::ArrayRef<ParamUseRow> param_use_rows() { return kRows; }

const ParamUseRow& row_of(const ParamUse& use) {
  return *std::find_if(std::begin(kRows), std::end(kRows),
                       [&](auto& row) { return !row.condition || use.*row.condition; });
}

}  // namespace intarsia
