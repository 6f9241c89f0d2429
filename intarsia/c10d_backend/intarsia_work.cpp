#include "intarsia/c10d_backend/intarsia_work.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

double seconds_of(milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

CollectiveWork::CollectiveWork(About about, const std::vector<at::Tensor>& inputs,
                               std::shared_ptr<PendingCollective> what, std::shared_ptr<PendingCollectives> all)
    : Work(about.rank, about.type, about.title, inputs),
      about_(std::move(about)),
      what_(std::move(what)),
      all_(std::move(all)) {}

CollectiveWork::~CollectiveWork() {
  if (!what_->over()) hand_over();
}

void CollectiveWork::hand_over() {
  if (!handed_over_.exchange(true)) all_->take(what_);
}

bool CollectiveWork::isCompleted() {
  if (what_->over()) return true;
  hand_over();
  return what_->over();
}

bool CollectiveWork::isSuccess() const { return what_->over() && !what_->error(); }
std::exception_ptr CollectiveWork::exception() const { return what_->error(); }
std::vector<at::Tensor> CollectiveWork::result() { return what_->results(); }

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  auto future = what_->future();
  if (!what_->over()) hand_over();
  return future;
}

bool CollectiveWork::wait(milliseconds timeout) {
  auto time = timeout > kNoTimeout ? timeout : about_.timeout;
  with_interrupts([&] {
    auto guard = around_waits();
    if (time < about_.engine_timeout && !what_->over()) wait_within(time);
    what_->finish();
  });
  std::lock_guard lock(mutex_);
  if (auto end = std::exchange(recordFunctionEndCallback_, nullptr)) end();
  return true;
}

// The engine's waits have one time-out only.
void CollectiveWork::wait_within(milliseconds time) {
  hand_over();
  if (what_->wait_until(Clock::now() + time)) return;
  C10_THROW_ERROR(DistBackendError,
                  c10::str(about_.where, " has not finished within ", seconds_of(time),
                           " s. Stuck, gone, or running other code: look at the output of the other ranks."));
}

MessageWork::MessageWork(int rank, c10d::OpType type, c10::intrusive_ptr<c10d::Work> message, std::string where,
                         milliseconds timeout, std::optional<Target> to)
    : Work(rank, type), message_(std::move(message)), where_(std::move(where)), timeout_(timeout), to_(std::move(to)) {}

bool MessageWork::wait(milliseconds timeout) {
  with_interrupts([&] {
    auto guard = around_waits();
    std::lock_guard once(waiting_);
    if (!isCompleted()) wait_for_message(timeout > kNoTimeout ? timeout : timeout_);
  });
  std::lock_guard lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void MessageWork::wait_for_message(milliseconds time) {
  auto deadline = Clock::now() + time;
  try {
    auto left = [&] { return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1)); };
    Nudges nudges(message_.get());
    while (!message_->wait(left())) check_interrupts();
  } catch (const std::exception& error) {
    auto why = Clock::now() < deadline ? plain_text(error) : c10::str("nothing came within ", seconds_of(time), " s");
    auto text = c10::str(where_, " failed: ", why, ". See what the other rank does.");
    return finish(std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, text)));
  }
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  if (to_) to_->fill();
  finish();
}

}  // namespace intarsia
