#include "intarsia/ops/reductions/waiting_norms.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/call_log.h"
#include "intarsia/comm/mix_hash.h"
#include "intarsia/comm/trace.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/along/settle_together.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

constexpr int64_t kSmall = 128 << 10;  // bytes; a larger pending value is worth a message of its own, and no copy
constexpr double kRounding = 1e-6;     // the relative variance of numbers that are the same up to rounding

const Layout* settled_layout(const Layout& layout) { return layout.with(settled(layout.placements())); }

// Of the ranks that hold the same part, the first one counts.
bool counts(const Layout& layout, const Slot& slot) {
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    if (is_replicate(layout.placements()[axis]) && slot.coordinate[axis] != 0) return false;
  }
  return true;
}

at::Tensor local_norm(const at::Tensor& shard, double ord, at::ScalarType type) {
  return at::linalg_vector_norm(shard.to(type), ord, std::nullopt, false, sum_type(type));
}

Shards sums_of_powers(const Shards& shards, const Layout& layout, double ord, at::ScalarType type) {
  Shards sums;
  auto& slots = layout.mesh().slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (!counts(layout, slots[slot])) {
      sums.push_back(at::zeros({}, shards[slot].options().dtype(at::kDouble)));
      continue;
    }
    auto norm = local_norm(shards[slot], ord, type).to(at::kDouble);
    sums.push_back(ord == 1 ? norm : at::pow(norm, ord));
  }
  return sums;
}

// What waits on one mesh.
class Waiting : public std::enable_shared_from_this<Waiting> {
 public:
  explicit Waiting(const DeviceMesh& mesh) : mesh_(mesh) {}

  bool open() const { return !done_; }

  // Its number in the list of norms.
  size_t add_norm(const at::Tensor& self, double ord, at::ScalarType type);
  // Its number among the sums.
  size_t add_sum(Shards terms) {
    TORCH_INTERNAL_ASSERT(totals_.empty());
    sums_.push_back(std::move(terms));
    return sums_.size() - 1;
  }

  Shards norm(size_t i);
  Shards sum(size_t i);

 private:
  struct Norm {
    double ord;
    at::ScalarType type;
    std::optional<size_t> sum;       // of powers
    const Layout* layout = nullptr;  // of a pending value
    Shards values;                   // copies of it; then what it is reduced to
    uint64_t version = 0;            // of the tensor when they were copied
  };
  void wait_pending(const at::Tensor& self, Norm& norm, size_t place);
  std::optional<DTensorBody::Settled> settled_value(size_t i, bool now);
  void reduce();  // once; several threads may ask
  void reduce_all();
  void settle_pending();

  DeviceMesh mesh_;
  std::mutex mutex_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // there are no values: everybody who asks gets the same error
  Origin origin_;             // of all tensors whose norms wait, in their order
  std::vector<Norm> norms_;
  std::vector<Shards> sums_;
  Shards totals_;  // per slot: one number per sum
};

size_t Waiting::add_norm(const at::Tensor& self, double ord, at::ScalarType type) {
  auto& body = body_of(self);
  auto place = norms_.size();
  origin_.add({mix_hash(body.origin.hash, std::bit_cast<uint64_t>(ord)), body.origin.call});
  auto& norm = norms_.emplace_back(Norm{.ord = ord, .type = type});
  if (!body.layout->has_partial()) {
    norm.sum = add_sum(sums_of_powers(body.shards(), *body.layout, ord, type));
    return place;
  }
  bool small = self.numel() * self.element_size() < kSmall;
  if (small && !body.known_settled()) {
    wait_pending(self, norm, place);
    return place;
  }
  auto* done = settled_layout(*body.layout);
  auto values = shards_in(self, done);
  if (done->is_replicated()) {
    norm.values = values;
  } else {
    norm.sum = add_sum(sums_of_powers(values, *done, ord, type));
  }
  return place;
}

void Waiting::wait_pending(const at::Tensor& self, Norm& norm, size_t place) {
  auto& body = body_of(self);
  norm.layout = body.layout;
  for (auto& shard : body.shards()) norm.values.push_back(shard.clone());
  norm.version = body.version();
  body.settles_with_others([me = shared_from_this(), place](bool now) { return me->settled_value(place, now); });
}

std::optional<DTensorBody::Settled> Waiting::settled_value(size_t i, bool now) {
  if (open() && !now) return std::nullopt;
  reduce();
  auto& norm = norms_[i];
  return DTensorBody::Settled{settled_layout(*norm.layout), norm.version, norm.values};
}

// Layout by layout, in the order in which they came: the same on all ranks.
void Waiting::settle_pending() {
  std::vector<const Layout*> layouts;
  for (auto& norm : norms_) {
    bool known = std::find(layouts.begin(), layouts.end(), norm.layout) != layouts.end();
    if (norm.layout && !known) layouts.push_back(norm.layout);
  }
  for (auto* layout : layouts) {
    ShardsList values;
    for (auto& norm : norms_) {
      if (norm.layout == layout) values.push_back(std::move(norm.values));
    }
    values = settled_together(*layout, std::move(values));
    auto* done = settled_layout(*layout);
    size_t next = 0;
    for (auto& norm : norms_) {
      if (norm.layout != layout) continue;
      norm.values = std::move(values[next++]);
      if (!done->is_replicated()) norm.sum = add_sum(sums_of_powers(norm.values, *done, norm.ord, norm.type));
    }
  }
}

