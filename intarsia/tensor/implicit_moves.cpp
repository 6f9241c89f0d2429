#include "intarsia/tensor/implicit_moves.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "intarsia/redistribute/plan.h"

namespace intarsia {
namespace {

thread_local ImplicitMoves policy_ = ImplicitMoves::allow;
thread_local bool all_ = false;

bool sends(const Step& step) { return step.kind != StepKind::narrow && step.kind != StepKind::pend; }

}  // namespace

ImplicitMovesScope::ImplicitMovesScope(ImplicitMoves policy, bool all) : outer_policy_(policy_), outer_all_(all_) {
  policy_ = policy;
  all_ = all;
}

ImplicitMovesScope::~ImplicitMovesScope() {
  policy_ = outer_policy_;
  all_ = outer_all_;
}

void observe_implicit_move(const char* op, const Plan& plan) {
  if (policy_ == ImplicitMoves::allow) return;
  if (!all_ && std::none_of(plan.steps.begin(), plan.steps.end(), sends)) return;
  auto text = c10::str("[", op, "] Implicit redistribution occurred for a tensor: ", str(plan),
                       ". Call redistribute on it first, or leave the scope that forbids implicit moves.");
  TORCH_CHECK(policy_ != ImplicitMoves::error, text);
  TORCH_WARN(text);
}

}  // namespace intarsia
