#pragma once
// What happens when an op moves parts of its tensors by itself: because it needs them in other layouts than they lie
// in, or because it works along a dim that is cut.

#include <string>

namespace intarsia {

enum class ImplicitMoves {
  allow,  // the default
  warn,   // say which op moves what
  error,  // refuse, and say what to redistribute
};

// Sets the policy on this thread while it lives. Moves that send nothing, such as cutting a replica, count if `all`.
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

// Applies the policy to what an op is about to move, told as text. Every collective that dispatch chose is judged at
// the one door for bytes (Axis), so nothing escapes; whoever has judged a whole plan, or moves no tensor, says so by a
// JudgedScope.
void judge_implicit_move(const char* op, const std::string& move, bool sends);
bool judges_implicit_moves();  // whether there is anything to judge: the rest costs nothing then

class JudgedScope {
 public:
  JudgedScope();
  ~JudgedScope();
  JudgedScope(const JudgedScope&) = delete;
  JudgedScope& operator=(const JudgedScope&) = delete;
};

}  // namespace intarsia
