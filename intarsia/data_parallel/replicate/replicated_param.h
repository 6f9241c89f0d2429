#pragma once
// The parameters of a replicated module, and their gradients, as local tensors of the hosted ranks.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/axis.h"
#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"
#include "intarsia/data_parallel/leaf_hooks.h"

namespace intarsia {

// One parameter of a module that is replicated along an axis of `mesh`, a mesh of one axis.
//
// Note [Plain and distributed parameters]
// A plain parameter, or one that is only sharded over other axes, has a gradient on each rank of the axis that belongs
// to the rank's own loss: these are averaged. If the parameter is on a mesh that has the axis, its gradient is that of
// one loss over all ranks: what is still pending along the axis is summed.
struct ReplicatedParam {
  ReplicatedParam(std::string name, const at::Tensor& tensor, const DeviceMesh& mesh);

  std::string name;
  WeakTensor tensor;
  at::TensorOptions options;
  const Layout* layout = nullptr;  // null for a plain parameter
  int64_t axis = -1;               // of the layout's mesh, if that has the one along which the module is replicated
  struct Form {
    std::vector<int64_t> sizes, strides;
    int64_t numel;

    bool is_of(const at::Tensor& local) const;
  };
  std::vector<Form> locals;             // per slot
  std::vector<int64_t> sizes, strides;  // of the whole, if it has a layout

  // The axis of a distributed parameter; an error if it is sharded along it.
  static int64_t check_layout(const std::string& name, const at::Tensor& given, const DeviceMesh& mesh);

  bool is_summed() const { return axis >= 0; }

  // Whether the parameter still has the dtype, the shape and the layout recorded here.
  bool fits(const at::Tensor& now) const;

  // The tensor's own memory, per slot.
  Shards local_tensors(const at::Tensor& tensor) const;
  // Each hosted rank's part of the gradient: the terms of the average, or of the sum.
  Shards terms(const at::Tensor& grad, const Axis& over) const;
  // The gradient with the given local tensors, as LibTorch requires it: of the kind of the parameter.
  at::Tensor gradient(Shards locals, const DeviceMesh& mesh) const;
};

}  // namespace intarsia
