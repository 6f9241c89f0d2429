#pragma once
// Boxes of a tensor: what a rank holds, as ranges of global positions. Transfers between ranks, meshes and files are
// described in boxes.

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

Box whole_box(c10::ArrayRef<int64_t> shape);

// What two boxes of one tensor have in common; none if that is nothing.
std::optional<Box> overlap(const Box& a, const Box& b);

// Part `index` of `parts` of a box: of its first dim that gives every part something, else of its longest. Parts are
// cut as torch.chunk cuts; the last ones may be empty.
Box part_of_box(const Box& box, int64_t parts, int64_t index);

// Whether boxes inside `whole` partition it: every position is in exactly one of them.
bool make_up(const Box& whole, const std::vector<Box>& boxes);

// A box and where it begins in the local tensor of its rank.
struct HeldBox {
  Box box;
  c10::DimVector local;
};

// What the rank at `coordinate` holds, ascending. None if it holds nothing.
std::vector<HeldBox> boxes_of(const Layout& layout, c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> coordinate);

// The ranks of a group of the mesh that hold what the one at `coordinate` holds, itself among them, in the order of the
// mesh.
std::vector<int64_t> replicas_of(const Layout& layout, c10::ArrayRef<int64_t> coordinate, int64_t group = 0);

// The elements of `tensor` from `begin` on, as a view.
at::Tensor view_of_box(const at::Tensor& tensor, c10::ArrayRef<int64_t> begin, c10::ArrayRef<int64_t> shape);

}  // namespace intarsia
