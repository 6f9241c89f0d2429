#include "intarsia/comm/launch/init.h"

#include <stdlib.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "intarsia/comm/c10d/c10d.h"
#include "intarsia/comm/engines.h"
#include "intarsia/comm/flight/flight.h"
#include "intarsia/comm/flight/report.h"
#include "intarsia/comm/launch/launch.h"
#include "intarsia/comm/launch/rendezvous.h"
#include "intarsia/comm/launch/secret.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout = std::chrono::minutes(5);

const char* environment(const char* name) { return getenv(name); }

// A store that we opened. It stays open until the process ends: the ranks may leave and join again, not all at once.
struct OpenStore {
  Meeting meeting;
  c10::intrusive_ptr<c10d::Store> store;
};

struct State {
  std::recursive_mutex mutex;
  std::optional<OpenStore> opened;
  const Engine* engine = nullptr;  // the last that joined a job
  milliseconds timeout{};          // of its waits
  int64_t times = 0;               // that we have joined: each time has its own keys in the store
};
State& state() {
  static auto* instance = new State;
  return *instance;
}

milliseconds timeout_of(const InitOptions& options) {
  if (options.timeout) return *options.timeout;
  auto seconds = read_number(environment, "INTARSIA_TIMEOUT");
  TORCH_CHECK_VALUE(!seconds || *seconds > 0, "[init] INTARSIA_TIMEOUT is 0. Give a number of seconds above 0.");
  return seconds ? milliseconds(*seconds * 1000) : kDefaultTimeout;
}

