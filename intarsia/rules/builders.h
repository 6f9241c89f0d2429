#pragma once
// Rules are built, not written out: einsum, pointwise, reduce, rows; see view_builders.h for views.

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

// "mk,kn->mn": a cut of a letter that is in the output leaves a cut there; a cut of a letter that is summed away
// leaves a pending sum; a pending sum passes through one operand while the others are replicated.
// A "..." stands for any number of leading dims that broadcast.
Rule einsum(const std::string& equation);

// Every output dim may be cut where the operands have it; operands that broadcast along it stay replicated.
// `pending` holds the rows for Partial that the op's algebra allows.
Rule pointwise(Rows pending = {});

// A reduction over the dims that argument `dims` names (all, if it is missing or empty): cutting a reduced dim leaves
// P(result), cutting a kept dim leaves a cut. `pending` are the reductions that pass through.
Rule reduce(ReduceOp result, std::vector<ReduceOp> pending, const char* dims = "dim");

// Every dim of the first input may be cut, but for those that the op works along; all inputs and outputs have it.
Rows independent_of(const OpCall& call, const std::vector<int64_t>& dims);

// A sum and an average that are pending in the first of so many inputs pass through, while the others are whole.
Rows linear_in_first(size_t inputs, size_t outputs = 1);

// `row`, which is written with P_sum, for every reduction: the op treats the terms of all alike. A NormPartial and a
// MaskedPartial follow these rows, since no rule can list each order and each table.
void add_for_any_reduction(Rows& rows, const Row& row);

// Whether a pending sum (average, product) of one dtype is still that sum after every share is cast to another.
// Whole numbers wrap at the width of their type (bool sums are "or"), and halves overflow, so only widening will do.
bool sums_survive(c10::ScalarType from, c10::ScalarType to);

// Whether a cast keeps the order of values.
bool order_survives(c10::ScalarType from, c10::ScalarType to);

// Whether what is pending in the inputs of a row survives the cast to the output's dtype.
bool survives_casts(const Row& row, const OpCall& call);

// The sizes of a tensor, as Form::shapes hands them back.
inline std::vector<int64_t> sizes_of(const TensorForm& form) { return {form.sizes.begin(), form.sizes.end()}; }

// The shape that the inputs broadcast to.
std::vector<int64_t> broadcast_shape(const OpCall& call);

// No rows: the op asks for all of its tensor by nature.
Rule on_whole_tensors();

// Rows written out by hand.
Rule rows(std::string family, std::function<Rows(const OpCall&)> make);

}  // namespace intarsia
