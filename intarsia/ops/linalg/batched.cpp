#include "intarsia/ops/linalg/batched.h"

#include <algorithm>

#include <ATen/ExpandUtils.h>

namespace intarsia {

Rule batched() {
  return rows("batched", [](const OpCall& call) {
    Rows rows;
    auto& first = call.inputs[0];
    for (int64_t d = 0; d + 2 < first.dim(); ++d) {
      Row row;
      bool shared = true;
      for (auto& form : call.inputs) {
        shared = shared && (!form.defined || (form.dim() > d && form.sizes[d] == first.sizes[d]));
        row.in.push_back(form.defined ? S(d) : R);
      }
      for (auto& form : call.outputs) {
        bool has = form.defined && form.dim() > d && form.sizes[d] == first.sizes[d];
        row.out.push_back(has ? S(d) : R);
      }
      if (shared) rows.push_back(std::move(row));
    }
    return rows;
  });
}

bool are_matrices(const OpCall& call, std::initializer_list<size_t> inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&](size_t i) { return call.inputs[i].dim() >= 2; });
}

std::vector<int64_t> shared_batch(const OpCall& call, size_t a, size_t b) {
  auto batch_of = [&](size_t i) {
    return at::IntArrayRef(call.inputs[i].sizes).slice(0, call.inputs[i].sizes.size() - 2);
  };
  return at::infer_size(batch_of(a), batch_of(b));
}

}  // namespace intarsia
