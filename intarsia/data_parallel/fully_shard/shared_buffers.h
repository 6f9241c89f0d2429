#pragma once
// Buffers of sharded modules: whole on every rank, and after each step those of the first rank.

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/data_parallel/step_report.h"
#include "intarsia/data_parallel/sync_module_states.h"

namespace intarsia {

// Note [Buffers of sharded modules]
// A batch norm updates its running statistics with the rows of its rank. Most other buffers are constants, which need
// not be sent. So at the end of a backward pass the ranks compare fingerprints of their buffers, which are sent with
// their reports, and the first rank's buffers are sent only if these differ, along one mesh axis after the other.
//
// Every group of a module has the buffers of the whole module, so that those of a frozen one, which reduces nothing,
// stay equal as long as any group is trained.
using BufferList = std::shared_ptr<const std::vector<WeakTensor>>;
BufferList buffer_list(const NamedTensors& buffers);

class SharedBuffers {
 public:
  // Adds buffers that are alive and were not added before.
  void add(const std::vector<BufferList>& lists, const DeviceMesh& mesh);

  int32_t fingerprint() const;  // of this rank
  // Whether the ranks have different ones; `reports` have the fingerprints in `steps`.
  bool differ(const StepReports& reports) const;
  void take_first() const;

 private:
  struct Entry {
    at::Tensor tensor;
    DeviceMesh mesh;
  };
  void add(const BufferList& buffers, const DeviceMesh& mesh);

  std::vector<Entry> entries_;
  std::set<BufferList> lists_;
  std::set<const c10::TensorImpl*> added_;
};

}  // namespace intarsia
