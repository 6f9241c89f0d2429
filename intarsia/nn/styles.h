#pragma once
// Parallel styles for plans of parallelize_module: how a module's parameters are sharded, and the layouts of its inputs
// and outputs. Defaults are those of torch.distributed.tensor.parallel.

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

// A module to which a style is applied. The mesh has one axis. src_data_rank: see distribute_tensor.
struct StyleTarget {
  torch::nn::Module& module;
  const DeviceMesh& mesh;
  std::string path;  // in the module that is parallelized; "" is that module itself
  std::optional<int64_t> src_data_rank;
};

// Base class of parallel styles: apply distributes parameters (distribute_parameter) and registers hooks (hooks.h).
class ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;
  virtual std::string name() const = 0;
  // Raises an error if the style does not fit. All targets of a plan are checked before any is changed.
  virtual void check(const StyleTarget& target) const {}
  virtual void apply(const StyleTarget& target) const = 0;
};

struct LinearStyleOptions {
  std::optional<Placement> input_layouts;   // the layout of a plain input
  std::optional<Placement> output_layouts;  // the layout of the output
  bool use_local_output = true;             // return a plain tensor: this rank's shard
  int64_t fused = 1;                        // for ColwiseParallel; see Note [Fused projections]
};

// Note [Fused projections]
// A Linear that computes q, k and v at once has three blocks of output features. Sharded as one, rank 0 of two holds
// all of q and half of k, and chunk(3, -1) of its local output gives parts that do not belong together. With fused = 3
// each block is sharded over the ranks, and a rank's output is its heads of q, then of k, then of v. The weight has the
// placement StridedShard(0, 3): its global order, and so that of checkpoints, is that of the plain model.

// Shards Linear by output features, Embedding by embedding features. Needs a replicated input.
// Defaults: input_layouts Replicate(), output_layouts Shard(-1).
class ColwiseParallel final : public ParallelStyle {
 public:
  ColwiseParallel(LinearStyleOptions options = {}) : options_(std::move(options)) {}
  std::string name() const override { return "ColwiseParallel"; }
  void check(const StyleTarget& target) const override;
  void apply(const StyleTarget& target) const override;

 private:
  LinearStyleOptions options_;
};

// Shards Linear by input features, Embedding by rows of the table. Linear needs an input sharded along the last dim,
// Embedding a replicated one. Defaults: input_layouts Shard(-1), output_layouts Replicate().
class RowwiseParallel final : public ParallelStyle {
 public:
  RowwiseParallel(LinearStyleOptions options = {}) : options_(std::move(options)) {}
  std::string name() const override { return "RowwiseParallel"; }
  void check(const StyleTarget& target) const override;
  void apply(const StyleTarget& target) const override;

 private:
  LinearStyleOptions options_;
};

struct SequenceParallelOptions {
  int64_t sequence_dim = 1;
  bool use_local_output = false;
};

// Replicated parameters, input and output sharded along the sequence dim. Works on LayerNorm without hooks; Dropout and
// other modules without parameters work on any layout and are left alone; every other module needs hooks.
class SequenceParallel final : public ParallelStyle {
 public:
  SequenceParallel(SequenceParallelOptions options = {}) : options_(options) {}
  std::string name() const override { return "SequenceParallel"; }
  void check(const StyleTarget& target) const override;
  void apply(const StyleTarget& target) const override;

 private:
  SequenceParallelOptions options_;
};

// A placement per argument or result, in order; std::nullopt leaves that one alone. A single placement is a list of
// one.
struct EntryLayouts : std::vector<std::optional<Placement>> {
  EntryLayouts() = default;
  EntryLayouts(std::initializer_list<std::optional<Placement>> entries) : vector(entries) {}
  template <class P>
    requires std::is_constructible_v<Placement, P>
  EntryLayouts(P placement) : vector{Placement(placement)} {}
};

struct PrepareModuleInputOptions {
  EntryLayouts input_layouts, desired_input_layouts;
  bool use_local_output = false;  // pass plain tensors to the module
};

// Takes plain arguments of a module as distributed ones and redistributes them to the desired layouts. Needs hooks.
class PrepareModuleInput : public ParallelStyle {
 public:
  PrepareModuleInput(PrepareModuleInputOptions options);
  std::string name() const override { return "PrepareModuleInput"; }
  void check(const StyleTarget& target) const override;
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleInputOptions options_;
};

struct PrepareModuleOutputOptions {
  EntryLayouts output_layouts, desired_output_layouts;
  bool use_local_output = true;
};

// The same for the results of a module.
class PrepareModuleOutput : public ParallelStyle {
 public:
  PrepareModuleOutput(PrepareModuleOutputOptions options);
  std::string name() const override { return "PrepareModuleOutput"; }
  void check(const StyleTarget& target) const override;
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleOutputOptions options_;
};

struct PrepareModuleInputOutputOptions {
  EntryLayouts input_layouts, desired_input_layouts;
  bool use_local_input = false;
  EntryLayouts output_layouts, desired_output_layouts;
  bool use_local_output = true;
};

// Both of these.
class PrepareModuleInputOutput final : public ParallelStyle {
 public:
  PrepareModuleInputOutput(PrepareModuleInputOutputOptions options);
  std::string name() const override { return "PrepareModuleInputOutput"; }
  void check(const StyleTarget& target) const override;
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleInput input_;
  PrepareModuleOutput output_;
};

}  // namespace intarsia
