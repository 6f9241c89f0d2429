#pragma once
// Chooses how a call of an op runs, the layouts its inputs are brought to and the layouts of its outputs.
//
// Note [Routes]
// One generator yields everything that could serve a call, in order of preference: dispatch takes the first candidate
// that is legal, and explain lists them all, so the two cannot disagree.

#include <optional>
#include <vector>

#include "intarsia/core/layout.h"
#include "intarsia/rules/lowering.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

struct Advice;

enum class Route {
  row,       // each rank runs the op on its shards, in the layouts of the rule's rows
  joint,     // the ranks exchange parts of their shards and run it together, by Rule::joint
  lowering,  // other ops and collectives replace it
  fallback,  // no rule applies: it runs on whole tensors
};

struct Choice {
  Route route = Route::row;
  std::vector<const Layout*> in;  // null where the input is plain or undefined; a lowering has neither `in` nor `out`
  std::vector<const Layout*> out;
  double cost = 0;
  bool legal = true;  // its pending reductions have one value and its layouts fit together, which rows for single axes
                      // cannot tell
  bool operator==(const Choice& other) const { return route == other.route && in == other.in && out == other.out; }
};

struct Question {
  const Rule* rule;  // null: the op runs on whole tensors
  const OpCall& call;
  DeviceMesh mesh;
  std::vector<const Layout*> now;  // the present layouts; null where the input is plain or undefined
  int written = -1;                // the input that is written in place: it and output 0 keep its layout
  bool lowered = false;            // the op's planner has a lowering for the call
  const Advice* advice = nullptr;  // of a guide (guide.h)
};

// Yields the candidates for a call: the guide's advice, if the rows allow it; the op's lowering; what moves nothing;
// the others by cost, and equal costs in the order of the rows. Each is computed when it is asked for: most calls have
// one that moves nothing, which is cheap to find. With a lowering, the question's outputs need not be known until a
// candidate after it is asked for. Deterministic across ranks.
class Candidates {
 public:
  explicit Candidates(const Question& question) : question_(question) {}
  std::optional<Choice> next();

 private:
  enum class Stage { advised, lowering, free, view, priced };
  std::optional<Choice> first_of(Stage stage) const;

  const Question& question_;
  Stage stage_ = Stage::advised;
  std::vector<Choice> given_, priced_;
  size_t next_ = 0;
  bool is_priced_ = false;
};

// The first candidate that is legal; none if an input written in place would have to change its layout.
std::optional<Choice> choose(const Question& question);

}  // namespace intarsia
