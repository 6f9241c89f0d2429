#include "intarsia/watch/flight_files.h"

#include <cstdio>
#include <map>

#include <c10/util/StringUtil.h>

#include "intarsia/watch/pickle.h"

namespace intarsia {
namespace {

constexpr auto kFormat = "2.10";  // of PyTorch's dumps

// Names are cut off somewhere, maybe inside a letter of several bytes.
std::string plain_letters(const std::string& text) {
  auto result = text;
  for (auto& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return result;
}

std::string group_name(const FlightEntry& flight) {
  auto world = flight.line->world ? c10::str(" in world ", flight.line->world) : "";
  return plain_letters(c10::str(flight.axis, " ", c10::ArrayRef<int64_t>(flight.line->ranks), world));
}

// What fr_trace compares. It takes sizes of all_gather and reduce_scatter that differ between ranks for a mistake, so where they may,
// every rank tells the sum of all.
struct Sizes {
  const char* name;
  int64_t in, out;
};
Sizes sizes_of(const FlightEntry& flight) {
  switch (flight.kind) {
    case Collective::all_reduce: return {"all_reduce", flight.mine, flight.mine};
    case Collective::broadcast: return {"broadcast", flight.mine, flight.mine};
    case Collective::all_to_all: return {"all_to_all", flight.mine, flight.all};
    case Collective::all_gather:
      if (flight.even) return {"all_gather", flight.mine, flight.all};
      return {"all_gather_v", flight.all, flight.all};
    case Collective::reduce_scatter:
      if (flight.even) return {"reduce_scatter", flight.mine, flight.all};
      return {"reduce_scatter_v", flight.mine, flight.mine};
  }
  return {"all_reduce", 0, 0};
}

Pickle entry_of(const FlightEntry& flight, const TickScale& scale) {
  auto sizes = sizes_of(flight);
  auto list_of = [](const Pickle& one) { return Pickle::list({one}); };
  auto type = list_of(Pickle::text(c10::toString(static_cast<c10::ScalarType>(flight.type))));
  auto begun = scale.ns(flight.begun), ended = flight.ended ? scale.ns(flight.ended) : 0;
  auto frame = Pickle::dict({{"name", Pickle::text(plain_letters(flight.text()))}, {"filename", Pickle::text("")},
                             {"line", Pickle::number(0)}});
  return Pickle::dict({
      {"record_id", Pickle::number(static_cast<int64_t>(flight.id) - 1)},
      {"pg_id", Pickle::number(0)},
      {"process_group", Pickle::pair(Pickle::text(group_name(flight)), Pickle::text(plain_letters(flight.axis)))},
      {"collective_seq_id", Pickle::number(static_cast<int64_t>(flight.number))},
      {"p2p_seq_id", Pickle::number(0)},
      {"op_id", Pickle::number(static_cast<int64_t>(flight.id) - 1)},
      {"is_p2p", Pickle::truth(false)},
      // The tool knows gloo, not shm; "engine" has the truth.
      {"profiling_name", Pickle::text(c10::str("gloo:", sizes.name))},
      {"engine", Pickle::text(flight.line->carrier)},
      {"time_created_ns", Pickle::number(begun)},
      {"time_discovered_started_ns", Pickle::number(begun)},
      {"time_discovered_completed_ns", Pickle::number(flight.state == FlightEntry::completed ? ended : 0)},
      {"input_sizes", list_of(Pickle::sizes({sizes.in}))},
      {"output_sizes", list_of(Pickle::sizes({sizes.out}))},
      {"input_dtypes", type},
      {"output_dtypes", type},
      {"state", Pickle::text(flight.state == FlightEntry::completed ? "completed" : "started")},
      {"retired", Pickle::truth(flight.state != FlightEntry::under_way)},
      {"frames", list_of(frame)},
  });
}

Pickle groups_of(const std::vector<FlightEntry>& flights) {
  std::map<std::string, Pickle> groups;
  for (auto& flight : flights) {
    auto name = group_name(flight);
    groups.emplace(name, Pickle::dict({{"name", Pickle::text(name)}, {"desc", Pickle::text(plain_letters(flight.axis))},
                                       {"ranks", Pickle::text(c10::str(c10::ArrayRef<int64_t>(flight.line->ranks)))}}));
  }
  return Pickle::dict({groups.begin(), groups.end()});
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (auto c : plain_letters(text)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

std::string microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(ns / 1000), static_cast<int>(ns % 1000));
  return text;
}

std::string event(const char* phase, int64_t rank, const std::string& more) {
  return c10::str("{\"ph\":\"", phase, "\",\"pid\":", rank, ",", more, "},\n");
}

// A collective is an event of its own, which may overlap others; a wait is what a thread does meanwhile.
std::string events_of(const FlightEntry& flight, const TickScale& scale, int64_t last) {
  auto rank = flight.line->rank;
  auto begun = scale.ns(flight.begun), ended = flight.ended ? scale.ns(flight.ended) : last;
  auto name = quoted(Collective::name(flight.kind));
  auto id = c10::str("\"cat\":\"collective\",\"name\":", name, ",\"id\":", flight.id, ",\"tid\":", flight.thread, ",\"ts\":");
  auto* state = flight.state == FlightEntry::completed ? "done" : flight.state == FlightEntry::failed ? "failed" : "under way";
  auto args = c10::str(",\"args\":{\"what\":", quoted(flight.text()), ",\"axis\":", quoted(flight.axis), ",\"ranks\":",
                       quoted(c10::str(c10::ArrayRef<int64_t>(flight.line->ranks))), ",\"number\":", flight.number,
                       ",\"engine\":", quoted(flight.line->carrier), ",\"state\":", quoted(state), "}");
  auto text = event("b", rank, id + microseconds(begun) + args) + event("e", rank, id + microseconds(ended));
  if (!flight.waited) return text;
  auto waited = scale.ns(flight.waited);
  return text + event("X", rank, c10::str("\"cat\":\"wait\",\"name\":\"wait for ", Collective::name(flight.kind), "\",\"tid\":",
                                          flight.thread, ",\"ts\":", microseconds(waited), ",\"dur\":",
                                          microseconds(std::max<int64_t>(ended - waited, 0)), args));
}

}  // namespace

std::string flights_as_pickle(const std::vector<FlightEntry>& flights, const TickScale& scale) {
  std::vector<Pickle> entries;
  for (auto& flight : flights) entries.push_back(entry_of(flight, scale));
  return Pickle::dict({{"version", Pickle::text(kFormat)}, {"pg_config", groups_of(flights)}, {"entries", Pickle::list(entries)}})
      .pickled();
}

std::string flights_as_timeline(const std::vector<FlightEntry>& flights, const TickScale& scale) {
  std::string text = "{\"traceEvents\":[\n";
  auto rank = flights.empty() ? 0 : flights.back().line->rank;
  auto last = scale.ns(ticks_now());
  for (auto& flight : flights) text += events_of(flight, scale, last);
  // A list may not end in a comma, and a process has a name.
  return text + c10::str("{\"ph\":\"M\",\"pid\":", rank, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank ", rank, "\"}}\n]}\n");
}

}  // namespace intarsia
