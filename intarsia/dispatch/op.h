#pragma once
// What dispatch needs to know about an op, read once from its schema and the rule table.

#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/dispatch/cache.h"
#include "intarsia/rules/table.h"

namespace intarsia {

enum class ArgKind : uint8_t { value, number, tensor, tensor_list };  // optional tensors and lists are of these kinds

struct Op {
  explicit Op(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  std::string name;                    // aten::add.Tensor
  mutable const Rule* rule = nullptr;  // looked up again as long as there is none
  const Traits* traits = nullptr;
  const Planner* planner = nullptr;  // see Note [Lowerings]
  const Always* always = nullptr;    // the same, if nothing has to be decided
  c10::OperatorHandle functional;    // the op that the rule is written for; the op itself if it is not a variant
  std::vector<ArgKind> kinds;        // per argument
  std::vector<int> written;          // arguments that are written: self of an in-place op, out of an out= op
  std::vector<int> returns_arg;      // per return: the written argument that it is, or -1
  std::vector<int> views_arg;        // per return: the argument that it views, or -1
  int shown = -1;                    // the tensor, counted among tensors, that return 0 is or views
  std::vector<int> size_args;        // arguments that become the local shape of output 0
  bool is_out = false;               // out=: the written arguments come last and are not read
  bool is_random = false;
  bool changes_form = false;   // in-place ops that change sizes: transpose_, squeeze_, resize_
  bool keeps_note = false;     // clone and to: see Note [Tensors with a note]
  bool keeps_value = false;    // of its last tensor: see Note [Origins]
  uint64_t hash = 0;           // of the functional op's name, without the overload: the same in every process
  bool may_be_direct = false;  // its schema fits the direct path: tensors in, tensors out, at most one written
  size_t functional_args = 0;  // how many leading arguments the functional op has
  mutable DecisionCache cache;
};

}  // namespace intarsia
