#include "intarsia/debug/comm_debug_mode.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/core/world.h"
#include "intarsia/debug/text_table.h"

namespace intarsia {
namespace {

std::string number(double value, const char* form) {
  char text[32];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

std::string milliseconds(double seconds) { return number(seconds * 1e3, "%.3f"); }

// A JSON string; control characters as \u00XX.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (unsigned char c : text) {
    if (c < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      result += escaped;
    } else {
      if (c == '"' || c == '\\') result += '\\';
      result += static_cast<char>(c);
    }
  }
  return result + "\"";
}

std::string metadata(const char* what, int64_t rank, size_t lane, const std::string& name) {
  return std::string("{\"ph\": \"M\", \"name\": \"") + what + "\", \"pid\": " + std::to_string(rank) +
         ", \"tid\": " + std::to_string(lane) + ", \"args\": {\"name\": " + quoted(name) + "}}";
}

// A complete event ("X") with times in microseconds.
std::string duration_event(const CommEvent& event, int64_t rank, size_t lane) {
  return "{\"ph\": \"X\", \"name\": " + quoted(event.kind) +
         ", \"cat\": " + quoted(event.implicit ? "implicit" : "explicit") + ", \"pid\": " + std::to_string(rank) +
         ", \"tid\": " + std::to_string(lane) + ", \"ts\": " + number(event.start * 1e6, "%.3f") +
         ", \"dur\": " + number(event.seconds * 1e6, "%.3f") + ", \"args\": {\"op\": " + quoted(event.op) +
         ", \"axis\": " + quoted(event.axis) + ", \"sent\": " + std::to_string(event.sent) +
         ", \"received\": " + std::to_string(event.received) + "}}";
}

std::string chrome_trace(const std::vector<CommEvent>& events) {
  auto& world = current_world();
  auto rank = world.hosted().empty() ? 0 : world.hosted()[0];
  std::vector<std::string> lanes, lines;
  lines.push_back(metadata("process_name", rank, 0, world.simulated() ? world.text() : "rank " + std::to_string(rank)));
  for (auto& event : events) {
    auto lane = std::find(lanes.begin(), lanes.end(), event.axis);
    if (lane == lanes.end()) {
      lane = lanes.insert(lane, event.axis);
      lines.push_back(metadata("thread_name", rank, lane - lanes.begin(), "axis " + event.axis));
    }
    lines.push_back(duration_event(event, rank, lane - lanes.begin()));
  }
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t i = 0; i < lines.size(); ++i) text += lines[i] + (i + 1 < lines.size() ? ",\n" : "\n");
  return text + "]}\n";
}

struct Sum {
  int64_t count = 0, bytes = 0;
  double seconds = 0;
  void add(const CommEvent& event) { ++count, bytes += event.bytes(), seconds += event.seconds; }
};

}  // namespace

CommDebugMode::CommDebugMode(bool entered) {
  if (entered) enter();
}

CommDebugMode::~CommDebugMode() { exit(); }

void CommDebugMode::enter() {
  exit();
  {
    std::lock_guard lock(mutex_);
    events_.clear();
    fallbacks_.clear();
    agreements_.clear();
  }
  recording_ = true;
  add_recorder(this);  // not under our lock, which recorders take under theirs
}

void CommDebugMode::exit() {
  if (std::exchange(recording_, false)) remove_recorder(this);
}

void CommDebugMode::on_comm(const CommEvent& event) {
  std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void CommDebugMode::on_fallback(const FallbackEvent& event) {
  std::lock_guard lock(mutex_);
  fallbacks_.push_back(event);
}

void CommDebugMode::on_agreement(const AgreementEvent& event) {
  std::lock_guard lock(mutex_);
  agreements_.push_back(event);
}

std::vector<CommEvent> CommDebugMode::events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

std::vector<FallbackEvent> CommDebugMode::fallbacks() const {
  std::lock_guard lock(mutex_);
  return fallbacks_;
}

std::vector<AgreementEvent> CommDebugMode::agreements() const {
  std::lock_guard lock(mutex_);
  return agreements_;
}

int64_t CommDebugMode::get_total_counts() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

std::map<std::string, int64_t> CommDebugMode::get_comm_counts() const {
  std::map<std::string, int64_t> counts;
  for (auto& event : events()) ++counts[event.kind];
  return counts;
}

int64_t CommDebugMode::total_bytes() const {
  int64_t bytes = 0;
  for (auto& event : events()) bytes += event.bytes();
  return bytes;
}

std::string CommDebugMode::text() const {
  std::string text;
  for (auto& event : events()) text += str(event) + "\n";
  return text;
}

std::string CommDebugMode::table() const {
  std::map<std::tuple<std::string, std::string, std::string, bool>, Sum> groups;
  Sum total;
  for (auto& event : events()) {
    groups[{event.kind, event.axis, event.op, event.implicit}].add(event);
    total.add(event);
  }
  TextTable table({"collective", "axis", "for", "chosen by", ">count", ">bytes", ">ms"});
  auto add = [&](std::vector<std::string> row, const Sum& sum) {
    row.insert(row.end(), {std::to_string(sum.count), std::to_string(sum.bytes), milliseconds(sum.seconds)});
    table.add(std::move(row));
  };
  for (auto& [key, sum] : groups) {
    auto& [kind, axis, op, implicit] = key;
    add({kind, axis, op.empty() ? "a direct call" : op, implicit ? "dispatch" : "the caller"}, sum);
  }
  add({"total", "", "", ""}, total);
  auto text = table.text();
  std::map<std::string, int64_t> whole;
  for (auto& fallback : fallbacks()) ++whole[fallback.op];
  for (auto& [op, count] : whole) {
    text += op + " has no rule: ran on whole tensors, " + std::to_string(count) + (count == 1 ? " time\n" : " times\n");
  }
  return text;
}

void CommDebugMode::write_chrome_trace(const std::string& path) const {
  std::ofstream file(path);
  file << chrome_trace(events());
  file.close();
  TORCH_CHECK(file, "[write_chrome_trace] cannot write the file \"", path, "\". Check its folder and the free space.");
}

}  // namespace intarsia
