#include "intarsia/dispatch/random_scope.h"

#include <algorithm>
#include <string_view>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/generator.h"

namespace intarsia {
namespace {

thread_local RandomScope* innermost_ = nullptr;

at::Tensor state_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

int64_t fingerprint(const at::Tensor& state) {
  std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return static_cast<int64_t>(std::hash<std::string_view>()(bytes));
}

// One number from each rank of the mesh.
at::Tensor gather_number(const Axis& axis, int64_t mine) {
  auto all = at::empty({axis.size()}, at::kLong);
  axis.all_gather({at::full({1}, mine, at::kLong)}, {all}, {std::vector<int64_t>(axis.size(), 1)});
  return all;
}

}  // namespace

RandomScope::RandomScope(const DeviceMesh& mesh) : mesh_(mesh), outer_(innermost_) {
  if (have_several_generators(mesh_)) check(at::globalContext().defaultGenerator(c10::Device(mesh_.device_type())));
  innermost_ = this;
}

RandomScope::~RandomScope() { innermost_ = outer_; }

void RandomScope::agree() {
  for (auto& known : known_) compare(known);
}

void RandomScope::follow(const at::Generator& generator) {
  for (auto* scope = innermost_; scope; scope = scope->outer_) scope->remember(generator);
}

RandomScope* RandomScope::around(const DeviceMesh& mesh) {
  for (auto* scope = innermost_; scope; scope = scope->outer_) {
    auto all = scope->mesh_.ranks();
    auto part = mesh.ranks();
    if (std::all_of(part.begin(), part.end(), [&](auto rank) { return std::find(all.begin(), all.end(), rank) != all.end(); }))
      return scope;
  }
  return nullptr;
}

void RandomScope::check(const at::Generator& generator) {
  auto known = std::find_if(known_.begin(), known_.end(), [&](auto& k) { return k.generator == generator; });
  if (known == known_.end()) {
    Known first{generator, {}};
    compare(first);
    known_.push_back(std::move(first));
    return;
  }
  TORCH_CHECK(known->state.equal(state_of(generator)), "[RandomScope] rank ", mesh_.slots()[0].rank,
              " has seeded or used its generator by ",
              "itself since the ranks agreed on it. Call agree() on all ranks after that, or draw outside of the scope.");
}

void RandomScope::remember(const at::Generator& generator) {
  for (auto& known : known_) {
    if (known.generator == generator) known.state = state_of(generator);
  }
}

void RandomScope::compare(Known& known) const {
  CauseScope cause("generator", true);
  JudgedScope no_tensor_moves;
  known.state = state_of(known.generator);
  auto& axis = Axis::whole(mesh_);
  auto all = gather_number(axis, fingerprint(known.state));
  std::vector<int64_t> others;
  for (int64_t i = 1; i < axis.size(); ++i) {
    if (all[i].item<int64_t>() != all[0].item<int64_t>()) others.push_back(axis.line().ranks[0][i]);
  }
  TORCH_CHECK_VALUE(others.empty(), "[RandomScope] the generators of the ranks ", c10::ArrayRef<int64_t>(others),
                    " are in another state than that of rank ", axis.line().ranks[0][0],
                    ". Seed all ranks alike (torch::manual_seed), and use the generator on all of them alike.");
}

}  // namespace intarsia
