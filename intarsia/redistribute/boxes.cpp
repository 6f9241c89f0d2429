#include "intarsia/redistribute/boxes.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace intarsia {

std::string str(const Box& box) {
  std::string text = "[";
  for (size_t dim = 0; dim < box.shape.size(); ++dim) {
    text += c10::str(dim ? ", " : "", box.begin[dim], ":", box.begin[dim] + box.shape[dim]);
  }
  return text + "]";
}

Box whole_box(c10::ArrayRef<int64_t> shape) { return {c10::DimVector(shape.size(), 0), c10::DimVector(shape)}; }

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box both;
  for (size_t dim = 0; dim < a.shape.size(); ++dim) {
    auto common =
        overlap(Interval{a.begin[dim], a.begin[dim] + a.shape[dim]}, {b.begin[dim], b.begin[dim] + b.shape[dim]});
    if (common.size() == 0) return std::nullopt;
    both.begin.push_back(common.begin);
    both.shape.push_back(common.size());
  }
  return both;
}

Box part_of_box(const Box& box, int64_t parts, int64_t index) {
  auto part = box;
  if (parts == 1) return part;
  if (box.shape.empty()) {  // a scalar cannot be split: the first part is all of it, and the others are empty boxes
    if (index) part = {{0}, {0}};
    return part;
  }
  auto dim =
      std::find_if(box.shape.begin(), box.shape.end(), [&](int64_t size) { return size >= parts; }) - box.shape.begin();
  if (dim == static_cast<int64_t>(box.shape.size()))
    dim = std::max_element(box.shape.begin(), box.shape.end()) - box.shape.begin();
  auto chunk = chunk_of(box.shape[dim], parts, index);
  part.begin[dim] += chunk.begin;
  part.shape[dim] = chunk.size();
  return part;
}

// Boxes that do not overlap and have as many positions as the whole make up the whole. Sorted by their first dim, a box
// can only overlap those that begin before it ends.
bool make_up(const Box& whole, const std::vector<Box>& boxes) {
  int64_t count = 0;
  for (auto& box : boxes) {
    count += box.count();
    if (box.count() && overlap(whole, box) != box) return false;
  }
  if (count != whole.count()) return false;
  if (whole.shape.empty()) return boxes.size() == 1;
  std::vector<const Box*> sorted;
  for (auto& box : boxes) {
    if (box.count()) sorted.push_back(&box);
  }
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->begin[0] < b->begin[0]; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    auto end = sorted[i]->begin[0] + sorted[i]->shape[0];
    for (size_t j = i + 1; j < sorted.size() && sorted[j]->begin[0] < end; ++j) {
      if (overlap(*sorted[i], *sorted[j])) return false;
    }
  }
  return true;
}

// Every choice of one run of positions per dim is a box.
std::vector<HeldBox> boxes_of(const Layout& layout, c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> coordinate) {
  std::vector<HeldBox> boxes(1);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    auto runs = intervals_of(layout, dim, shape[dim], coordinate);
    std::vector<HeldBox> longer;
    longer.reserve(boxes.size() * runs.size());
    for (auto& box : boxes) {
      int64_t passed = 0;
      for (auto& run : runs) {
        auto& next = longer.emplace_back(box);
        next.box.begin.push_back(run.begin);
        next.box.shape.push_back(run.size());
        next.local.push_back(passed);
        passed += run.size();
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

std::vector<int64_t> replicas_of(const Layout& layout, c10::ArrayRef<int64_t> coordinate, int64_t group) {
  auto& mesh = layout.mesh();
  std::vector<int64_t> ranks;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    auto other = mesh.coordinate_at(position);
    bool same = true;
    for (int64_t axis = 0; axis < mesh.ndim() && same; ++axis) {
      same = cut_dim(layout.placements()[axis]) < 0 || other[axis] == coordinate[axis];
    }
    if (same) ranks.push_back(mesh.ranks(group)[position]);
  }
  return ranks;
}

at::Tensor view_of_box(const at::Tensor& tensor, c10::ArrayRef<int64_t> begin, c10::ArrayRef<int64_t> shape) {
  auto view = tensor;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] != view.size(dim)) view = view.narrow(dim, begin[dim], shape[dim]);
  }
  return view;
}

}  // namespace intarsia
