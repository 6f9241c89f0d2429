#include "intarsia/data_parallel/sync_module_states.h"

#include <functional>
#include <sstream>

#include <ATen/ATen.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/comm/packed.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// A line per tensor.
std::string listing(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::string text;
  for (auto* tensors : {&parameters, &buffers}) {
    for (auto& [name, tensor] : *tensors) {
      text += c10::str(name, " ", tensor.scalar_type(), " ", tensor.sizes());
      if (is_dtensor(tensor)) text += " " + str(placements_of(tensor));
      text += "\n";
    }
  }
  return text;
}

// The first lines in which two listings differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  std::string x, y;
  while (true) {
    bool more = !!std::getline(left, x), other = !!std::getline(right, y);
    if (!more) x = "no more";
    if (!other) y = "no more";
    if (x != y || !more || !other) return {x, y};
  }
}

// The memory of each slot; nothing for a plain tensor that is one value for all simulated ranks.
Shards memory_of(const at::Tensor& tensor, size_t slots) {
  if (is_dtensor(tensor)) return shards_of(tensor);
  if (is_per_rank(tensor)) return values_of(tensor);
  return slots == 1 ? Shards{tensor.detach()} : Shards();
}

}  // namespace

int64_t verify_tensors_across_ranks(const char* where, const Axis& axis, const NamedTensors& parameters,
                                    const NamedTensors& buffers, int64_t number) {
  if (axis.size() == 1 || axis.slot_count() != 1) return number;
  auto text = listing(parameters, buffers);
  auto hash = static_cast<int64_t>(std::hash<std::string>()(text));
  bool same = true;
  for (auto& row : exchange_numbers(axis, {hash, number})) {
    same = same && row[0] == hash;
    number = std::max(number, row[1]);
  }
  if (same) return number;  // the same answer on all: each knows all hashes
  auto texts = exchange_texts(axis, text);
  for (int64_t j = 1; j < axis.size(); ++j) {
    if (texts[j] == texts[0]) continue;
    auto [first, other] = first_difference(texts[0], texts[j]);
    auto& ranks = axis.line().ranks[0];
    TORCH_CHECK_VALUE(false, "[", where, "] the ranks hold different tensors: rank ", ranks[0], " has ", first,
                      ", rank ", ranks[j], " has ", other, ". Build the same model on every rank.");
  }
  return number;
}

void broadcast_tensors(const DeviceMesh& mesh, const std::vector<at::Tensor>& tensors, int64_t source, Wait* wait,
                       int64_t along) {
  auto& axis = Axis::of(mesh, along);
  if (axis.size() == 1) return;
  at::NoGradGuard no_grad;
  ShardsList list;
  std::vector<std::pair<at::Tensor, at::Tensor>> back;  // tensors of another order, and what is sent for them
  for (auto& tensor : tensors) {
    auto locals = memory_of(tensor, axis.slot_count());
    if (locals.empty()) continue;
    for (auto& local : locals) {
      if (local.is_contiguous()) continue;
      back.emplace_back(local, local.contiguous());
      local = back.back().second;
    }
    list.push_back(std::move(locals));
  }
  Wait pending;
  broadcast(axis, list, source, wait ? &pending : nullptr);
  pending = then(std::move(pending), [back, tensors] {
    at::NoGradGuard no_grad;
    for (auto& [local, travelled] : back) local.copy_(travelled);
    for (auto& tensor : tensors) {
      if (is_dtensor(tensor)) body_of(tensor).written();
    }
  });
  if (wait) *wait = std::move(pending);
}

void make_per_rank(const NamedTensors& buffers, size_t slots) {
  if (slots <= 1) return;
  at::NoGradGuard no_grad;
  for (auto& [name, buffer] : buffers) {
    if (is_dtensor(buffer) || is_per_rank(buffer) || !buffer.is_floating_point()) continue;
    Shards values;
    for (size_t slot = 0; slot < slots; ++slot) values.push_back(buffer.detach().clone());
    buffer.set_data(per_rank(std::move(values)));
  }
}

}  // namespace intarsia
