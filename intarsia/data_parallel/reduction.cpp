#include "intarsia/data_parallel/reduction.h"

#include <ATen/ATen.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/core/layout.h"

namespace intarsia {
namespace {

constexpr int64_t kSmallBytes = 256 << 10;  // that a rank sends

}  // namespace

Reduction::Reduction(const Axis& axis, Shards values, ReduceOp op) : axis_(axis), values_(std::move(values)), op_(op) {
  int64_t bytes = 0;
  for (auto& value : values_) bytes = std::max<int64_t>(bytes, value.nbytes());
  small_ = is_small(axis_, bytes);
}

Reduction::Reduction(const Axis& axis, ShardsList from, ShardsList to, ReduceOp op)
    : axis_(axis), from_(std::move(from)), to_(std::move(to)), op_(op), small_(false) {}

bool Reduction::is_small(const Axis& axis, int64_t bytes) { return bytes * (axis.size() - 1) <= kSmallBytes; }

void Reduction::begin() {
  if (axis_.size() == 1) return;
  if (!from_.empty()) return begin_list();
  if (small_) return gather_all();
  for (auto& value : values_) {
    auto& counts = counts_.emplace_back();
    for (int64_t j = 0; j < axis_.size(); ++j) counts.push_back(chunk_of(value.numel(), axis_.size(), j).size());
  }
  parts_ = axis_.reduce_scatter(values_, counts_, op_, &wait_);
}

void Reduction::advance() {
  if (advanced_ || small_) return;
  advanced_ = true;
  if (wait_) wait_();
  wait_ = nullptr;
  if (list_parts_.empty()) return axis_.all_gather(parts_, values_, counts_, &wait_);
  from_.clear();
  intarsia::all_gather(axis_, list_parts_, to_, list_counts_, &wait_);
}

void Reduction::finish() {
  advance();
  if (wait_) wait_();
  wait_ = nullptr;
  if (small_ && axis_.size() > 1) reduce_gathered();
  parts_.clear();
  list_parts_.clear();
}

void Reduction::begin_list() {
  for (auto& tensor : from_) {
    auto& counts = list_counts_.emplace_back();
    for (auto& local : tensor) {
      auto& row = counts.emplace_back();
      for (int64_t j = 0; j < axis_.size(); ++j) row.push_back(chunk_of(local.numel(), axis_.size(), j).size());
    }
  }
  list_parts_ = intarsia::reduce_scatter(axis_, from_, list_counts_, op_, &wait_);
}

void Reduction::gather_all() {
  for (auto& value : values_) {
    counts_.emplace_back(axis_.size(), value.numel());
    parts_.push_back(at::empty({axis_.size() * value.numel()}, value.options()));
  }
  axis_.all_gather(values_, parts_, counts_, &wait_);
}

void Reduction::reduce_gathered() {
  auto n = axis_.size();
  for (size_t slot = 0; slot < values_.size(); ++slot) {
    auto sum = values_[slot];
    if (sum.numel() == 0) continue;
    auto part = parts_[slot].view({n, sum.numel()});
    auto op = op_ == ReduceOp::avg ? ReduceOp::sum : op_;
    for (int64_t j = 1; j < n; ++j) reduce(sum, j == 1 ? part[0] : sum, part[j], op);
    if (op_ == ReduceOp::avg) sum.div_(n);
  }
}

}  // namespace intarsia
