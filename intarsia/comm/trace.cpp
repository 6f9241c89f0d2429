#include "intarsia/comm/trace.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "intarsia/comm/coalesced_events.h"
#include "intarsia/core/world.h"

namespace intarsia {
namespace {

// See Note [Who sees what].
class Observer {
 public:
  explicit Observer(Recorder* recorder) : recorder_(recorder), thread_(std::this_thread::get_id()) {
    if (world_was_chosen()) add(current_world());
  }
  Recorder* recorder() const { return recorder_; }
  bool sees(const World& world) {
    if (thread_ != std::this_thread::get_id()) return worlds_.count(&world) > 0;
    add(world);
    return true;
  }

 private:
  void add(const World& world) {
    if (world.size() > 1) worlds_.insert(&world);  // that of one rank is one for all threads
  }

  Recorder* recorder_;
  std::thread::id thread_;
  std::set<const World*> worlds_;
};

struct Observers {
  std::mutex mutex;
  std::vector<Observer> open;
  std::atomic<int> count{0};
};
Observers& observers() {
  static auto* instance = new Observers;
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
  std::lock_guard lock(observers().mutex);
  observers().open.emplace_back(recorder);
  ++observers().count;
}

void remove_recorder(Recorder* recorder) {
  std::lock_guard lock(observers().mutex);
  auto& open = observers().open;
  auto found = std::find_if(open.begin(), open.end(), [&](auto& one) { return one.recorder() == recorder; });
  if (found == open.end()) return;
  open.erase(found);
  --observers().count;
}

bool recording() { return observers().count.load(std::memory_order_relaxed) > 0; }

template <class Deliver>
static void deliver(const World& world, Deliver deliver) {
  std::lock_guard lock(observers().mutex);
  for (auto& observer : observers().open) {
    if (observer.sees(world)) deliver(*observer.recorder());
  }
}

void record(const World& world, const CommEvent& event) {
  if (CoalescedEventScope::takes(world, event)) return;
  deliver(world, [&](auto& recorder) { recorder.on_comm(event); });
}

void record(const World& world, const FallbackEvent& event) {
  deliver(world, [&](auto& recorder) { recorder.on_fallback(event); });
}

void record(const World& world, const AgreementEvent& event) {
  deliver(world, [&](auto& recorder) { recorder.on_agreement(event); });
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
