#include "intarsia/comm/flat_list.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// The memory of the tensors, if it has them in order without gaps; else undefined.
at::Tensor as_they_stand(c10::ArrayRef<at::Tensor> tensors) {
  const at::Tensor* first = nullptr;
  int64_t total = 0;
  for (auto& t : tensors) {
    if (t.numel() == 0) continue;
    if (!lies_in_order(t)) return {};
    if (!first) first = &t;
    if (!t.is_alias_of(*first) || t.storage_offset() != first->storage_offset() + total) return {};
    total += t.numel();
  }
  if (!first) return {};
  return total == first->numel() ? first->view({-1}) : first->as_strided({total}, {1});
}

}  // namespace

bool lies_in_order(const at::Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

at::Tensor flat_values(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg().contiguous().view(-1); }

at::Tensor pack(c10::ArrayRef<at::Tensor> tensors) { return pack(tensors, tensors[0].options()); }

// Memory in order is copied by one op, other values straight into their places.
at::Tensor pack(c10::ArrayRef<at::Tensor> tensors, const at::TensorOptions& options) {
  if (!tensors.empty() && std::all_of(tensors.begin(), tensors.end(), lies_in_order)) {
    std::vector<at::Tensor> flat;
    flat.reserve(tensors.size());
    for (auto& t : tensors) flat.push_back(t.view(-1));
    return at::cat(flat);
  }
  int64_t total = 0;
  for (auto& t : tensors) total += t.numel();
  auto flat = at::empty({total}, options);
  FlatParts parts(flat);
  for (auto& t : tensors) parts.next(t.sizes()).copy_(t);
  return flat;
}

at::Tensor joined(c10::ArrayRef<at::Tensor> tensors) { return joined(tensors, tensors[0].options()); }

at::Tensor joined(c10::ArrayRef<at::Tensor> tensors, const at::TensorOptions& options) {
  auto flat = as_they_stand(tensors);
  return flat.defined() ? flat : pack(tensors, options);
}

void unpack(const at::Tensor& flat, c10::ArrayRef<at::Tensor> into) {
  FlatParts parts(flat);
  for (auto& t : into) t.copy_(parts.next(t.sizes()));
}

at::Tensor FlatParts::next(at::IntArrayRef shape) {
  auto count = c10::multiply_integers(shape), begin = passed_;
  passed_ += count;
  return (count == flat_.numel() ? flat_ : flat_.narrow(0, begin, count)).view(shape);
}

std::vector<std::vector<size_t>> places_by_dtype(size_t count, c10::function_ref<at::ScalarType(size_t)> dtype_of) {
  std::vector<std::vector<size_t>> places;
  for (size_t i = 0; i < count; ++i) {
    auto same = [&](auto& group) { return dtype_of(group[0]) == dtype_of(i); };
    auto known = std::find_if(places.begin(), places.end(), same);
    (known == places.end() ? places.emplace_back() : *known).push_back(i);
  }
  return places;
}

}  // namespace intarsia
