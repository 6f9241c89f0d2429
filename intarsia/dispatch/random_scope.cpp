#include "intarsia/dispatch/random_scope.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/dispatch/one_generator.h"

namespace intarsia {
namespace {

thread_local RandomScope* innermost_ = nullptr;

// The ranks of this process's group, ascending.
std::vector<int64_t> sorted_ranks(const DeviceMesh& mesh) {
  if (mesh.slots().empty()) return {};
  auto ranks = mesh.ranks(mesh.slots()[0].group);
  std::vector<int64_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

bool contains(const std::vector<int64_t>& all, const std::vector<int64_t>& part) {
  return std::includes(all.begin(), all.end(), part.begin(), part.end());
}

}  // namespace

RandomScope::RandomScope(const DeviceMesh& mesh) : mesh_(mesh), outer_(innermost_) {
  if (have_several_generators(mesh_))
    check(at::globalContext().defaultGenerator(c10::Device(mesh_.device_type())), mesh_);
  innermost_ = this;
}

RandomScope::~RandomScope() { innermost_ = outer_; }

void RandomScope::agree() {
  auto all = sorted_ranks(mesh_);
  std::vector<at::Generator> generators;  // those that all ranks know of, in the same order on all
  for (auto& known : known_) {
    if (contains(known.ranks, all)) generators.push_back(known.generator);
  }
  known_.clear();
  for (auto& generator : generators) check(generator, mesh_);
}

void RandomScope::follow(const at::Generator& generator) {
  for (auto* scope = innermost_; scope; scope = scope->outer_) {
    auto last =
        std::find_if(scope->known_.rbegin(), scope->known_.rend(), [&](auto& k) { return k.generator == generator; });
    if (last != scope->known_.rend()) last->state = state_of(generator);
  }
}

void RandomScope::follow(const at::Generator& generator, const DeviceMesh& mesh) {
  for (auto* scope = innermost_; scope; scope = scope->outer_) scope->remember(generator, mesh);
}

RandomScope* RandomScope::around(const DeviceMesh& mesh) {
  for (auto* scope = innermost_; scope; scope = scope->outer_) {
    if (contains(sorted_ranks(scope->mesh_), sorted_ranks(mesh))) return scope;
  }
  return nullptr;
}

void RandomScope::check(const at::Generator& generator, const DeviceMesh& mesh) {
  auto ranks = sorted_ranks(mesh);
  auto known = std::find_if(known_.rbegin(), known_.rend(),
                            [&](auto& k) { return k.generator == generator && contains(k.ranks, ranks); });
  if (known == known_.rend()) {
    compare_generators("RandomScope", mesh, generator);
    remember(generator, mesh);
    return;
  }
  TORCH_CHECK(known->state.equal(state_of(generator)), "[RandomScope] rank ", mesh_.slots()[0].rank,
              " has seeded or used its generator by itself, or on a part of ", mesh.text(),
              ", since the ranks agreed on it. ",
              "Call agree() on all ranks after that, or draw outside of the scope.");
}

void RandomScope::remember(const at::Generator& generator, const DeviceMesh& mesh) {
  auto ranks = sorted_ranks(mesh);
  std::erase_if(known_, [&](auto& k) {
    bool is_lost = k.generator.getIntrusivePtr().use_count() == 1;  // nobody else holds it
    return is_lost || (k.generator == generator && contains(ranks, k.ranks));
  });
  known_.push_back({generator, std::move(ranks), state_of(generator)});
}

}  // namespace intarsia
