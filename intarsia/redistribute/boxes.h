#pragma once
// Boxes of a tensor: ranges of global positions that a rank holds. They describe transfers between ranks, meshes and
// files.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include "intarsia/core/layout.h"

namespace intarsia {

// The positions begin[d] .. begin[d] + shape[d] of every dim d. A scalar has one box, without dims.
struct Box {
  c10::DimVector begin, shape;
  int64_t count() const { return c10::multiply_integers(shape); }
  bool operator==(const Box&) const = default;
};

std::string str(const Box& box);  // [0:4, 2:8]

// The box of all positions of a tensor.
Box whole_box(c10::ArrayRef<int64_t> shape);

// The intersection of two boxes of one tensor; none if it is empty.
std::optional<Box> overlap(const Box& a, const Box& b);

// Part `index` of `parts` of a box, split along the first dim that gives every part something, else along its longest.
// Parts are split as torch.chunk splits; the last ones may be empty.
Box part_of_box(const Box& box, int64_t parts, int64_t index);

// Whether boxes inside `whole` partition it: every position is in exactly one of them.
bool make_up(const Box& whole, const std::vector<Box>& boxes);

// A box and where it begins in the local tensor of its rank.
struct HeldBox {
  Box box;
  c10::DimVector local;
};

// The boxes that the rank at `coordinate` holds, ascending. None if it holds nothing.
std::vector<HeldBox> boxes_of(const Layout& layout, c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> coordinate);

// The ranks of a group of the mesh that hold the same as the one at `coordinate`, which is among them, in the order of
// the mesh.
std::vector<int64_t> replicas_of(const Layout& layout, c10::ArrayRef<int64_t> coordinate, int64_t group = 0);

// The elements of `tensor` from `begin` on, `shape` of them, as a view.
at::Tensor view_of_box(const at::Tensor& tensor, c10::ArrayRef<int64_t> begin, c10::ArrayRef<int64_t> shape);

}  // namespace intarsia
