#include "intarsia/comm/run_collective.h"

#include <ATen/core/grad_mode.h>

#include "intarsia/comm/agreement_scope.h"
#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

// The error of a collective, with everything that helps to find its other side.
[[noreturn]] void fail(const Engine& engine, const Line& line, const std::string& kind, const char* cause,
                       const std::exception& error) {
  auto& ranks = line.ranks[0];
  C10_THROW_ERROR(DistBackendError,
                  c10::str("[", kind, "] failed on rank ", ranks[line.position[0]], " along axis \"", line.name,
                           "\" (ranks ", c10::ArrayRef<int64_t>(ranks), ", over ", engine.carrier(line), ") for ",
                           CauseScope::spoken(cause), ": ", message_of(error)));
}

// Waits for other ranks: errors are named, an interruption comes out as what it is.
template <class Call>
void wait_in(const Engine& engine, const Line& line, const std::string& kind, const char* cause, Call call) {
  at::NoGradGuard no_grad;
  with_interrupts([&] {
    try {
      auto guard = around_waits();
      call();
    } catch (const std::exception& error) {
      fail(engine, line, kind, cause, error);
    }
  });
}

void attempt(const Engine& engine, const Line& line, const std::string& kind, Wait* wait,
             c10::function_ref<Wait()> start) {
  wait_in(engine, line, kind, CauseScope::op(), [&] {
    Wait finish = start();
    if (finish && wait) {
      *wait = [finish, &engine, &line, kind, cause = CauseScope::op()] { wait_in(engine, line, kind, cause, finish); };
    } else if (finish) {
      finish();
    }
  });
}

}  // namespace

void run_collective(const Engine& engine, const Line& line, std::string kind, int64_t sent, int64_t received,
                    Wait* wait, c10::function_ref<Wait()> start) {
  if (C10_UNLIKELY(judges_implicit_moves()) && CauseScope::implicit()) {
    // Also on a rank that itself sends nothing: all ranks of the line get the same answer.
    judge_implicit_move(CauseScope::op(), str(CommEvent{kind, line.name, sent, received}), true);
  }
  auto begin = recording() ? seconds_since_start() : 0;
  attempt(engine, line, kind, wait, start);
  if (!recording()) return;
  if (AgreementScope::active()) return record(engine, AgreementEvent{CauseScope::op(), line.name});
  record(engine, CommEvent{std::move(kind), line.name, sent, received, CauseScope::op(), CauseScope::implicit(), begin,
                           seconds_since_start() - begin, engine.carrier(line)});
}

void run_collective_unrecorded(const Engine& engine, const Line& line, const std::string& kind,
                               c10::function_ref<Wait()> start) {
  attempt(engine, line, kind, nullptr, start);
}

}  // namespace intarsia
