#pragma once
// Functions that LibTorch makes of other ops: calls of every one of them, by namespace.

#include <vector>

#include "tests/rules/harness.h"

namespace intarsia {

void add_torch_composites(std::vector<Sample>& list);
void add_structure_composites(std::vector<Sample>& list);
void add_nn_composites(std::vector<Sample>& list);
void add_recurrent_composites(std::vector<Sample>& list);
void add_linalg_composites(std::vector<Sample>& list);
void add_fft_composites(std::vector<Sample>& list);
void add_special_composites(std::vector<Sample>& list);

inline const c10::IValue kNone;  // an argument that is left out

// Adds the same call of several ops.
struct AddCalls {
  std::vector<Sample>& list;
  void operator()(std::initializer_list<const char*> ops, const std::vector<c10::IValue>& args) const {
    for (std::string op : ops) list.push_back({"aten::" + op, args});
  }
};

}  // namespace intarsia
