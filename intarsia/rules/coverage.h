#pragma once
// How every ATen op is served: by a rule, by the rule of another op, by decomposition into other ops, or on whole
// tensors.

#include <string>
#include <vector>

namespace intarsia {

enum class Served { rule, derived, composite, random, fallback };

struct Coverage {
  std::string op;  // aten::add_.Tensor
  Served served;
  std::string detail;  // the family of the rule, or the op that it is derived from
};

// All ATen ops, by name.
std::vector<Coverage> coverage();

std::string str(Served served);

// The text of docs/ops.md.
std::string coverage_page();

}  // namespace intarsia