void Waiting::reduce() {
  std::lock_guard lock(mutex_);
  if (!done_.exchange(true)) {
    try {
      reduce_all();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  if (error_) std::rethrow_exception(error_);
}

void Waiting::reduce_all() {
  CauseScope cause(kNormCause, true);  // it runs when a norm is read, long after the op
  OriginScope origin(origin_);
  settle_pending();
  if (sums_.empty()) return;
  for (size_t slot = 0; slot < mesh_.slots().size(); ++slot) {
    std::vector<at::Tensor> column;
    for (auto& sum : sums_) column.push_back(sum[slot]);
    totals_.push_back(at::stack(column));
  }
  totals_ = Axis::whole(mesh_).all_reduce(totals_, ReduceOp::sum);
  sums_.clear();
}

Shards Waiting::sum(size_t i) {
  reduce();
  Shards mine;
  for (auto& slot : totals_) mine.push_back(slot[static_cast<int64_t>(i)]);
  return mine;
}

Shards Waiting::norm(size_t i) {
  if (mesh_.slots().empty()) return {};
  reduce();
  auto& norm = norms_[i];
  Shards result;
  if (norm.sum) {
    for (auto& total : sum(*norm.sum)) result.push_back(at::pow(total, 1 / norm.ord).to(norm.type));
  } else {
    for (auto& value : norm.values) result.push_back(local_norm(value, norm.ord, norm.type).to(norm.type));
  }
  return result;
}

using OpenOnes = std::unordered_map<DeviceMesh, std::weak_ptr<Waiting>>;
OpenOnes& open_ones() {
  static thread_local OpenOnes open;
  return open;
}

std::shared_ptr<Waiting> waiting_on(const DeviceMesh& mesh) {
  auto& open = open_ones()[mesh];
  auto known = open.lock();
  if (!known || !known->open()) open = known = std::make_shared<Waiting>(mesh);
  return known;
}

// n numbers with these sums of themselves and of their squares have no variance but that of rounding.
bool agree(double n, double sum, double squares) {
  return !std::isfinite(sum) || !std::isfinite(squares) || n * squares - sum * sum <= kRounding * n * squares;
}

}  // namespace

bool norm_waits(const Layout& layout, at::IntArrayRef sizes, double ord, at::ScalarType type) {
  bool sums = ord > 0 && std::isfinite(ord) && at::isFloatingType(type) && c10::multiply_integers(sizes) > 0;
  return sums && !layout.is_replicated() && settle_by_sums(layout);
}

at::Tensor waiting_norm(const at::Tensor& self, double ord, at::ScalarType type) {
  auto& mesh = mesh_of(self);
  auto waiting = waiting_on(mesh);
  auto place = waiting->add_norm(self, ord, type);
  auto body = c10::make_intrusive<DTensorBody>(Shards(), Layout::replicated(mesh));
  auto result = wrap(body, {}, {}, c10::scalarTypeToTypeMeta(type));
  body->arrive_later([waiting, place] { return waiting->norm(place); });
  return result;
}

bool has_waiting_norms(const DeviceMesh& mesh) {
  auto found = open_ones().find(mesh);
  auto known = found == open_ones().end() ? nullptr : found->second.lock();
  return known && known->open();
}

namespace {

using Places = std::array<size_t, 3>;  // of how many ranks have the number, of the sum, and of the sum of squares

Places add_number(Waiting& waiting, const Shards& number, at::TensorOptions options) {
  Shards count, value, square;
  for (auto& mine : number) {
    count.push_back(at::full({}, mine.defined() ? 1 : 0, options));
    value.push_back(mine.defined() ? mine.reshape({}).to(at::kDouble) : at::zeros({}, options));
    square.push_back(value.back() * value.back());
  }
  return {waiting.add_sum(count), waiting.add_sum(value), waiting.add_sum(square)};
}

void check_agreement(const DeviceMesh& mesh, double count, double sum, double squares, const char* op) {
  auto mean = sum / count, variance = std::max(squares / count - mean * mean, 0.0);
  TORCH_CHECK_VALUE(agree(count, sum, squares), "[", op,
                    "] a number that comes from plain tensors, or from meshes of some ranks, is ",
                    "to be joined with numbers of all ranks of ", mesh.text(),
                    ", but differs between them: its mean is ", mean, ", its standard deviation ", std::sqrt(variance),
                    ". Plain tensors must be equal on all ranks there: average their gradients, or distribute them.");
}

}  // namespace

std::vector<Shards> agreed_numbers(const DeviceMesh& mesh, const std::vector<Shards>& numbers, const char* op) {
  auto waiting = waiting_on(mesh);
  auto options = at::TensorOptions(at::kDouble);
  for (auto& number : numbers) {
    for (auto& mine : number) options = mine.defined() ? mine.options().dtype(at::kDouble) : options;
  }
  std::vector<Places> places;
  for (auto& number : numbers) places.push_back(add_number(*waiting, number, options));
  std::vector<Shards> result;
  for (auto [count, value, square] : places) {
    auto counts = waiting->sum(count), values = waiting->sum(value), squares = waiting->sum(square);
    auto& means = result.emplace_back();
    for (size_t slot = 0; slot < counts.size(); ++slot) {
      means.push_back(values[slot] / counts[slot]);
      if (means.back().is_meta()) continue;
      check_agreement(mesh, counts[slot].item<double>(), values[slot].item<double>(), squares[slot].item<double>(), op);
    }
  }
  return result;
}

}  // namespace intarsia
