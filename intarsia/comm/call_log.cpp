#include "intarsia/comm/call_log.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "intarsia/comm/mix_hash.h"
#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

// Every op reads them: initial-exec saves the look-up of the thread's block.
__attribute__((tls_model("initial-exec"))) thread_local size_t last_mesh_ = 0;
__attribute__((tls_model("initial-exec"))) thread_local CallLog* last_log_ = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local uint64_t origin_ = 0;

// By mesh. Shared with collectives, which may outlive their thread.
struct Logs {
  std::unordered_map<size_t, std::shared_ptr<CallLog>> logs;
  ~Logs() { last_mesh_ = 0; }
};
auto& logs_of_this_thread() {
  thread_local Logs own;
  return own.logs;
}

constexpr size_t kForms =
    1 << 16;  // limits how many are counted, so that a program whose shapes never repeat does not fill memory

CallCheck read_check() {
  auto* text = std::getenv("INTARSIA_CHECK");
  if (!text || !*text) return CallCheck::tensors;
  if (!std::strcmp(text, "0")) return CallCheck::none;
  TORCH_CHECK_VALUE(!std::strcmp(text, "calls"), "[INTARSIA_CHECK] \"", text,
                    "\" is no check. Set it to calls, to 0 for none, or unset it.");
  return CallCheck::calls;
}

const CallLog::Line* line_of(const std::vector<CallLog::Line>& lines, uint64_t number) {
  auto found = std::find_if(lines.begin(), lines.end(), [&](auto& line) { return line.number == number; });
  return found == lines.end() ? nullptr : &*found;
}

}  // namespace

void Origin::add(const Origin& other) {
  hash = mix_hash(hash, other.hash);
  call = other.call;
}

CallCheck call_check() {
  static const auto check = read_check();
  return check;
}

Origin CallLog::add(const char* op, const Layout* layout, uint64_t what, const Origin& operands) {
  auto number = count_.load(std::memory_order_relaxed) + 1;
  auto made = mix_hash(what, operands.hash);
  auto all = mix_hash(hash_.load(std::memory_order_relaxed), made);
  auto& entry = kept_[number % kKept];
  entry.op.store(op, std::memory_order_relaxed);
  entry.layout.store(layout, std::memory_order_relaxed);
  entry.operand.store(operands.call, std::memory_order_relaxed);
  entry.hash.store(all, std::memory_order_relaxed);
  hash_.store(all, std::memory_order_relaxed);
  count_.store(number, std::memory_order_relaxed);
  return {made, number};
}

Origin CallLog::add_new(const char* op, const Layout* layout, uint64_t what) {
  bool is_counted = new_ones_.size() < kForms || new_ones_.count(what);
  return add(op, layout, what, {is_counted ? ++new_ones_[what] : 0, 0});
}

std::vector<CallLog::Line> CallLog::lines(uint64_t end) const {
  std::vector<Line> lines;
  auto count = this->count();
  auto begin = count >= kKept ? count - kKept + 1 : 1;
  for (auto number = begin; number <= std::min(end, count); ++number) {
    auto& entry = kept_[number % kKept];
    auto operand = entry.operand.load(std::memory_order_relaxed);
    auto of = operand ? c10::str(" of what call ", operand, " made") : "";
    lines.push_back({number, entry.hash,
                     c10::str(CauseScope::spoken(entry.op.load()), of, ", ", str(entry.layout.load()->placements()))});
  }
  return lines;
}

CallLog& calls_on(const DeviceMesh& on) {
  auto mesh = on.hash();
  if (C10_LIKELY(mesh == last_mesh_)) return *last_log_;
  auto& log = logs_of_this_thread()[mesh];
  if (!log) log = std::make_shared<CallLog>();
  last_mesh_ = mesh;
  last_log_ = log.get();
  return *log;
}

std::shared_ptr<const CallLog> calls_on(size_t mesh) {
  auto& logs = logs_of_this_thread();
  auto found = logs.find(mesh);
  return found == logs.end() ? nullptr : found->second;
}

uint64_t hash_of_form(const Layout& layout, c10::ArrayRef<int64_t> sizes) {
  uint64_t hash = sizes.size();
  for (auto& placement : layout.placements()) hash = mix_hash(hash, hash_value(placement));
  for (auto size : sizes) hash = mix_hash(hash, size);
  return hash;
}

OriginScope::OriginScope(const Origin& origin) : outer_(std::exchange(origin_, origin.hash)) {}
OriginScope::~OriginScope() { origin_ = outer_; }
uint64_t OriginScope::current() { return origin_; }

std::string first_difference(const std::vector<CallLog::Line>& ours, int64_t rank,
                             const std::vector<CallLog::Line>& theirs, int64_t other) {
  auto said = [](const CallLog::Line* line) { return line ? line->text : "nothing yet"; };
  auto begin = std::max(ours.empty() ? 1 : ours[0].number, theirs.empty() ? 1 : theirs[0].number);
  auto end = std::max(ours.empty() ? 0 : ours.back().number, theirs.empty() ? 0 : theirs.back().number);
  for (auto number = begin; number <= end; ++number) {
    auto *mine = line_of(ours, number), *yours = line_of(theirs, number);
    if (mine && yours && mine->hash == yours->hash) continue;
    auto* since = number == begin && begin > 1
                      ? " They differ since before the calls that they remember, of which the oldest is "
                      : " The first call in which they differ is ";
    return c10::str(since, number, " on the mesh: rank ", rank, " called ", said(mine), "; rank ", other, " called ",
                    said(yours), ".");
  }
  return "";
}

}  // namespace intarsia
