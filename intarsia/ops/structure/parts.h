#pragma once
// What the rules of this folder share: parts that are put into a whole, and pending reductions that pass where no
// element is computed.

#include <vector>

#include "intarsia/rules/builders.h"

namespace intarsia {

// No element is computed, so whatever is pending passes wherever all of it does.
void pass_pending(const OpCall& call, Rows& rows);
void pass_pending(const OpCall& call, Rows& rows, const std::vector<ReduceOp>& ops);  // these reductions only

// Zeros enter the result: a pending reduction must keep them.
extern const std::vector<ReduceOp> kKeepsZero;

// Rule of ops that put a part into a whole, of which every dim but the named ones may be sharded. The part has these
// dims as well, or lacks them. The whole is zero elsewhere: diag_embed, and gradients of views that show a part.
Rule put_into_zeros(const char* family, std::vector<const char*> dims, bool lacks,
                    std::vector<ReduceOp> pending = kKeepsZero);
Rule part_gradient(std::vector<const char*> dims, bool lacks, std::vector<ReduceOp> pending = kKeepsZero);

// select_scatter and the like: the second tensor overwrites a part of the first.
Rule put_into(std::vector<const char*> dims, bool lacks);

}  // namespace intarsia
