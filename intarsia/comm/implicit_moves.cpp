#include "intarsia/comm/implicit_moves.h"

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

// Every move reads it: initial-exec saves the look-up of the thread's block.
__attribute__((tls_model("initial-exec"))) thread_local ImplicitMoves policy_ = ImplicitMoves::allow;
__attribute__((tls_model("initial-exec"))) thread_local bool all_ = false;
__attribute__((tls_model("initial-exec"))) thread_local int judged_ = 0;

}  // namespace

ImplicitMovesScope::ImplicitMovesScope(ImplicitMoves policy, bool all) : outer_policy_(policy_), outer_all_(all_) {
  policy_ = policy;
  all_ = all;
}

ImplicitMovesScope::~ImplicitMovesScope() {
  policy_ = outer_policy_;
  all_ = outer_all_;
}

JudgedScope::JudgedScope() { ++judged_; }
JudgedScope::~JudgedScope() { --judged_; }

bool judges_implicit_moves() { return policy_ != ImplicitMoves::allow && judged_ == 0; }

void judge_implicit_move(const char* op, const std::string& move, bool sends) {
  if (!judges_implicit_moves() || (!all_ && !sends)) return;
  auto text = c10::str("[", op, "] Implicit redistribution occurred for a tensor: ", move,
                       ". Call redistribute on it first, or leave the scope that forbids implicit moves.");
  TORCH_CHECK(policy_ != ImplicitMoves::error, text);
  TORCH_WARN(text);
}

}  // namespace intarsia
