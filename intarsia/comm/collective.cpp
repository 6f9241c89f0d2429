#include "intarsia/comm/collective.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

const char* const kKinds[] = {"all_reduce", "all_gather",   "reduce_scatter", "all_to_all", "broadcast",
                              "halo",       "mesh_to_mesh", "scatter",        "barrier"};

std::string plural(int64_t count, c10::ScalarType type) {
  std::string name = c10::toString(type);
  for (auto& c : name) c = static_cast<char>(std::tolower(c));
  return std::to_string(count) + " " + name + (count == 1 ? "" : "s");
}

thread_local at::IntArrayRef shape_;
__attribute__((tls_model("initial-exec"))) thread_local const MoveScope* move_ = nullptr;

void add_calls(Collective& call, const Line& line) {
  auto check = call_check();
  if (check == CallCheck::none) return;
  call.origin = OriginScope::current();
  call.log = calls_on(line.mesh);
  if (!call.log) return;
  call.calls = call.log->count();
  if (check == CallCheck::calls) call.calls_hash = call.log->hash();
}

}  // namespace

ShapeScope::ShapeScope(at::IntArrayRef shape) : outer_(std::exchange(shape_, shape)) {}
ShapeScope::~ShapeScope() { shape_ = outer_; }

MoveScope::MoveScope(const Placements& from, const Placements& to, const std::vector<int64_t>& axes)
    : from_(from), to_(to), axes_(axes), outer_(std::exchange(move_, this)) {}
MoveScope::~MoveScope() { move_ = outer_; }

uint64_t hash_of(const std::vector<int64_t>& counts) {
  uint64_t hash = counts.size();
  for (auto count : counts) hash = mix_hash(hash, count);
  return hash;
}

const char* Collective::name(Kind kind) { return kKinds[kind]; }

std::string Collective::name(Kind kind, const std::optional<ReduceOp>& op) {
  return op ? c10::str(kKinds[kind], "(", str(*op), ")") : kKinds[kind];
}

Collective Collective::step(uint64_t which) const {
  auto part = *this;
  part.whole = number;
  part.counts = mix_hash(mix_hash(counts, number), which);
  part.entry = 0;
  return part;
}

uint64_t Collective::fingerprint() const {
  auto hash = mix_hash(kind + 1, (op ? static_cast<uint64_t>(*op) + 1 : 0) << 16 | static_cast<uint64_t>(type));
  hash = mix_hash(mix_hash(mix_hash(hash, counts), source + 1), move);
  hash = mix_hash(mix_hash(hash, origin), calls_hash);
  for (auto size : shape) hash = mix_hash(hash, size + 1);
  return hash_text(hash, cause);
}

std::string Collective::text() const {
  auto root = source >= 0 ? " from rank " + std::to_string(source) : "";
  return c10::str(name(kind, op), " of ", plural(count, type), root, " for ", CauseScope::spoken(cause),
                  shape.empty() ? "" : c10::str(" of ", at::IntArrayRef(shape)),
                  move ? " from " + str(from) + " to " + str(to) : "");
}

std::string Collective::advice() const {
  if (!*cause) return "";
  if (!std::strcmp(cause, kNormCause))
    return c10::str(" All ranks must read ", cause, ", as by item(): it is reduced when it is first read.");
  return c10::str(" All ranks must call ", CauseScope::spoken(cause), ".");
}

Collective collective_of(Collective::Kind kind, const Line& line, const at::Tensor& mine, std::optional<ReduceOp> op) {
  Collective call;
  call.kind = kind;
  call.op = op;
  call.type = mine.scalar_type();
  call.count = call.all = mine.numel();
  call.cause = CauseScope::op();
  call.shape.append(shape_.begin(), shape_.end());
  call.axis = line.name;
  add_calls(call, line);
  if (!move_) return call;
  call.move = 1;
  for (auto axis : move_->axes_) {
    call.move = mix_hash(mix_hash(call.move, hash_value(move_->from_[axis])), hash_value(move_->to_[axis]));
  }
  call.from = move_->from_[move_->axes_[0]];
  call.to = move_->to_[move_->axes_[0]];
  return call;
}

void History::add(const Collective& call) {
  if (calls_.size() < kLength) {
    calls_.push_back(call);
  } else {
    calls_[next_ % kLength] = call;
  }
  ++next_;
}

// Numbers follow one another.
const Collective* History::find(uint64_t number) const {
  if (calls_.empty()) return nullptr;
  auto newest = calls_[(next_ - 1) % kLength].number;
  if (number > newest || newest - number >= calls_.size()) return nullptr;
  return &calls_[(next_ - 1 - (newest - number)) % kLength];
}

std::vector<const Collective*> History::last(size_t count) const {
  std::vector<const Collective*> calls;
  count = std::min(count, calls_.size());
  for (size_t i = next_ - count; i < next_; ++i) calls.push_back(&calls_[i % kLength]);
  return calls;
}

History History::tail(size_t count) const {
  History copy;
  for (auto* call : last(count)) copy.add(*call);
  return copy;
}

}  // namespace intarsia
