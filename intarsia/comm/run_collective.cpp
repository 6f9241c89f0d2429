#include "intarsia/comm/run_collective.h"

#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "intarsia/comm/agreement_scope.h"
#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/trace.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

// What all traces and errors of a collective have.
struct Named {
  const Engine& engine;
  const Line& line;
  Collective::Kind kind;
  std::optional<ReduceOp> op = {};
  const char* cause = CauseScope::op();

  std::string name() const { return Collective::name(kind, op); }
};

// The error of a collective, with everything that helps to find its other side.
[[noreturn]] void fail(const Named& call, const std::exception& error) {
  auto& line = call.line;
  auto& ranks = line.ranks[0];
  C10_THROW_ERROR(DistBackendError,
                  c10::str("[", call.name(), "] failed on rank ", ranks[line.position[0]], " along axis \"", line.name,
                           "\" (ranks ", c10::ArrayRef<int64_t>(ranks), ", over ", call.engine.carrier(line), ") for ",
                           CauseScope::spoken(call.cause), ": ", message_of(error)));
}

// Waits for other ranks: errors get context, an interruption is passed on unchanged.
template <class Call>
void wait_in(const Named& named, Call call) {
  at::NoGradGuard no_grad;
  with_interrupts([&] {
    try {
      auto guard = around_waits();
      call();
    } catch (const std::exception& error) {
      fail(named, error);
    }
  });
}

void attempt(const Named& named, Wait* wait, c10::function_ref<Wait()> start) {
  wait_in(named, [&] {
    Wait finish = start();
    if (finish && wait) {
      *wait = [finish, named] { wait_in(named, finish); };
    } else if (finish) {
      finish();
    }
  });
}

void run(const Named& named, int64_t sent, int64_t received, Wait* wait, c10::function_ref<Wait()> start) {
  bool agreement = AgreementScope::active();
  auto& line = named.line;
  if (C10_UNLIKELY(judges_implicit_moves()) && CauseScope::implicit() && !agreement) {
    // Also on a rank that itself sends nothing: all ranks of the line get the same answer.
    judge_implicit_move(CauseScope::op(), str(CommEvent{named.name(), line.name, sent, received}), true);
  }
  auto begin = recording() ? seconds_since_start() : 0;
  attempt(named, wait, start);
  if (!recording()) return;
  if (agreement) return record(named.engine, AgreementEvent{CauseScope::op(), line.name});
  record(named.engine, CommEvent{named.name(), line.name, sent, received, CauseScope::op(), CauseScope::implicit(),
                                 begin, seconds_since_start() - begin, named.engine.carrier(line)});
}

ReduceOp carried(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

Wait averaged(Wait wait, const CollectiveRequest& request, int64_t n) {
  if (request.op != ReduceOp::avg) return wait;
  return then(std::move(wait),
              [sums = request.receive, n] { write_once(sums, {}, [&](size_t slot) { sums[slot].div_(n); }); });
}

Wait start(const Engine& engine, const Line& line, const CollectiveRequest& r, bool later) {
  switch (r.kind) {
    case Collective::all_reduce:
      return averaged(engine.all_reduce(line, r.send, r.receive, carried(*r.op), later), r, line.size);
    case Collective::reduce_scatter:
      return averaged(engine.reduce_scatter(line, r.send, *r.send_counts, r.receive, carried(*r.op)), r, line.size);
    case Collective::barrier:
    case Collective::all_gather: return engine.all_gather(line, r.send, r.receive, *r.receive_counts);
    case Collective::halo:
    case Collective::scatter:
    case Collective::mesh_to_mesh:
    case Collective::all_to_all: return engine.all_to_all(line, r.send, *r.send_counts, r.receive, *r.receive_counts);
    case Collective::broadcast: return engine.broadcast(line, r.receive, r.source);
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

void run_collective(const Engine& engine, const Line& line, const CollectiveRequest& request, Wait* wait) {
  run({engine, line, request.kind, request.op}, request.bytes_sent, request.bytes_received, wait,
      [&] { return start(engine, line, request, wait != nullptr); });
}

void run_all_to_all(const Engine& engine, const Line& line, int64_t bytes_sent, int64_t bytes_received, Wait* wait,
                    c10::function_ref<Wait()> start) {
  run({engine, line, Collective::all_to_all}, bytes_sent, bytes_received, wait, start);
}

void run_barrier(const Engine& engine, const Line& line, c10::function_ref<Wait()> start) {
  attempt({engine, line, Collective::barrier}, nullptr, start);
}

}  // namespace intarsia
