#include "intarsia/data_parallel/fully_shard/shared_buffers.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include <ATen/ATen.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

uint64_t hash_of_bytes(const at::Tensor& tensor) {
  auto flat = tensor.detach().contiguous();
  return std::hash<std::string_view>()({static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()});
}

}  // namespace

BufferList buffer_list(const NamedTensors& buffers) {
  std::vector<WeakTensor> list;
  for (auto& [name, buffer] : buffers) list.emplace_back(buffer);
  return std::make_shared<const std::vector<WeakTensor>>(std::move(list));
}

void SharedBuffers::add(const std::vector<BufferList>& lists, const DeviceMesh& mesh) {
  if (is_rehearsing()) return;  // there are no values to compare
  for (auto& buffers : lists) {
    if (lists_.insert(buffers).second) add(buffers, mesh);
  }
}

void SharedBuffers::add(const BufferList& buffers, const DeviceMesh& mesh) {
  for (auto& weak : *buffers) {
    auto tensor = weak.lock();
    if (!tensor.defined() || is_dtensor(tensor) || !tensor.is_cpu() || tensor._is_zerotensor()) continue;
    if (added_.insert(tensor.unsafeGetTensorImpl()).second) entries_.push_back({tensor, mesh});
  }
}

int32_t SharedBuffers::fingerprint() const {
  uint64_t sum = 0;
  for (auto& entry : entries_) {
    if (!is_per_rank(entry.tensor)) sum = 31 * sum + hash_of_bytes(entry.tensor);
  }
  return static_cast<int32_t>(sum ^ (sum >> 32));
}

bool SharedBuffers::differ(const StepReports& reports) const {
  if (entries_.empty()) return false;
  auto& all = reports.all();
  bool same = std::all_of(all.begin(), all.end(), [&](auto& report) { return report.steps == all[0].steps; });
  for (auto& entry : entries_) {
    if (!is_per_rank(entry.tensor)) continue;
    auto& values = values_of(entry.tensor);  // of simulated ranks
    same = same && std::all_of(values.begin(), values.end(), [&](auto& value) { return at::equal(value, values[0]); });
  }
  return !same;
}

void SharedBuffers::take_first() const {
  for (auto first = entries_.begin(); first != entries_.end();) {
    auto last = std::find_if(first, entries_.end(), [&](auto& entry) { return entry.mesh != first->mesh; });
    std::vector<at::Tensor> tensors;
    for (auto entry = first; entry != last; ++entry) tensors.push_back(entry->tensor);
    for (int64_t axis = 0; axis < first->mesh.ndim(); ++axis) broadcast_tensors(first->mesh, tensors, 0, nullptr, axis);
    first = last;
  }
}

}  // namespace intarsia
