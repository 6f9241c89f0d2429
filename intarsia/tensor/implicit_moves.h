#pragma once
// What happens when an op needs its tensors in other layouts than they lie in, and so would move them by itself.

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

struct Plan;
// Applies the policy to the plan that brings an argument of an op to the layout that it needs.
void observe_implicit_move(const char* op, const Plan& plan);

}  // namespace intarsia
