#pragma once
// A rule says how an op may be sharded over ONE mesh axis: rows of input placements -> output placements.
//
// A rule sees shapes, dtypes and plain arguments, never the mesh or the present placements. The engine adds the
// all-Replicate row, expands rows over the axes of a mesh, and picks the cheapest legal choice (propagate/choose).

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/placement.h"
#include "intarsia/core/shards.h"

namespace c10 {
class OperatorHandle;
}

namespace intarsia {

// A tensor as a rule sees it: its global form. Undefined optional tensors keep their place, with defined = false.
struct TensorForm {
  bool defined = false;
  c10::SmallVector<int64_t, 5> sizes, strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  int64_t dim() const { return sizes.size(); }
  int64_t numel() const;
};
TensorForm form_of(const at::Tensor& tensor);

// One call of an op. Tensors are numbered in order: lists and optionals are flattened in argument order. An in-place or
// out= call appears as a call of the functional op.
struct OpCall {
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> args;         // as the caller gave them
  const std::vector<TensorForm>& inputs;   // all tensors among the arguments
  const std::vector<TensorForm>& outputs;  // what the plain op would return

  int arg_index(const char* name) const;                       // -1 if the op has no such argument
  const c10::IValue& arg(const char* name) const;              // an error if there is none
  int64_t int_arg(const char* name, int64_t otherwise) const;  // also for None and missing arguments
  bool bool_arg(const char* name, bool otherwise) const;
  int64_t dim_arg(const char* name, int64_t ndim,
                  int64_t otherwise = 0) const;                         // not negative; 0 of a tensor without dims
  std::vector<int64_t> dims_arg(const char* name, int64_t ndim) const;  // not negative; empty means all dims
};

// One way to shard a call over one mesh axis.
struct Row {
  Placements in;               // one per input tensor
  Placements out;              // one per output tensor
  bool if_advised = false;     // only a guide takes it (propagate/guide.h): without one another choice serves better
  bool any_reduction = false;  // one of the rows that the op has for every reduction (add_for_any_reduction)
  bool operator==(const Row&) const = default;
};
using Rows = std::vector<Row>;
std::string str(const Row& row);  // S(0), R -> S(0), and "  (if advised)"

// What runs on one rank in place of the plain op. `stack` holds the local arguments and receives the results.
struct LocalCall {
  const OpCall& call;
  c10::ArrayRef<const Layout*> in, out;  // the chosen layouts
  const Slot& slot;
  std::vector<c10::IValue>& stack;
  const c10::OperatorHandle& op;

  void call_plain();  // the op itself, with the arguments on the stack
};

// What all hosted ranks run together in place of the plain op, because they exchange parts of their tensors.
struct JointCall {
  const OpCall& call;
  const DeviceMesh& mesh;
  std::vector<const Layout*> in, out;  // the chosen layouts; null where a tensor is undefined
  std::vector<Shards> inputs;          // per tensor argument, in those layouts; empty where it is undefined
  std::vector<Shards> outputs;         // to be filled, one per result

  at::Tensor input(size_t i, size_t slot) const { return inputs[i].empty() ? at::Tensor() : inputs[i][slot]; }
  size_t slots() const { return mesh.slots().size(); }
  std::vector<int64_t> output_shape(size_t i, size_t slot) const;  // the local shape of result `i`
};

// What the plain op would return, for ops that cannot tell without data (LibTorch has no meta kernel for relu). A rule
// gives shapes, or whole forms; if it gives shapes but no dtypes, the op runs on tensors of one element to find the
// dtypes.
struct Form {
  std::function<std::vector<std::vector<int64_t>>(const OpCall&)> shapes;  // empty: the op's own meta kernel is used
  std::function<std::vector<c10::ScalarType>(const OpCall&)> dtypes;  // Undefined for an output that is not requested
  // Needed if the strides are neither those of an input of the same shape (where dims line up) nor contiguous.
  std::function<std::vector<std::vector<int64_t>>(const OpCall&)> strides;
  // Replaces all of the above. Also checks the call, with the plain op's error texts. An empty list: as if this were
  // not set.
  std::function<std::vector<TensorForm>(const OpCall&)> whole;
  // Rejects sizes and dtypes that the plain op rejects, but not when it runs without data. The outputs are known.
  std::function<void(const OpCall&)> check;
  bool from_ones = false;     // that one element is a one, not a zero, which cannot be a divisor
  bool keeps_format = false;  // results have their channels last in memory if the first input has
};

// How the op runs on a rank, if not as the plain op alone.
struct Local {
  std::function<void(LocalCall&)> run;  // in place of the plain op
  bool only_if_strided = false;         // the plain op does as well if the first tensor is contiguous
  // Whether the plain op does as well on a rank, for given layouts: calling it is cheaper.
  std::function<bool(const OpCall&, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*> out, const Slot&)>
      plain_does;

