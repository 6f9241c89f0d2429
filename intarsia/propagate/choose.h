#pragma once
// Picks, for one call of an op, the layouts its inputs are brought to and the layouts of its outputs.

#include <optional>
#include <vector>

#include "intarsia/core/layout.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

struct Choice {
  std::vector<const Layout*> in;   // null where the input is plain or undefined
  std::vector<const Layout*> out;
  double cost = 0;
  bool along = false;  // by a row of Rule::along, on some axis
};

struct Question {
  const Rule* rule;  // null: the op runs on whole tensors
  const OpCall& call;
  DeviceMesh mesh;
  std::vector<const Layout*> now;  // the present layouts; null where the input is plain or undefined
  int written = -1;                // the input that is written in place: it and output 0 keep its layout
};

// All choices that the rows allow, and in the order in which `choose` takes them: what a guide advises, what moves
// nothing, the others by their costs; equal costs keep the order of the rows. Deterministic across ranks.
std::vector<Choice> choices(const Question& question);

// Whether a choice has one value and its layouts fit together, which rows for single axes cannot tell.
bool is_legal(const Question& question, const Choice& choice);

// What the guide advises (guide.h), if there is one and the rows allow it.
std::optional<Choice> choose_as_advised(const Question& question);

// The one that is advised, or else the cheapest legal one; none if an input written in place would have to change its layout.
std::optional<Choice> choose(const Question& question);

}  // namespace intarsia
