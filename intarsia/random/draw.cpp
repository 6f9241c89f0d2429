#include "intarsia/random/draw.h"

#include <memory>

#include <ATen/ATen.h>
#include <ATen/TensorGeometry.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/dispatch/generator.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

constexpr int64_t kGroup = 16;  // normal_ draws groups of this size
constexpr int64_t kChunk = 4096 * kGroup;

// What a shard holds of a contiguous whole.
struct Held {
  std::vector<int64_t> sizes;        // of the whole
  std::vector<Intervals> positions;  // per dim
};

Held held_at(const Layout& layout, const TensorForm& form, const Slot& slot) {
  Held held{{form.sizes.begin(), form.sizes.end()}, {}};
  for (int64_t d = 0; d < form.dim(); ++d) held.positions.push_back(intervals_of(layout, d, form.sizes[d], slot.coordinate));
  return held;
}

// The positions of `dim` that are held, out of a block that has them all.
at::Tensor picked(const at::Tensor& block, int64_t at, const Intervals& positions) {
  std::vector<at::Tensor> parts;
  for (auto& interval : positions) parts.push_back(block.narrow(at, interval.begin, interval.size()));
  return parts.size() == 1 ? parts[0] : parts.empty() ? block.narrow(at, 0, 0) : at::cat(parts, at);
}

// Puts rows [first, first + rows) of dims `dim`... into the shard.
void put_rows(const at::Tensor& shard, const Held& held, size_t dim, at::Tensor block, int64_t first) {
  for (size_t d = dim + 1; d < held.sizes.size(); ++d) block = picked(block, static_cast<int64_t>(d - dim), held.positions[d]);
  int64_t local = 0, last = first + block.size(0);
  for (auto& interval : held.positions[dim]) {
    auto begin = std::max(interval.begin, first), end = std::min(interval.end, last);
    auto count = end - begin;
    if (count > 0) shard.narrow(0, local + begin - interval.begin, count).copy_(block.narrow(0, begin - first, count));
    local += interval.size();
  }
}

// The numbers at places [begin, ...) of the whole of dims `dim`...: part of a row, whole rows, and the rest.
void put(const at::Tensor& shard, const Held& held, size_t dim, const at::Tensor& numbers, int64_t begin) {
  auto count = numbers.size(0);
  if (count == 0 || shard.numel() == 0) return;
  auto inner = at::IntArrayRef(held.sizes).slice(dim + 1);
  auto row = c10::multiply_integers(inner), first = begin / row, offset = begin % row;
  auto done = offset != 0 || count < row ? std::min(count, row - offset) : count / row * row;
  auto part = numbers.narrow(0, 0, done);
  if (done % row == 0 && offset == 0) {
    std::vector<int64_t> shape = {done / row};
    shape.insert(shape.end(), inner.begin(), inner.end());
    put_rows(shard, held, dim, part.view(shape), first);
  } else {
    int64_t local = 0;
    for (auto& interval : held.positions[dim]) {
      bool here = interval.begin <= first && first < interval.end;
      if (here) put(shard.select(0, local + first - interval.begin), held, dim + 1, part, offset);
      local += interval.size();
    }
  }
  put(shard, held, dim, numbers.narrow(0, done, count - done), begin + done);
}

// Nothing is drawn on the meta device, but the plain op checks its arguments.
void draw_without_data(const c10::OperatorHandle& op, Stack arguments, const at::Tensor& shard) {
  arguments[0] = shard;
  op.callBoxed(arguments);
}

void draw(const c10::OperatorHandle& op, const std::vector<Held>& held, Stack& stack) {
  auto self = stack[0].toTensor();
  auto& body = body_of(self);
  auto& shards = body.shards();
  agree_on_generator(body.layout->mesh(), stack);
  if (!shards.empty() && shards[0].is_meta()) {
    draw_without_data(op, stack, shards[0]);
  } else {
    for (int64_t begin = 0, total = shards.empty() ? 0 : self.numel(); begin < total;) {
      auto count = total - begin < kChunk + kGroup ? total - begin : kChunk;  // a last group may not be a short one
      auto numbers = at::empty({count}, shards[0].options());
      auto arguments = stack;
      arguments[0] = numbers;
      op.callBoxed(arguments);
      for (size_t slot = 0; slot < held.size(); ++slot) put(shards[slot], held[slot], 0, numbers, begin);
      begin += count;
    }
  }
  body.written();
  stack = {self};
}

Way draw_along(const c10::OperatorHandle& op, const CutCall& c) {
  auto& self = c.input(0);
  if (!c.is_distributed(0) || self.dim() == 0 || !at::geometry_is_contiguous(self.sizes, self.strides)) return {};
  if (c.has_partial(0)) return {};
  std::vector<Held> held;
  for (auto& slot : c.now[0]->mesh().slots()) held.push_back(held_at(*c.now[0], self, slot));
  return [op, held = std::make_shared<const std::vector<Held>>(std::move(held))](Stack& stack) { draw(op, *held, stack); };
}

}  // namespace

// Of these, LibTorch draws one number after the other; bernoulli_ and exponential_ are drawn in one piece.
void add_draws(RuleTable& t) {
  for (std::string name : {"uniform_", "normal_", "log_normal_", "cauchy_", "geometric_", "random_", "random_.from",
                           "random_.to"}) {
    auto dot = name.find('.');
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                             dot == name.npos ? "" : name.substr(dot + 1).c_str());
    t.along("aten::" + name, [op](const CutCall& c) { return draw_along(op, c); });
  }
}

}  // namespace intarsia
