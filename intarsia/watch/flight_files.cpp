#include "intarsia/watch/flight_files.h"

#include <cstdio>
#include <initializer_list>
#include <map>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/serialization/pickler.h>

namespace intarsia {
namespace {

using Value = c10::IValue;

constexpr auto kFormat = "2.10";  // of PyTorch's dumps

Value dict(std::initializer_list<std::pair<const char*, Value>> items) {
  c10::impl::GenericDict made(c10::AnyType::get(), c10::AnyType::get());
  for (auto& [key, value] : items) made.insert(key, value);
  return made;
}

Value list(const std::vector<Value>& values) {
  c10::impl::GenericList made(c10::AnyType::get());
  for (auto& value : values) made.push_back(value);
  return made;
}

// What Python's pickle.load reads: without the tags by which TorchScript knows the types of lists and dicts.
std::string pickled(const Value& value) {
  std::string bytes;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { bytes.append(data, size); }, nullptr, nullptr,
                              nullptr, nullptr, false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return bytes;
}

// Names are truncated, maybe inside a character of several bytes.
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

// What fr_trace compares. It treats sizes of all_gather and reduce_scatter that differ between ranks as an error, so
// where they may differ, every rank reports the sum of all.
struct Sizes {
  const char* name;
  int64_t in, out;
};
Sizes sizes_of(const FlightEntry& flight) {
  switch (flight.kind) {
    case Collective::all_reduce: return {"all_reduce", flight.mine, flight.mine};
    case Collective::broadcast: return {"broadcast", flight.mine, flight.mine};
    case Collective::halo:
    case Collective::scatter:
    case Collective::mesh_to_mesh:
    case Collective::all_to_all: return {"all_to_all", flight.mine, flight.all};
    case Collective::barrier:
    case Collective::all_gather:
      if (flight.even) return {"all_gather", flight.mine, flight.all};
      return {"all_gather_v", flight.all, flight.all};
    case Collective::reduce_scatter:
      if (flight.even) return {"reduce_scatter", flight.mine, flight.all};
      return {"reduce_scatter_v", flight.mine, flight.mine};
  }
  return {"all_reduce", 0, 0};
}

Value entry_of(const FlightEntry& flight, const TickScale& scale) {
  auto sizes = sizes_of(flight);
  auto type = list({c10::toString(static_cast<c10::ScalarType>(flight.type))});
  auto begun = scale.ns(flight.begun), ended = flight.ended ? scale.ns(flight.ended) : 0;
  auto frame = dict({{"name", plain_letters(flight.text())}, {"filename", ""}, {"line", int64_t{0}}});
  return dict({
      {"record_id", static_cast<int64_t>(flight.id) - 1},
      {"pg_id", int64_t{0}},
      {"process_group", c10::ivalue::Tuple::create(group_name(flight), plain_letters(flight.axis))},
      {"collective_seq_id", static_cast<int64_t>(flight.number)},
      {"p2p_seq_id", int64_t{0}},
      {"op_id", static_cast<int64_t>(flight.id) - 1},
      {"is_p2p", false},
      // The tool knows gloo, not shm; "engine" has the real one.
      {"profiling_name", c10::str("gloo:", sizes.name)},
      {"engine", flight.line->carrier},
      {"time_created_ns", begun},
      {"time_discovered_started_ns", begun},
      {"time_discovered_completed_ns", flight.state == FlightEntry::completed ? ended : int64_t{0}},
      {"input_sizes", list({list({sizes.in})})},
      {"output_sizes", list({list({sizes.out})})},
      {"input_dtypes", type},
      {"output_dtypes", type},
      {"state", flight.state == FlightEntry::completed ? "completed" : "started"},
      {"retired", flight.state != FlightEntry::under_way},
      {"frames", list({frame})},
  });
}

Value groups_of(const std::vector<FlightEntry>& flights) {
  std::map<std::string, const FlightEntry*> groups;
  for (auto& flight : flights) groups.emplace(group_name(flight), &flight);
  c10::impl::GenericDict made(c10::AnyType::get(), c10::AnyType::get());
  for (auto& [name, flight] : groups) {
    made.insert(name, dict({{"name", name},
                            {"desc", plain_letters(flight->axis)},
                            {"ranks", c10::str(c10::ArrayRef<int64_t>(flight->line->ranks))}}));
  }
  return made;
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

// A collective is a separate event, which may overlap others; a wait is what a thread does meanwhile.
std::string events_of(const FlightEntry& flight, const TickScale& scale, int64_t last) {
  auto rank = flight.line->rank;
  auto begun = scale.ns(flight.begun), ended = flight.ended ? scale.ns(flight.ended) : last;
  auto name = quoted(Collective::name(flight.kind));
  auto id =
      c10::str("\"cat\":\"collective\",\"name\":", name, ",\"id\":", flight.id, ",\"tid\":", flight.thread, ",\"ts\":");
  auto* state = flight.state == FlightEntry::completed ? "done"
                : flight.state == FlightEntry::failed  ? "failed"
                                                       : "under way";
  auto args = c10::str(",\"args\":{\"what\":", quoted(flight.text()), ",\"axis\":", quoted(flight.axis),
                       ",\"ranks\":", quoted(c10::str(c10::ArrayRef<int64_t>(flight.line->ranks))),
                       ",\"number\":", flight.number, ",\"engine\":", quoted(flight.line->carrier),
                       ",\"state\":", quoted(state), "}");
  auto text = event("b", rank, id + microseconds(begun) + args) + event("e", rank, id + microseconds(ended));
  if (!flight.waited) return text;
  auto waited = scale.ns(flight.waited);
  return text + event("X", rank,
                      c10::str("\"cat\":\"wait\",\"name\":\"wait for ", Collective::name(flight.kind),
                               "\",\"tid\":", flight.thread, ",\"ts\":", microseconds(waited),
                               ",\"dur\":", microseconds(std::max<int64_t>(ended - waited, 0)), args));
}

}  // namespace

std::string flights_as_pickle(const std::vector<FlightEntry>& flights, const TickScale& scale) {
  std::vector<Value> entries;
  for (auto& flight : flights) entries.push_back(entry_of(flight, scale));
  return pickled(dict({{"version", kFormat}, {"pg_config", groups_of(flights)}, {"entries", list(entries)}}));
}

std::string flights_as_timeline(const std::vector<FlightEntry>& flights, const TickScale& scale) {
  std::string text = "{\"traceEvents\":[\n";
  auto rank = flights.empty() ? 0 : flights.back().line->rank;
  auto last = scale.ns(ticks_now());
  for (auto& flight : flights) text += events_of(flight, scale, last);
  // A list may not end in a comma, and a process has a name.
  return text + c10::str("{\"ph\":\"M\",\"pid\":", rank, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank ", rank,
                         "\"}}\n]}\n");
}

}  // namespace intarsia
