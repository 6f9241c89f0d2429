#include "intarsia/redistribute/common_runs.h"

#include <ATen/ATen.h>

#include "intarsia/core/copy_past_caches.h"

namespace intarsia {
namespace {

// A piece too large for the caches is copied past them.
void copy_values(const at::Tensor& target, const at::Tensor& piece) {
  auto stands = [&](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  };
  bool as_bytes = piece.nbytes() >= kPastCachesBytes && stands(target) && stands(piece) &&
                  target.dtype() == piece.dtype() && target.sizes() == piece.sizes();
  if (!as_bytes) return void(target.copy_(piece));
  copy_past_caches(static_cast<char*>(target.mutable_data_ptr()), static_cast<const char*>(piece.const_data_ptr()),
                   piece.nbytes());
}

}  // namespace

Runs common_runs(const Intervals& source, const Intervals& target) {
  Runs runs;
  int64_t source_passed = 0, target_passed = 0;  // positions before *s and before *t
  for (auto s = source.begin(), t = target.begin(); s != source.end() && t != target.end();) {
    auto both = overlap(*s, *t);
    if (both.size()) {
      runs.push_back({source_passed + both.begin - s->begin, target_passed + both.begin - t->begin, both.size()});
    }
    if (s->end < t->end) {
      source_passed += (s++)->size();
    } else {
      target_passed += (t++)->size();
    }
  }
  return runs;
}

std::vector<Runs> common_runs(const Layout& from, c10::ArrayRef<int64_t> from_coordinate, const Layout& to,
                              c10::ArrayRef<int64_t> to_coordinate, c10::ArrayRef<int64_t> shape) {
  std::vector<Runs> result;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    auto runs = common_runs(intervals_of(from, dim, shape[dim], from_coordinate),
                            intervals_of(to, dim, shape[dim], to_coordinate));
    if (runs.empty()) return {};
    result.push_back(std::move(runs));
  }
  return result;
}

c10::SmallVector<int64_t, 5> shape_of(const std::vector<Runs>& common) {
  c10::SmallVector<int64_t, 5> shape;
  for (auto& runs : common) {
    auto& extent = shape.emplace_back(0);
    for (auto& run : runs) extent += run.size;
  }
  return shape;
}

int64_t count_of(const std::vector<Runs>& common) {
  return common.empty() ? 0 : c10::multiply_integers(shape_of(common));
}

at::Tensor extract(at::Tensor tensor, c10::ArrayRef<Runs> runs) {
  for (size_t dim = 0; dim < runs.size(); ++dim) {
    std::vector<at::Tensor> parts;
    for (auto& run : runs[dim]) parts.push_back(tensor.narrow(dim, run.source, run.size));
    tensor = parts.size() == 1 ? parts[0] : at::cat(parts, dim);
  }
  return tensor;
}

void place(const at::Tensor& target, const at::Tensor& piece, c10::ArrayRef<Runs> runs, int64_t dim) {
  if (dim == static_cast<int64_t>(runs.size())) return copy_values(target, piece);
  if (runs[dim].size() == 1 && runs[dim][0].size == target.size(dim)) return place(target, piece, runs, dim + 1);
  int64_t offset = 0;
  for (auto& run : runs[dim]) {
    auto part = runs[dim].size() == 1 ? piece : piece.narrow(dim, offset, run.size);
    place(target.narrow(dim, run.target, run.size), part, runs, dim + 1);
    offset += run.size;
  }
}

bool stands_flat(c10::ArrayRef<Runs> piece, c10::ArrayRef<int64_t> target, int64_t offset) {
  int64_t stride = 1, begin = 0;
  bool whole_behind = true;  // all later dims are whole, so one run of this dim is one run of memory
  for (size_t dim = target.size(); dim-- > 0; stride *= target[dim]) {
    if (piece[dim].size() != 1 || (!whole_behind && piece[dim][0].size != 1)) return false;
    begin += piece[dim][0].target * stride;
    whole_behind = whole_behind && piece[dim][0].size == target[dim];
  }
  return begin == offset;
}

}  // namespace intarsia
