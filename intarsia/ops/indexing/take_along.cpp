#include "intarsia/ops/indexing/take_along.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/along/recut.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Whether an index is out of range depends on values, which must not decide how a call runs: all ranks have the whole
// index here, so all of them run the plain op, on a tensor that is as long as the whole along `dim` and small
// otherwise.
void refuse_places(const at::Tensor& self, int64_t dim, const at::Tensor& index, const PlainTake& plain) {
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < self.dim(); ++d)
    sizes.push_back(d == dim ? self.size(d) : std::min<int64_t>(self.size(d), 1));
  plain(at::zeros(sizes, at::dtype(self.scalar_type())), index);
}

}  // namespace

bool takes_along_cut(const CutCall& c, size_t index, int64_t dim) {
  auto& places = c.input(index);
  bool whole_numbers = places.dtype == at::kLong || places.dtype == at::kInt;  // for others, the plain op checks
  if (!c.cuts(0, dim) || !c.is_distributed(index) || places.dim() != 1 || !whole_numbers) return false;
  auto& mesh = c.now[0]->mesh();
  return c.now[index]->mesh() == mesh && mesh.group_count() == 1 && !mesh.slots().empty();
}

at::Tensor take_along(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool wraps,
                      const PlainTake& plain) {
  auto whole = shards_in(index, Layout::replicated(mesh_of(index)))[0];
  auto flat = whole.to(at::kLong).contiguous();
  auto* places = flat.const_data_ptr<int64_t>();
  auto size = self.size(dim);
  std::vector<Source> sources(flat.numel());
  bool in_range = true;
  for (size_t j = 0; j < sources.size(); ++j) {
    auto place = wraps && places[j] < 0 ? places[j] + size : places[j];
    bool fits = place >= 0 && place < size;
    if (fits) sources[j] = {0, place};
    in_range = in_range && fits;
  }
  if (!in_range) refuse_places(self, dim, whole, plain);  // the op ignores indices if the result has no elements
  return recut({self}, dim, sources);
}

}  // namespace intarsia