std::vector<int64_t> count_up(int64_t n) {
  std::vector<int64_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::string engine_key(int64_t rank) { return "engine/" + std::to_string(rank); }

// Worlds live until the process ends, so engines are never freed.
const World& join(std::unique_ptr<Engine> made, milliseconds timeout) {
  auto* engine = made.release();
  ++state().times;
  state().engine = engine;
  state().timeout = timeout;
  set_process_world(engine);
  report_on_signal();
  return *engine;
}

// Ranks that ask for different engines would wait for each other in different places.
void check_same_engine(const Job& job, const std::string& mine) {
  std::map<std::string, std::vector<int64_t>> asking;
  for (int64_t rank = 0; rank < job.size; ++rank) {
    asking[rank == job.rank ? mine : job.store->get_to_str(engine_key(rank))].push_back(rank);
  }
  if (asking.size() == 1) return;
  std::string text;
  for (auto& [engine, ranks] : asking) {
    text += c10::str(text.empty() ? "" : ", ", engine, " on ranks ", c10::ArrayRef<int64_t>(ranks));
  }
  TORCH_CHECK_VALUE(false, "[init] the ranks ask for different engines: ", text,
                    ". Set INTARSIA_ENGINE or InitOptions::engine, and INTARSIA_SECRET, to the same on all.");
}

const World& join_store(const EngineKind& engine, const Job& job) {
  auto asked = engine.name + std::string(job_secret().empty() ? "" : " with a secret");  // ranks without one would not take part in proofs
  job.store->set(engine_key(job.rank), asked);
  arrive("init", *job.store, job.rank, count_up(job.size), job.timeout);
  check_same_engine(job, asked);
  return join(engine(job), job.timeout);
}

// Over a group that carries the line of all ranks.
const World& join_group(const EngineKind& kind, const Job& job, const c10::intrusive_ptr<c10d::Backend>& group) {
  auto engine = kind(job);
  engine_with_groups("init_from_group", *engine).adopt(count_up(job.size), group);
  return join(std::move(engine), job.timeout);
}

c10::intrusive_ptr<c10d::Store> own_keys(c10::intrusive_ptr<c10d::Store> store, const std::string& job) {
  auto prefix = c10::str("intarsia/", job, "/", state().times);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

c10::intrusive_ptr<c10d::Store> store_at(const Meeting& meeting, const Launch& launch, milliseconds timeout) {
  auto& opened = state().opened;
  if (!opened || opened->meeting.text() != meeting.text()) {
    opened = OpenStore{meeting, open_store(meeting, launch.rank, launch.size, timeout)};
  }
  return opened->store;
}

// The rank that serves the store stays until the others are done with it.
void leave_store() {
  auto opened = std::exchange(state().opened, std::nullopt);
  if (!opened || !opened->meeting.file.empty() || !opened->meeting.rank_zero_serves) return;
  auto& engine = *state().engine;
  auto rank = engine.hosted()[0];
  leave(*opened->store, rank);
  if (opened->meeting.serves(rank)) wait_until_left(*opened->store, count_up(engine.size()), state().timeout);
}

// A rank that fails does not wait: the launcher should hear of it first, and the others notice by the closed connections.
void leave_at_exit(int status, void*) {
  if (!state().engine) return;
  write_last_flights();
  if (status != 0) return;
  try {
    state().engine->close();
    leave_store();
  } catch (const std::exception&) {
    // The store has gone before us: there is nobody left to tell.
  }
}

Launch launch_of(const InitOptions& options) {
  TORCH_CHECK_VALUE(options.rank.has_value() == options.world_size.has_value(), "[init] only ",
                    options.rank ? "the rank" : "the world size", " was given. Give both or neither.");
  if (!options.rank) return read_launch(environment).value_or(Launch{});
  TORCH_CHECK_VALUE(0 <= *options.rank && *options.rank < *options.world_size, "[init] rank ", *options.rank,
                    " does not exist in a world of ", *options.world_size, ".");
  return Launch{"init", *options.rank, *options.world_size};
}

}  // namespace

const World& init(const InitOptions& options) {
  std::lock_guard lock(state().mutex);
  if (auto* world = process_world()) return *world;
  auto engine = choose_engine(options.engine);
  auto launch = launch_of(options);
  if (launch.size == 1) {
    set_process_world(&world_of_one());
    return world_of_one();
  }
  auto timeout = timeout_of(options);
  auto meeting = read_meeting(environment, launch, options.rendezvous);
  auto interface = options.interface.empty() ? read_interface(environment, meeting, launch) : options.interface;
  auto store = own_keys(store_at(meeting, launch, timeout), launch.job);
  auto& world = join_store(engine, {launch.rank, launch.size, store, interface, timeout});
  static int registered = on_exit(leave_at_exit, nullptr);
  (void)registered;
  return world;
}

const World& init_from(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, const InitOptions& options) {
  std::lock_guard lock(state().mutex);
  if (auto* world = process_world()) return *world;
  auto engine = choose_engine(options.engine);
  Launch launch{"init_from", rank, size};
  auto interface = options.interface.empty() ? read_interface(environment, {}, launch) : options.interface;
  return join_store(engine, {rank, size, own_keys(store, ""), interface, timeout_of(options)});
}

const World& init_from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const InitOptions& options) {
  std::lock_guard lock(state().mutex);
  if (auto* world = process_world()) return *world;
  auto engine = choose_engine(options.engine);
  auto store = group->getStore() ? own_keys(group->getStore(), "") : nullptr;
  Launch launch{"init_from_group", group->getRank(), group->getSize()};
  auto interface = options.interface.empty() ? read_interface(environment, {}, launch) : options.interface;
  auto devices = group->getDeviceTypes();
  bool cpu = devices.empty() || std::find(devices.begin(), devices.end(), at::kCPU) != devices.end();
  auto backend = group->getBackend(cpu ? at::kCPU : devices[0].type());
  return join_group(engine, {launch.rank, launch.size, store, interface, timeout_of(options)}, backend);
}

const World& init_from_group(const c10::intrusive_ptr<c10d::Backend>& group, const InitOptions& options) {
  std::lock_guard lock(state().mutex);
  if (auto* world = process_world()) return *world;
  auto engine = choose_engine(options.engine);
  return join_group(engine, {group->getRank(), group->getSize(), nullptr, "", timeout_of(options)}, group);
}

void finalize() {
  std::lock_guard lock(state().mutex);
  if (state().engine) state().engine->close();
  if (process_world()) write_last_flights();
  next_flight_world();
  set_process_world(nullptr);
}

int64_t rank() {
  auto& world = current_world();
  TORCH_CHECK(world.hosted().size() == 1, "[rank] the world is ", world.text(), ", and this process plays ",
              world.hosted().size(), " ranks. Loop over current_world().hosted() or the mesh's slots().");
  return world.hosted()[0];
}

int64_t world_size() { return current_world().size(); }

int64_t local_rank() {
  auto launch = read_launch(environment);
  return launch ? launch->local_rank : 0;
}

void barrier() { engine_of(current_world()).barrier(); }

}  // namespace intarsia