  // Names of arguments that hold a size and must become the local shape of output 0, or its batch size if the argument
  // is one number. If output 0 is a gradient that is not requested, the incoming gradient, input 0, has the same shape.
  std::vector<std::string> size_args;

  // Inputs whose values the op may reject (an index out of range, a zero divisor): see Note [Errors that one rank
  // sees].
  std::function<std::vector<size_t>(const OpCall&)> refusable;
};

// Rows that no rank can follow alone: along a sharded dim of an image, ranks fetch the rows under their windows. An op
// runs along a sharding that is there and creates none: such a row applies on an axis that shards an input as the row
// does.
struct Joint {
  std::function<Rows(const OpCall&)> rows;
  std::function<void(JointCall&)> run;  // also follows the ordinary rows, on other axes of the mesh
};

struct Rule {
  std::string family;  // for listings only

  // How the op may be sharded.
  std::function<Rows(const OpCall&)> rows;
  // Dims line up: a Shard in a row may as well be a StridedShard of the same split everywhere in that row.
  bool aligned = false;
  // Whether whole layouts fit together, if rows for single axes cannot tell (views of uneven shards).
  std::function<bool(const OpCall&, const Layout& in, const Layout& out)> legal;
  Joint joint;

  Form form;
  Local local;

  bool asks_for_all = false;  // by nature the op needs its whole tensor: gathered, without a warning
  bool keeps_order = false;   // a view whose elements are those of its base, in order
  bool draws = true;          // false: it is tagged as random, but draws nothing on CPU
  std::string copies;         // the view that this op copies, if the rule is that view's

  Rule&& with_size_args(std::vector<std::string> names) &&;
  Rule&& with_local(std::function<void(LocalCall&)> run) &&;
  Rule&& with_shapes(std::function<std::vector<std::vector<int64_t>>(const OpCall&)> shapes) &&;
  Rule&& with_dtypes(std::function<std::vector<c10::ScalarType>(const OpCall&)> dtypes) &&;
  Rule&& with_forms(std::function<std::vector<TensorForm>(const OpCall&)> forms) &&;
  Rule&& checking(std::function<void(const OpCall&)> check) &&;
  Rule&& contiguous() &&;  // results are contiguous, even if the input is not; call it after with_shapes
  Rule&& ordered(std::function<std::vector<int64_t>(const OpCall&)>
                     order) &&;                    // dims of result 0 in memory, slowest first; likewise
  Rule&& column_major(size_t result = 0) &&;       // that result is column-major in its last two dims; likewise
  Rule&& like_input(size_t input) &&;              // result 0 has the shape and the dtype of that input
  Rule&& refusing(std::vector<size_t> inputs) &&;  // the op may reject values of these inputs
  Rule&& refusing_where(std::function<std::vector<size_t>(const OpCall&)> inputs) &&;
  Rule&& with_joint(std::function<Rows(const OpCall&)> rows, std::function<void(JointCall&)> run) &&;
};

// The value on a rank of an argument that holds a size.
c10::IValue local_size(const c10::Argument& argument, c10::ArrayRef<int64_t> local_shape);

}  // namespace intarsia
