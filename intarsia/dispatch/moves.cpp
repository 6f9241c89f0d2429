#include "intarsia/dispatch/moves.h"

#include <algorithm>

#include "intarsia/comm/implicit_moves.h"
#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

bool sends(const Step& step) { return step.kind != StepKind::narrow && step.kind != StepKind::pend; }

}  // namespace

Shards moved_for(const char* op, const at::Tensor& tensor, const Layout* layout, const Plan& plan) {
  CauseScope cause(op, true);
  if (C10_LIKELY(!judges_implicit_moves()) || !CauseScope::implicit()) return shards_by(tensor, layout, plan);
  judge_implicit_move(CauseScope::op(), str(plan), std::any_of(plan.steps.begin(), plan.steps.end(), sends));
  JudgedScope judged;
  return shards_by(tensor, layout, plan);
}

void settle_for(const char* op, const at::Tensor& tensor) {
  CauseScope cause(op, true);
  auto& body = body_of(tensor);
  auto* done = body.layout->with(settled(body.layout->placements()));
  if (C10_LIKELY(!judges_implicit_moves()) || !CauseScope::implicit()) return body.settle_in_place();
  auto steps = plan(body.layout, done, tensor.sizes(), c10::elementSize(tensor.scalar_type()));
  judge_implicit_move(CauseScope::op(), str(steps), std::any_of(steps.steps.begin(), steps.steps.end(), sends));
  JudgedScope judged;
  body.settle_in_place();
}

}  // namespace intarsia
