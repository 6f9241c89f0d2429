#pragma once
// The properties of an op that decide which value of a fully_shard parameter it sees, read once from its schema.

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

struct ParamOpTraits {
  bool about_the_handle;  // detach, is_leaf, size: about the handle and its history, not about values
  bool is_view;           // returns a view of an argument
  bool keeps_shards;      // creates a tensor like its argument, or maps lists
  bool writes;            // to one of its arguments
  bool by_element;        // maps lists: element i meets only the elements i of other lists
  bool casts;             // to, _to_copy
  bool names_sizes;       // new_zeros(sizes): which need not be those of the parameter
};

// The traits of an op, kept after the first call.
const ParamOpTraits& param_traits_of(const c10::OperatorHandle& op);

}  // namespace intarsia
