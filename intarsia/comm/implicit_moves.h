#pragma once
// The policy for implicit communication: an op moves parts of its tensors because it needs other layouts, or because it
// works along a sharded dim.

#include <string>

namespace intarsia {

enum class ImplicitMoves {
  allow,  // the default
  warn,   // warn which op moves what
  error,  // raise an error that says what to redistribute
};

// Sets the policy on this thread while it lives. With `all`, moves that send nothing, such as sharding a replica, are
// included.
class ImplicitMovesScope {
 public:
  explicit ImplicitMovesScope(ImplicitMoves policy, bool all = false);
  ~ImplicitMovesScope();
  ImplicitMovesScope(const ImplicitMovesScope&) = delete;
  ImplicitMovesScope& operator=(const ImplicitMovesScope&) = delete;

 private:
  ImplicitMoves outer_policy_;
  bool outer_all_;
};

// Applies the policy to what an op is about to move, given as text. Axis, through which all bytes go, checks every
// collective that dispatch chose, so nothing escapes. Code that has checked a whole plan, or moves no tensor, opens a
// JudgedScope.
void judge_implicit_move(const char* op, const std::string& move, bool sends);
bool judges_implicit_moves();  // whether there is anything to check: otherwise the check costs nothing

// Collectives in this scope have been checked.
class JudgedScope {
 public:
  JudgedScope();
  ~JudgedScope();
  JudgedScope(const JudgedScope&) = delete;
  JudgedScope& operator=(const JudgedScope&) = delete;
};

}  // namespace intarsia
