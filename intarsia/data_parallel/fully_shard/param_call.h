#pragma once
// What an op needs of the parameters of fully_shard among its arguments.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/data_parallel/fully_shard/param_handles.h"

namespace intarsia {

struct ParamCall {
  struct Written {
    Handle handle;
    bool is_part;  // of the whole
  };
  std::vector<std::shared_ptr<ParamOwner>> owners;  // each once
  std::vector<Written> written;                     // parameters
  std::vector<at::Tensor> others;                   // distributed tensors that are none of ours
  std::vector<at::Tensor> undecided;                // see Note [Undecided tensors]
  bool has_leaf = false, has_whole = false, has_computed = false;
  bool meets_plain = false;      // other tensors that are not distributed
  bool meets_number = false;     // the same, also tensors without dims
  bool meets_per_rank = false;   // per-rank ones among them
  bool writes_computed = false;  // to what was computed from a parameter
  bool other_sizes = false;      // new_zeros of other sizes than the parameter's

  // What it gets.
  std::vector<std::shared_ptr<ParamOwner>> whole;  // of those owners; of the others shards
  bool writes_whole = false;                       // in place of shards, which take over the values
  bool undecided_whole = false;

  bool uses_shards() const { return whole.size() < owners.size(); }
  bool writes_shards() const { return !written.empty() && !writes_whole; }
  bool keeps_undecided() const { return !undecided.empty() && !undecided_whole; }
};

ParamCall read_param_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace intarsia
