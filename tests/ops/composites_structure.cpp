// torch::, shapes: views, splits, joins, conversions.

#include <ATen/ATen.h>

#include "tests/ops/composites.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

c10::List<at::Tensor> several(std::vector<Ints> shapes) {
  c10::List<at::Tensor> list;
  for (auto& shape : shapes) list.push_back(x(shape));
  return list;
}

void add_joins(const AddCalls& each) {
  for (int64_t dim : {0, 1}) {
    each({"concat", "concatenate"}, {dim ? several({{5, 3}, {5, 2}}) : several({{5, 3}, {2, 3}}), dim});
  }
  each({"vstack", "row_stack"}, {several({{5, 3}, {2, 3}, {3}})});
  each({"hstack", "column_stack"}, {several({{5, 3}, {5, 2}})});
  each({"hstack", "column_stack"}, {several({{5}, {5}})});
  each({"dstack"}, {several({{5, 3}, {5, 3}})});
  each({"atleast_1d.Sequence", "atleast_2d.Sequence", "atleast_3d.Sequence"}, {several({{5, 3}, {}, {4}})});
  each({"broadcast_tensors"}, {several({{5, 1}, {3}, {}})});
  each({"meshgrid"}, {several({{5}, {3}})});
  each({"meshgrid.indexing"}, {several({{5}, {3}}), "xy"});
  each({"flatten_dense_tensors"}, {several({{5, 3}, {4}})});
  each({"unflatten_dense_tensors"}, {x({19}), several({{5, 3}, {4}})});
  for (bool first : {false, true}) {
    for (auto side : {"right", "left"}) each({"pad_sequence"}, {several({{5, 3}, {2, 3}, {4, 3}}), first, 0.5, side});
  }
}

void add_splits(const AddCalls& each) {
  each({"chunk", "unsafe_chunk"}, {x({5, 3}), 2, 0});
  each({"split.sizes"}, {x({5, 3}), Ints{2, 2, 1}, 0});
  each({"tensor_split.sections"}, {x({5, 3}), 2, 0});
  each({"tensor_split.indices"}, {x({5, 3}), Ints{1, 2}, 1});
  each({"tensor_split.tensor_indices_or_sections"}, {x({5, 3}), at::tensor({1, 3}, at::kLong), 0});
  each({"vsplit.int"}, {x({6, 3}), 2});
  each({"vsplit.array"}, {x({5, 3}), Ints{1, 4}});
  each({"hsplit.int"}, {x({5, 4}), 2});
  each({"hsplit.array"}, {x({5, 3}), Ints{1}});
  each({"dsplit.int"}, {x({5, 3, 4}), 2});
  each({"dsplit.array"}, {x({5, 3, 4}), Ints{3}});
  each({"narrow"}, {x({5, 3}), 0, 1, 3});
  each({"narrow.Tensor"}, {x({5, 3}), 0, at::scalar_tensor(1, at::kLong), 3});
}

void add_views(const AddCalls& each) {
  each({"adjoint", "mH", "mT", "fliplr", "flipud", "ravel", "conj", "resolve_conj", "resolve_neg", "real", "numpy_T",
        "matrix_H", "atleast_1d", "atleast_2d", "atleast_3d"},
       {x({5, 3})});
  each({"contiguous"}, {x({5, 3}), at::MemoryFormat::Contiguous});
  each({"linalg_diagonal"}, {x({5, 3}), 0, 0, 1});
  each({"diag"}, {x({5, 3}), 1});
  each({"diag", "diagflat"}, {x({5}), 0});
  each({"trace_backward"}, {at::scalar_tensor(1.5, at::kDouble), Ints{5, 3}});
  each({"imag"}, {at::complex(x({5, 3}), x({5, 3}))});
  each({"broadcast_to"}, {x({5, 1}), Ints{2, 5, 3}});
  each({"expand_as"}, {x({5, 1}), x({5, 3})});
  each({"flatten.using_ints"}, {x({5, 3, 2}), 0, 1});
  each({"reshape"}, {x({6, 4}), Ints{3, -1}});
  each({"reshape_as"}, {x({6, 4}), x({3, 8})});
  each({"view_as"}, {x({6, 4}), x({6, 2, 2})});
  each({"unflatten.int"}, {x({5, 6}), 1, Ints{2, 3}});
  each({"moveaxis.int", "movedim.int", "swapaxes", "swapdims"}, {x({5, 3, 2}), 0, 2});
  each({"moveaxis.intlist", "movedim.intlist"}, {x({5, 3, 2}), Ints{0, 1}, Ints{1, 2}});
  each({"tile"}, {x({5, 3}), Ints{2, 1, 2}});
  each({"to.dtype"}, {x({5, 3}), at::kFloat, false, true, kNone});
  each({"to.other"}, {x({5, 3}), x({2}), false, true, kNone});
  each({"to.device"}, {x({5, 3}), c10::Device(at::kCPU), at::kFloat, false, true, kNone});
  each({"to.dtype_layout"}, {x({5, 3}), at::kFloat, kNone, c10::Device(at::kCPU), kNone, false, true, kNone});
}

}  // namespace

void add_structure_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  add_joins(each);
  add_splits(each);
  add_views(each);
}

}  // namespace intarsia
