#pragma once
// Predicts what dispatch does with a call, without doing it: the candidate rows, their costs, the choice, the
// collectives.
//
// Rows are those of `Candidates`, from which dispatch takes the first legal one. Everything else (composite ops,
// lowerings, in-place writes) is rehearsed: dispatch runs the call on a simulated mesh, on tensors without data.

#include <map>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "intarsia/comm/trace.h"
#include "intarsia/core/layout.h"

namespace intarsia {

// A tensor that does not exist: only its shape, its layout, and its dtype.
struct Imagined {
  std::vector<int64_t> shape;
  Placements placements;  // missing axes at the end are replicated
  c10::ScalarType dtype = c10::kFloat;
  bool defined = true;  // false: an optional tensor that is left out
};

// The op of that name ("aten::mm", "add.Tensor"), or an error that names the overloads.
c10::OperatorHandle op_to_explain(const std::string& name);

struct Explanation {
  std::string text;         // the full report
  std::string chosen;       // [S(0)], [R] -> [S(0)]
  std::string collectives;  // a plan per input, or what the op itself sends; empty if nothing is sent
  double cost = 0;
  bool along = false;            // the op runs along a sharded dim, and sends parts itself
  bool needs_data = false;       // it was rehearsed with ones (integers: zeros): other values may be sent differently
  std::vector<CommEvent> moves;  // the same as events, with bytes, as dispatch would record them
};

// `op` is "aten::mm"; tensors fill its tensor arguments in order (a list takes those that the tensors behind it leave,
// and several lists share them alike), `arguments` are other arguments by name, and the rest take their defaults.
// Nothing runs and nothing is sent.
Explanation explain(const std::string& op, const std::vector<Imagined>& tensors, const DeviceMesh& mesh,
                    const std::map<std::string, c10::IValue>& arguments = {});

}  // namespace intarsia
