#pragma once
// Checks the rows of a custom rule on sample arguments against the plain op.

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace intarsia {

// Shards the tensors among `args` over 2, 3 and 4 simulated ranks as each row of the op's rule says, runs the plain op
// on every rank, combines the results as the row says, and compares with the plain op on the whole. Returns one line
// per wrong row; empty if all are right. Choose sizes that do not divide, such as 5 and 3, and values that differ.
//   TORCH_CHECK(prove("mylib::scaled_add", {torch::randn({5, 3}), torch::randn({5, 3}), 0.5}).empty());
std::vector<std::string> prove(const std::string& op, const std::vector<c10::IValue>& args);

}  // namespace intarsia
