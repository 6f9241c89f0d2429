// Random numbers for tensors that are cut: those that one device would draw, in the order of its memory. Every rank runs through
// the numbers of the whole tensor, a chunk at a time, and keeps its own.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/rules/families.h"
#include "intarsia/tensor/meta.h"
#include "intarsia/tensor/random.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

constexpr int64_t kGroup = 16;  // normal_ draws groups of this size
constexpr int64_t kChunk = 4096 * kGroup;

// What a shard holds of a contiguous whole.
struct Held {
  at::IntArrayRef sizes;            // of the whole
  std::vector<Intervals> positions;  // per dim
};

Held held_by(const at::Tensor& tensor, const Slot& slot) {
  Held held{tensor.sizes(), {}};
  auto& layout = *meta_of(tensor).layout;
  for (int64_t d = 0; d < tensor.dim(); ++d) held.positions.push_back(intervals_of(layout, d, tensor.size(d), slot.coordinate));
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
    if (begin < end) shard.narrow(0, local + begin - interval.begin, end - begin).copy_(block.narrow(0, begin - first, end - begin));
    local += interval.size();
  }
}

// The numbers at places [begin, ...) of the whole of dims `dim`...: part of a row, whole rows, and the rest.
void put(const at::Tensor& shard, const Held& held, size_t dim, const at::Tensor& numbers, int64_t begin) {
  auto count = numbers.size(0);
  if (count == 0 || shard.numel() == 0) return;
  auto inner = held.sizes.slice(dim + 1);
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

bool draw(Stack& stack, const c10::OperatorHandle& op) {
  auto self = stack[0].toTensor();
  if (!is_dtensor(self) || self.dim() == 0 || !self.is_contiguous()) return false;
  auto& body = meta_of(self);
  if (body.layout->has_partial()) return false;
  auto& shards = body.shards();
  if (!shards.empty() && shards[0].is_meta()) return false;
  auto& slots = body.layout->mesh().slots();
  std::vector<Held> held;
  for (auto& slot : slots) held.push_back(held_by(self, slot));
  agree_on_generator(body.layout->mesh(), stack);
  for (int64_t begin = 0, total = shards.empty() ? 0 : self.numel(); begin < total;) {
    auto count = total - begin < kChunk + kGroup ? total - begin : kChunk;  // a last group may not be a short one
    auto numbers = at::empty({count}, shards[0].options());
    auto arguments = stack;
    arguments[0] = numbers;
    op.callBoxed(arguments);
    for (size_t slot = 0; slot < slots.size(); ++slot) put(shards[slot], held[slot], 0, numbers, begin);
    begin += count;
  }
  body.written();
  stack = {self};
  return true;
}

}  // namespace

// Of these, LibTorch draws one number after the other; bernoulli_ and exponential_ are drawn in one piece.
void add_draws(RuleTable& t) {
  for (std::string name : {"uniform_", "normal_", "log_normal_", "cauchy_", "geometric_", "random_", "random_.from", "random_.to"}) {
    auto dot = name.find('.');
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                             dot == name.npos ? "" : name.substr(dot + 1).c_str());
    t.decompose("aten::" + name, [op](Stack& stack) { return draw(stack, op); });
  }
}

}  // namespace intarsia
