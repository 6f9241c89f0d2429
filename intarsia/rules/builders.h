#pragma once
// Functions that build rules: einsum, pointwise, reduce, rows. Those for views are in view_builders.h.

#include <string>
#include <vector>

#include "intarsia/rules/rule.h"

namespace intarsia {

inline const Placement R = Replicate();
inline Placement S(int64_t dim) { return Shard(dim); }
inline Placement P(ReduceOp op) { return Partial(op); }
inline const Placement P_sum = Partial(ReduceOp::sum), P_avg = Partial(ReduceOp::avg), P_max = Partial(ReduceOp::max),
                       P_min = Partial(ReduceOp::min);
extern const std::vector<ReduceOp> kReduceOps;  // all of them

// "mk,kn->mn": sharding a letter that is in the output shards the output; sharding a contracted letter leaves a pending
// sum; a pending sum passes through one operand while the others are replicated. A "..." stands for any number of
// leading dims that broadcast.
Rule einsum(const std::string& equation);

// Every output dim may be sharded where the operands have it; operands that broadcast along it stay replicated.
// `pending` holds the rows for Partial that the op's algebra allows.
Rule pointwise(Rows pending = {});

// A reduction over the dims that argument `dims` names (all, if it is missing or empty): sharding a reduced dim leaves
// P(result), sharding a kept dim shards the output. `pending` lists the reductions that pass through.
Rule reduce(ReduceOp result, std::vector<ReduceOp> pending, const char* dims = "dim");

// Every dim of the first input may be sharded, except those along which the op works; all inputs and outputs have it.
Rows independent_of(const OpCall& call, const std::vector<int64_t>& dims);

// A sum or an average that is pending in the first of `inputs` inputs passes through while the others are replicated.
Rows linear_in_first(size_t inputs, size_t outputs = 1);

// `row`, which is written with P_sum, for every reduction: the op treats the terms of all alike. A NormPartial and a
// MaskedPartial follow these rows, since no rule can list each order and each table.
void add_for_any_reduction(Rows& rows, const Row& row);

// Whether a pending sum (average, product) of one dtype is still that sum after every share is cast to another.
// Whole numbers wrap at the width of their type (bool sums are "or"), and halves overflow, so only widening will do.
bool sums_survive(c10::ScalarType from, c10::ScalarType to);

// Whether a cast keeps the order of values.
bool order_survives(c10::ScalarType from, c10::ScalarType to);

// Whether the pending reductions of a row's inputs survive the cast to the output's dtype.
bool survives_casts(const Row& row, const OpCall& call);

// The sizes of a tensor, as Form::shapes returns them.
inline std::vector<int64_t> sizes_of(const TensorForm& form) { return {form.sizes.begin(), form.sizes.end()}; }

// The shape that the inputs broadcast to.
std::vector<int64_t> broadcast_shape(const OpCall& call);

// No rows: by its nature the op needs its whole tensor.
Rule on_whole_tensors();

// Rows written out by hand.
Rule rows(std::string family, std::function<Rows(const OpCall&)> make);

}  // namespace intarsia
