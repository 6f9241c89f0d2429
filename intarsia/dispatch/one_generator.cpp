#include "intarsia/dispatch/one_generator.h"

#include <atomic>
#include <limits>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/random_scope.h"

namespace intarsia {
namespace {

std::atomic<Generators> policy_{Generators::compare};

// The seed that LibTorch has chosen, unless the program has seeded before it loaded this library, as it may in Python.
const uint64_t seed_at_load_ = at::detail::getDefaultCPUGenerator().current_seed();

// A program's seed hardly ever has more than 32 bits, and one that LibTorch chose hardly ever fewer.
bool is_unseeded(const at::Generator& generator) {
  return generator == at::detail::getDefaultCPUGenerator() && generator.current_seed() == seed_at_load_ &&
         seed_at_load_ > std::numeric_limits<uint32_t>::max();
}

// A hash of the state; its lowest bit says whether the generator is unseeded.
uint64_t word_of(const at::Generator& generator) {
  auto state = state_of(generator);
  std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return (std::hash<std::string_view>()(bytes) & ~uint64_t(1)) | uint64_t(is_unseeded(generator));
}

void take_state_of_first(const Axis& axis, at::Generator generator) {
  auto state = state_of(generator);
  axis.broadcast({state}, 0);  // not under the lock: ranks may be threads of one process
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void set_generators(Generators policy) { policy_.store(policy, std::memory_order_relaxed); }
Generators generators() { return policy_.load(std::memory_order_relaxed); }

bool have_several_generators(const DeviceMesh& mesh) {
  return !mesh.world().simulated() && mesh.size() > 1 && !mesh.slots().empty();
}

at::Tensor state_of(const at::Generator& generator) {
  auto handle = generator;
  std::lock_guard lock(handle.mutex());
  return handle.get_state();
}

void agree_on_generator(const DeviceMesh& mesh, const std::optional<at::Generator>& generator) {
  if (!have_several_generators(mesh)) return;
  CauseScope cause("generator", true);
  JudgedScope no_tensor_moves;
  auto ours = generator.value_or(at::globalContext().defaultGenerator(c10::Device(mesh.device_type())));
  take_state_of_first(Axis::whole(mesh), ours);
  RandomScope::follow(ours, mesh);
}

void compare_generators(const char* where, const DeviceMesh& mesh, const at::Generator& generator) {
  if (!have_several_generators(mesh)) return;
  CauseScope cause("generator", true);
  JudgedScope no_tensor_moves;
  auto& axis = Axis::whole(mesh);
  auto words = exchange_numbers(axis, static_cast<int64_t>(word_of(generator)));
  auto& ranks = axis.line().ranks[0];
  std::vector<int64_t> others;
  bool all_unseeded = words[0] & 1;
  for (int64_t i = 1; i < axis.size(); ++i) {
    if (words[i] >> 1 != words[0] >> 1) others.push_back(ranks[i]);
    all_unseeded = all_unseeded && (words[i] & 1);
  }
  if (others.empty()) return;
  if (all_unseeded) return take_state_of_first(axis, generator);
  TORCH_CHECK_VALUE(false, "[", where, "] the generators of the ranks ", c10::ArrayRef<int64_t>(others),
                    " are in another state than that of rank ", ranks[0],
                    ", so that they would not draw the numbers of one device. Seed all ranks of ", mesh.text(),
                    " alike (torch::manual_seed), and use the generator on all of them alike; or call "
                    "agree_on_generator(mesh) on all of ",
                    "them, to go on from the state of rank ", ranks[0], ".");
}

}  // namespace intarsia
