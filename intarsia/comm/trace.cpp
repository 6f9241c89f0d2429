#include "intarsia/comm/trace.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "intarsia/comm/coalesced_events.h"

namespace intarsia {
namespace {

struct Recorders {
  std::mutex mutex;
  std::vector<Recorder*> open;
  std::atomic<int> count{0};
};
Recorders& recorders() {
  static auto* instance = new Recorders;
  return *instance;
}

struct Cause {
  const char* op = "";
  bool implicit = false;
};
__attribute__((tls_model("initial-exec"))) thread_local Cause cause_;  // every move reads it

const auto kStart = std::chrono::steady_clock::now();

}  // namespace

std::string str(const CommEvent& event) {
  return event.kind + " " + event.axis + " " + std::to_string(event.bytes()) + "B";
}

void add_recorder(Recorder* recorder) {
  std::lock_guard lock(recorders().mutex);
  recorders().open.push_back(recorder);
  ++recorders().count;
}

void remove_recorder(Recorder* recorder) {
  std::lock_guard lock(recorders().mutex);
  auto& open = recorders().open;
  auto found = std::find(open.begin(), open.end(), recorder);
  if (found == open.end()) return;
  open.erase(found);
  --recorders().count;
}

bool recording() { return recorders().count.load(std::memory_order_relaxed) > 0; }

void record(const CommEvent& event) {
  if (CoalescedEventScope::takes(event)) return;
  std::lock_guard lock(recorders().mutex);
  for (auto* recorder : recorders().open) recorder->on_comm(event);
}

void record(const FallbackEvent& event) {
  std::lock_guard lock(recorders().mutex);
  for (auto* recorder : recorders().open) recorder->on_fallback(event);
}

void record(const AgreementEvent& event) {
  std::lock_guard lock(recorders().mutex);
  for (auto* recorder : recorders().open) recorder->on_agreement(event);
}

double seconds_since_start() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kStart).count();
}

CauseScope::CauseScope(const char* op, bool implicit) : outermost_(!*cause_.op) {
  if (outermost_) cause_ = {op, implicit};
}
CauseScope::~CauseScope() {
  if (outermost_) cause_ = {};
}
const char* CauseScope::op() { return cause_.op; }
bool CauseScope::implicit() { return cause_.implicit; }

const char* CauseScope::spoken(const char* op) {
  if (!*op) return "a direct call";
  return std::strcmp(op, "aten::_local_scalar_dense") == 0 ? "item()" : op;
}

}  // namespace intarsia
