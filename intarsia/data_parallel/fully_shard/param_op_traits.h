#pragma once
// What fully_shard has to know of an op to choose the value of a parameter that it sees, read once from the op's
// schema.

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

struct ParamOpTraits {
  bool about_the_handle;  // detach, is_leaf, size: about the handle and its history, not about values
  bool is_view;           // returns a view of an argument
  bool keeps_shards;      // makes a tensor like its argument, or maps lists
  bool writes;            // to one of its arguments
  bool by_element;        // maps lists: element i meets only the elements i of other lists
  bool casts;             // to, _to_copy
  bool names_sizes;       // new_zeros(sizes): which need not be those of the parameter
};

const ParamOpTraits& param_traits_of(const c10::OperatorHandle& op);

}  // namespace intarsia
