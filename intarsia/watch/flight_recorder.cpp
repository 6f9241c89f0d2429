#include "intarsia/watch/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <type_traits>

#include "intarsia/watch/ticks.h"

namespace intarsia {
namespace {

static_assert(std::is_trivially_copyable_v<FlightEntry> && sizeof(FlightEntry) % 8 == 0);
constexpr size_t kWords = sizeof(FlightEntry) / 8;

// A slot of the ring. `id` is 0 while the entry is written. Fields that change later are beside it.
struct alignas(64) Seat {
  std::atomic<uint64_t> id{0}, waited{0}, ended{0}, state{FlightEntry::under_way};
  std::atomic<uint64_t> words[kWords];
};

struct Ring {
  std::atomic<uint64_t> begun{0};
  std::atomic<int64_t> world{0};
  Seat seats[kEntriesKept];
  Seat& seat_of(uint64_t id) { return seats[id % kEntriesKept]; }
};
Ring ring_;

int32_t thread_number() {
  static std::atomic<int32_t> threads{0};
  __attribute__((tls_model("initial-exec"))) thread_local int32_t mine = 0;
  if (!mine) mine = ++threads;
  return mine;
}

void write(Seat& seat, const FlightEntry& flight) {
  uint64_t words[kWords];
  std::memcpy(words, &flight, sizeof flight);
  seat.id.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  seat.waited.store(flight.waited, std::memory_order_relaxed);
  for (auto* late : {&seat.ended, &seat.state}) late->store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) seat.words[i].store(words[i], std::memory_order_relaxed);
  seat.id.store(flight.id, std::memory_order_release);
}

std::optional<FlightEntry> read(Seat& seat, uint64_t id) {
  uint64_t words[kWords];
  if (seat.id.load(std::memory_order_acquire) != id) return std::nullopt;
  for (size_t i = 0; i < kWords; ++i) words[i] = seat.words[i].load(std::memory_order_relaxed);
  FlightEntry flight;
  std::memcpy(static_cast<void*>(&flight), words, sizeof flight);
  flight.state = static_cast<FlightEntry::State>(seat.state.load(std::memory_order_relaxed));
  flight.waited = seat.waited.load(std::memory_order_relaxed);
  flight.ended = seat.ended.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (seat.id.load(std::memory_order_relaxed) != id) return std::nullopt;
  return flight;
}

// The slot of an entry that was not overwritten; else null.
Seat* seat_of(const Collective& call) {
  auto& seat = ring_.seat_of(call.entry);
  return call.entry && seat.id.load(std::memory_order_relaxed) == call.entry ? &seat : nullptr;
}

}  // namespace

const RecordedLine* recorded_line(int64_t rank, std::vector<int64_t> ranks, std::string carrier) {
  return new RecordedLine{rank, std::move(ranks), std::move(carrier), ring_.world};
}

void begin_entry(const RecordedLine* line, Collective& call, bool waits) {
  FlightEntry flight;
  flight.id = call.entry = ring_.begun.fetch_add(1, std::memory_order_relaxed) + 1;
  flight.number = call.number;
  flight.line = line;
  flight.cause = call.cause;
  flight.begun = ticks_now();
  if (waits) flight.waited = flight.begun;
  flight.mine = call.count;
  flight.all = call.all;
  flight.even = call.even;
  flight.dims = std::min<size_t>(call.shape.size(), 255);
  std::copy_n(call.shape.begin(), std::min(call.shape.size(), FlightEntry::kDims), flight.shape);
  std::memcpy(flight.axis, call.axis.data(), std::min(call.axis.size(), FlightEntry::kAxis - 1));
  flight.source = static_cast<int32_t>(call.source);
  flight.thread = thread_number();
  flight.kind = call.kind;
  flight.op = call.op ? static_cast<uint8_t>(*call.op) + 1 : 0;
  flight.type = static_cast<int8_t>(call.type);
  flight.moves = call.move != 0;
  if (flight.moves) flight.from = call.from, flight.to = call.to;
  write(ring_.seat_of(flight.id), flight);
}

void wait_for_entry(const Collective& call) {
  auto* seat = seat_of(call);
  if (seat && !seat->waited.load(std::memory_order_relaxed)) seat->waited.store(ticks_now(), std::memory_order_relaxed);
}

void end_entry(const Collective& call, bool well) {
  auto* seat = seat_of(call);
  if (!seat) return;
  seat->ended.store(ticks_now(), std::memory_order_relaxed);
  seat->state.store(well ? FlightEntry::completed : FlightEntry::failed, std::memory_order_relaxed);
}

std::vector<FlightEntry> last_entries(size_t most) {
  std::vector<FlightEntry> flights;
  auto newest = ring_.begun.load();
  auto count = std::min<uint64_t>({newest, most, kEntriesKept});
  for (auto id = newest - count + 1; id <= newest; ++id) {
    if (auto flight = read(ring_.seat_of(id), id)) flights.push_back(*flight);
  }
  return flights;
}

uint64_t entries_begun() { return ring_.begun; }
void next_flight_world() { ++ring_.world; }

std::string FlightEntry::text() const {
  Collective call;
  call.kind = kind;
  if (op) call.op = static_cast<ReduceOp>(op - 1);
  call.type = static_cast<c10::ScalarType>(type);
  call.count = mine;
  call.source = source;
  call.cause = cause;
  call.shape.append(shape, shape + std::min<size_t>(dims, kDims));
  call.move = moves;
  call.from = from;
  call.to = to;
  return call.text();
}

}  // namespace intarsia
