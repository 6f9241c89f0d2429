#include "intarsia/job/init.h"

#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "intarsia/job/engines.h"
#include "intarsia/launch/launcher_environment.h"
#include "intarsia/launch/mpi_meeting.h"
#include "intarsia/launch/mpi_plugin.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/flight_report.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout = std::chrono::minutes(5);

const char* environment(const char* name) { return getenv(name); }

// A store that we opened. It stays open until the process ends: the ranks may leave and join again, but not all at
// once.
struct OpenStore {
  Meeting meeting;
  c10::intrusive_ptr<c10d::Store> store;
};

struct State {
  std::recursive_mutex mutex;
  std::optional<OpenStore> opened;
  const Engine* engine = nullptr;  // that joined a job last
  milliseconds timeout{};          // of its waits
  int64_t times = 0;               // how often we have joined: each time has different keys in the store
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

const World& join_store(const EngineKind& engine, const Job& job) {
  return join(make_together("init", engine, job, count_up(job.size)), job.timeout);
}

// Joins over a group that carries the line of all ranks.
const World& join_group(const EngineKind& kind, const Job& job, const c10::intrusive_ptr<c10d::Backend>& group) {
  auto engine = kind(job);
  engine->adopt(count_up(job.size), group);
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

// The rank that serves the store stays until the others have left it.
void leave_store() {
  auto opened = std::exchange(state().opened, std::nullopt);
  if (!opened || !opened->meeting.file.empty() || !opened->meeting.rank_zero_serves) return;
  auto& engine = *state().engine;
  auto rank = engine.hosted()[0];
  leave(*opened->store, rank);
  if (opened->meeting.serves(rank)) wait_until_left(*opened->store, count_up(engine.size()), state().timeout);
}

// mpirun stops all ranks when one has failed: they get half a second to report what they were doing, as under `intarsia
// run`. Only needed if this rank serves the store, where they look up which rank failed first.
constexpr milliseconds kTimeToSpeak{500};

bool others_need_us() {
  auto& now = state();
  return started_mpi() || (now.opened && now.engine && now.opened->meeting.serves(now.engine->hosted()[0]));
}

// In all other cases a rank that fails does not wait: the launcher should notice it first, and the others notice the
// closed connections.
void leave_at_exit(int status, void*) {
  if (status != 0 && others_need_us()) std::this_thread::sleep_for(kTimeToSpeak);
  if (!state().engine) return;
  write_last_flights();
  if (status != 0) return;
  try {
    state().engine->close();
    leave_store();
  } catch (const std::exception&) {
    // The store has ended before us: no rank is left to inform.
  }
  end_mpi();
}

// LibTorch prints some 30 frames after every error, which hide the message between them if there are many ranks.
void leave_out_frames() {
  auto* wanted = environment("INTARSIA_BACKTRACE");
  if (wanted && std::string(wanted) == "1") return;
  c10::SetStackTraceFetcher([] { return std::string("  (INTARSIA_BACKTRACE=1 shows the frames)\n"); });
}

void leave_when_the_process_ends() {
  static int registered = on_exit(leave_at_exit, nullptr);
  (void)registered;
}

Launch launch_of(const InitOptions& options) {
  TORCH_CHECK_VALUE(options.rank.has_value() == options.world_size.has_value(), "[init] only ",
                    options.rank ? "the rank" : "the world size", " was given. Give both or neither.");
  if (!options.rank) return read_launch(environment).value_or(Launch{});
  TORCH_CHECK_VALUE(0 <= *options.rank && *options.rank < *options.world_size, "[init] rank ", *options.rank,
                    " does not exist in a world of ", *options.world_size, ".");
  return Launch{"init", *options.rank, *options.world_size};
}

// Under mpirun, MPI carries the bytes if there is a plugin for that MPI.
EngineKind engine_for(const InitOptions& options, const Launch& launch) {
  auto engine = choose_engine(options.engine);
  bool may_choose = std::string(engine.name) == "auto";
  return may_choose && serves_mpi(environment, launch) && mpi_plugin_serves(launch.by) ? choose_engine("mpi") : engine;
}

// Joins over ranks that MPI connects: no setting has to say where they meet.
const World& join_over_mpi(const EngineKind& engine, const std::shared_ptr<MpiPort>& port, const std::string& job,
                           const InitOptions& options) {
  auto timeout = timeout_of(options);
  Launch launch{"mpi", port->rank, port->size};
  launch.one_host = port->on_this_host == port->size;
  auto interface = options.interface.empty() ? read_interface(environment, {}, launch) : options.interface;
  auto met = meet_over_mpi(*port, interface, timeout);
  state().opened = OpenStore{met.meeting, met.store};
  auto& world = join_store(engine, {port->rank, port->size, own_keys(met.store, job), interface, timeout, port});
  leave_when_the_process_ends();
  return world;
}

}  // namespace

const World& init(const InitOptions& options) {
  std::lock_guard lock(state().mutex);
  if (auto* world = process_world()) return *world;
  auto launch = launch_of(options);
  auto engine = engine_for(options, launch);
  bool over_mpi = std::string(engine.name) == "mpi", asks_mpi = over_mpi && launch.by.empty();
  if (launch.size == 1 && !(asks_mpi && open_mpi_world()->size > 1)) {
    set_process_world(&world_of_one());
    return world_of_one();
  }
  leave_out_frames();
  if (over_mpi && !knows_meeting(environment, launch, options.rendezvous)) {
    return join_over_mpi(engine, open_mpi_world(), launch.job, options);
  }
  auto timeout = timeout_of(options);
  auto meeting = read_meeting(environment, launch, options.rendezvous);
  auto interface = options.interface.empty() ? read_interface(environment, meeting, launch) : options.interface;
  auto store = own_keys(store_at(meeting, launch, timeout), launch.job);
  auto& world = join_store(engine, {launch.rank, launch.size, store, interface, timeout});
  leave_when_the_process_ends();
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

const World& init_from_communicator(int communicator, const std::string& library, const InitOptions& options) {
  std::lock_guard lock(state().mutex);
  if (auto* world = process_world()) return *world;
  auto given = options;
  auto* named = environment("INTARSIA_ENGINE");
  if (given.engine.empty() && !(named && *named)) given.engine = "mpi";
  auto engine = choose_engine(given.engine);
  auto port = open_mpi(communicator, library);
  if (port->size > 1) return join_over_mpi(engine, port, "", given);
  set_process_world(&world_of_one());
  return world_of_one();
}

void finalize() {
  std::lock_guard lock(state().mutex);
  if (state().engine) state().engine->close();
  if (process_world()) write_last_flights();
  next_flight_world();
  set_process_world(nullptr);
}

int64_t rank() {
  auto& world = current_world("rank");
  TORCH_CHECK(world.hosted().size() == 1, "[rank] the world is ", world.text(), ", and this process plays ",
              world.hosted().size(), " ranks. Ask is_first_rank() to do something once, or loop over ",
              "current_world().hosted() or the mesh's slots().");
  return world.hosted()[0];
}

int64_t world_size() { return current_world("world_size").size(); }

int64_t local_rank() {
  auto launch = read_launch(environment);
  return launch ? launch->local_rank : 0;
}

void barrier() { engine_of(current_world("barrier")).barrier(); }

}  // namespace intarsia
