#pragma once
// Tensor parallelism for an existing torch::nn model: a plan says which module gets which parallel style.
//
//   parallelize_module(model, mesh, {{"layers.*.fc1", ColwiseParallel()}, {"layers.*.fc2", RowwiseParallel()}});

#include <concepts>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/nn/module_ref.h"
#include "intarsia/nn/styles.h"

namespace intarsia {

// Any style, by value.
class AnyStyle {
 public:
  template <std::derived_from<ParallelStyle> S>
  AnyStyle(S style) : style_(std::make_shared<const S>(std::move(style))) {}
  AnyStyle(std::shared_ptr<const ParallelStyle> style) : style_(std::move(style)) {}
  const ParallelStyle& operator*() const { return *style_; }
  const ParallelStyle* operator->() const { return style_.get(); }

 private:
  std::shared_ptr<const ParallelStyle> style_;
};

// One style for the module itself, or styles by path. A path is the names of nested modules joined by dots; each name
// may hold the wildcards *, ?, [1-2] and [!0]. "" is the module itself. Entries are applied in order.
class ParallelPlan {
 public:
  using Entry = std::pair<std::string, AnyStyle>;
  ParallelPlan() = default;
  template <std::derived_from<ParallelStyle> S>
  ParallelPlan(S style) : entries_{{"", AnyStyle(std::move(style))}} {}
  ParallelPlan(std::initializer_list<Entry> entries) : entries_(entries) {}
  ParallelPlan(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  ParallelPlan(const std::map<std::string, AnyStyle>& entries) : entries_(entries.begin(), entries.end()) {}
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

// Applies the plan, in place. The mesh has one axis. Warns about a path that matches nothing, and about an empty plan.
// src_data_rank: the rank whose weights all ranks take; none: every rank shards its own, and nothing is sent. If
// anything fails, the module is as it was.
void parallelize_module(ModuleRef module, const DeviceMesh& mesh, const ParallelPlan& plan = {},
                        std::optional<int64_t> src_data_rank = 0);
// On the mesh of the innermost MeshScope.
void parallelize_module(ModuleRef module, const ParallelPlan& plan, std::optional<int64_t> src_data_rank = 0);

// The same for holders (torch::nn::Linear) and shared pointers, which are returned.
template <ModuleOwner Holder>
Holder parallelize_module(Holder holder, const DeviceMesh& mesh, const ParallelPlan& plan = {},
                          std::optional<int64_t> src_data_rank = 0) {
  parallelize_module(ModuleRef(holder), mesh, plan, src_data_rank);
  return holder;
}
template <ModuleOwner Holder>
Holder parallelize_module(Holder holder, const ParallelPlan& plan, std::optional<int64_t> src_data_rank = 0) {
  parallelize_module(ModuleRef(holder), plan, src_data_rank);
  return holder;
}

}  // namespace intarsia
