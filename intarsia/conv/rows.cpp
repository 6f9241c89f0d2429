#include "intarsia/conv/rows.h"

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// Rows `want` of a tensor that covers rows `have`.
at::Tensor rows_of(const at::Tensor& tensor, int64_t dim, Interval have, Interval want) {
  if (want.size() == have.size()) return tensor;
  return tensor.narrow(dim, want.size() ? want.begin - have.begin : 0, want.size());
}

int64_t numel_per_row(const at::Tensor& tensor, int64_t dim) {
  int64_t numel = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) numel *= d == dim ? 1 : tensor.size(d);
  return numel;
}

// Zeros like `tensor`, over other rows.
at::Tensor with_rows(const at::Tensor& tensor, int64_t dim, Interval rows) {
  auto shape = tensor.sizes().vec();
  shape[dim] = rows.size();
  return at::zeros(shape, tensor.options());
}

at::Tensor packed(const at::Tensor& like, const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> flat;
  for (auto& part : parts) flat.push_back(part.reshape(-1));
  return flat.empty() ? like.new_empty({0}) : at::cat(flat);
}

struct Exchanged {
  Shards received;
  Counts counts;  // per slot and member
};

// Every slot sends `send(slot, member)` rows of its tensor, which covers `have(slot)`, and receives `get(slot, member)`.
template <class Have, class Send, class Get>
Exchanged exchange(const Shards& shards, int64_t dim, const Axis& axis, Have have, Send send, Get get) {
  Shards packets;
  Exchanged result;
  Counts send_counts;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto& tensor = shards[slot];
    auto me = axis.position(slot);
    auto per_row = numel_per_row(tensor, dim);
    std::vector<at::Tensor> parts;
    auto& sends = send_counts.emplace_back(axis.size(), 0);
    auto& gets = result.counts.emplace_back(axis.size(), 0);
    int64_t total = 0;
    for (int64_t member = 0; member < axis.size(); ++member) {
      if (member == me) continue;
      auto rows = send(me, member);
      if (rows.size()) parts.push_back(rows_of(tensor, dim, have(me), rows));
      sends[member] = rows.size() * per_row;
      gets[member] = get(me, member).size() * per_row;
      total += gets[member];
    }
    packets.push_back(packed(tensor, parts));
    result.received.push_back(at::empty({total}, tensor.options()));
  }
  axis.all_to_all(packets, send_counts, result.received, result.counts, nullptr, "halo");
  return result;
}

// The parts that a slot received, shaped like `tensor` with other rows. Empty ones are left undefined.
std::vector<at::Tensor> unpacked(const Exchanged& exchanged, size_t slot, const at::Tensor& tensor, int64_t dim) {
  std::vector<at::Tensor> parts;
  auto shape = tensor.sizes().vec();
  auto per_row = numel_per_row(tensor, dim);
  int64_t passed = 0;
  for (auto count : exchanged.counts[slot]) {
    auto& part = parts.emplace_back();
    if (!count) continue;
    shape[dim] = count / per_row;
    part = exchanged.received[slot].narrow(0, passed, count).view(shape);
    passed += count;
  }
  return parts;
}

}  // namespace

std::vector<Interval> held_along(const Layout& layout, int64_t dim, int64_t size) {
  auto axes = axes_cutting(layout, dim);
  int64_t members = 1;
  for (auto axis : axes) members *= layout.mesh().size(axis);
  std::vector<Interval> held;
  std::vector<int64_t> coordinate(layout.mesh().ndim(), 0);
  for (int64_t member = 0; member < members; ++member) {
    auto rest = member;
    for (size_t i = axes.size(); i-- > 0;) {
      coordinate[axes[i]] = rest % layout.mesh().size(axes[i]);
      rest /= layout.mesh().size(axes[i]);
    }
    auto runs = intervals_of(layout, dim, size, coordinate);
    TORCH_INTERNAL_ASSERT(runs.size() <= 1, "a strided shard holds no single run of rows");
    held.push_back(runs.empty() ? Interval{size, size} : runs[0]);
  }
  return held;
}

bool RowPlan::travels() const {
  for (size_t holder = 0; holder < held.size(); ++holder) {
    for (size_t needer = 0; needer < needed.size(); ++needer) {
      if (holder != needer && sent(holder, needer).size()) return true;
    }
  }
  return false;
}

Shards fetch_rows(const Shards& shards, const RowPlan& plan, const Axis& axis) {
  Exchanged exchanged;
  auto held = [&](int64_t me) { return plan.held[me]; };
  if (plan.travels()) {
    exchanged = exchange(
        shards, plan.dim, axis, held, [&](int64_t me, int64_t other) { return plan.sent(me, other); },
        [&](int64_t me, int64_t other) { return plan.sent(other, me); });
  }
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto me = axis.position(slot);
    auto own = rows_of(shards[slot], plan.dim, plan.held[me], plan.sent(me, me));
    if (own.size(plan.dim) == plan.needed[me].size()) {
      result.push_back(own);
      continue;
    }
    if (numel_per_row(own, plan.dim) == 0) {
      result.push_back(with_rows(own, plan.dim, plan.needed[me]));
      continue;
    }
    auto parts = unpacked(exchanged, slot, own, plan.dim);
    if (own.size(plan.dim)) parts[me] = own;
    std::erase_if(parts, [](auto& part) { return !part.defined(); });
    result.push_back(at::cat(parts, plan.dim));
  }
  return result;
}

Shards return_rows(const Shards& fetched, const RowPlan& plan, const Axis& axis) {
  Exchanged exchanged;
  auto needed = [&](int64_t me) { return plan.needed[me]; };
  bool travels = plan.travels();
  if (travels) {
    exchanged = exchange(
        fetched, plan.dim, axis, needed, [&](int64_t me, int64_t other) { return plan.sent(other, me); },
        [&](int64_t me, int64_t other) { return plan.sent(me, other); });
  }
  Shards result;
  for (size_t slot = 0; slot < fetched.size(); ++slot) {
    auto me = axis.position(slot);
    auto& tensor = fetched[slot];
    auto parts = travels ? unpacked(exchanged, slot, tensor, plan.dim) : std::vector<at::Tensor>(axis.size());
    auto mine = plan.sent(me, me);
    parts[me] = rows_of(tensor, plan.dim, plan.needed[me], mine);
    auto others = std::count_if(parts.begin(), parts.end(), [](auto& part) { return part.defined(); }) - 1;
    if (!others && mine == plan.held[me]) {
      result.push_back(parts[me]);
      continue;
    }
    auto sum = with_rows(tensor, plan.dim, plan.held[me]);
    for (int64_t member = 0; member < axis.size(); ++member) {
      auto rows = plan.sent(me, member);
      if (rows.size() && sum.numel()) rows_of(sum, plan.dim, plan.held[me], rows).add_(parts[member]);
    }
    result.push_back(sum);
  }
  return result;
}

}  // namespace intarsia
