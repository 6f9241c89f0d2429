#pragma once
// Averages the gradients of a module over an axis, in buckets, while the backward pass continues.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/data_parallel/collective_order.h"
#include "intarsia/data_parallel/replicate/buckets.h"
#include "intarsia/data_parallel/replicate/comm_hooks.h"
#include "intarsia/data_parallel/replicate/replicate_options.h"
#include "intarsia/data_parallel/replicate/unaveraged.h"
#include "intarsia/data_parallel/step_report.h"
#include "intarsia/data_parallel/sync_module_states.h"

namespace intarsia {

// Note [A step of a reducer]
// The first gradient that arrives opens a step, and each goes into its bucket. Buckets are sent in their order, each as
// soon as it and those before it are full. When the backward pass ends, the rest is sent as well, so that every rank
// has sent every bucket, whatever it used; and the ranks report to each other. Only then are gradients written, or all
// ranks raise the same error. A rank whose backward pass fails does the same and reports that, so no rank waits for it.
// Reducers of the axis that got gradients in earlier passes without sync, and none in this one, also make their step
// now: the next reader of gradients may be an optimizer.
//
// Note [What a rank sends]
// The gradient that its parameter has, whether this pass added to it or not; zeros if there is none. If gradients add
// up over passes, each rank holds the last average G; if one of two ranks adds g to it, (G + g + G) / 2 = G + g / 2 is
// the sum of the averages. A parameter that no rank has used since the last average keeps its gradient: with
// gradient_as_bucket_view that memory is reduced in place, so the rank's own value is restored.
class Reducer final : public LeafWatcher, public std::enable_shared_from_this<Reducer> {
 public:
  // All ranks of the mesh, which has one axis, create it together, with parameters of the same names and shapes.
  Reducer(const void* module, std::string name, const DeviceMesh& mesh, const NamedTensors& parameters,
          const NamedTensors& buffers, const ReplicateOptions& options, FindUnaveraged find_unaveraged);
  ~Reducer() override;
  void watch();  // from now on it gets the gradients

  const void* module() const { return module_; }  // the address for which it was made
  const std::string& name() const { return name_; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool syncs() const { return syncs_; }
  void set_syncs(bool syncs) { syncs_ = syncs; }
  void set_comm_hook(CommHook hook);
  std::vector<std::vector<std::string>> bucket_names();

  // Sets parameters and buffers to those of the member at `source`.
  void take_over(int64_t source);

  // Runs `body`, and then takes part in the steps of the others until they have run theirs.
  void join(const std::function<void()>& body, bool divide_by_initial_world_size);

  void before_gradient(size_t index, const at::Tensor& grad) override;
  void after_gradient(size_t index) override;
  bool take_data(size_t index, const at::Tensor& leaf, const at::Tensor& data) override;

 private:
  static constexpr const char* kCause = "replicate";

  struct Step {
    std::vector<bool> ready;  // by leaf: its gradient is in its bucket
    std::vector<int32_t> fires, order;
    size_t launched = 0;          // buckets
    bool armed = false;           // the end of the pass is watched for
    bool sends_zeros = false;     // for a rank that has no batch, or whose pass has failed
    std::vector<at::Tensor> own;  // by leaf: the gradient in the bucket, if this pass has brought none
  };
  bool may_lend(const Bucket& bucket) const;
  void open_step();
  void prepare_step();
  void empty_buckets();
  void follow_parameters();
  void arm();
  void mark_ready(size_t leaf);
  void launch_full_buckets();
  void check_turn(size_t bucket);
  void launch(size_t bucket);

  void end_step(Part part);
  void with_advice(const std::function<void()>& body) const;  // for ranks that wait for others in vain
  bool waits() const;
  void end_steps_of_others();
  void flush();
  StepReport report(Part part) const;
  std::vector<std::string> unaveraged() const;
  Use use_of(size_t leaf, const at::Tensor& tensor) const;
  StepReports exchange(Part part);
  void settle(const StepReports& reports);
  void write_gradients(const StepReports& reports, double scale);
  void write_gradient(size_t index, const at::Tensor& tensor, double scale);
  void sync_buffers(int64_t source, Wait* wait);
  void learn_order(const StepReports& reports);
  void clear_step();
  void give_up();
  bool keep_company();

  const void* module_;
  std::string name_;
  DeviceMesh mesh_;
  const Axis& axis_;
  CollectiveOrder& collective_order_;
  int64_t id_ = 0;  // in this order
  const char* cause_;
  ReplicateOptions options_;  // without what is ignored
  FindUnaveraged find_unaveraged_;
  BucketSizes bucket_sizes_;
  std::vector<ReplicatedParam> leaves_;
  std::vector<WeakTensor> buffers_;
  std::vector<size_t> order_;  // of the leaves in buckets
  std::unique_ptr<Buckets> buckets_;
  CommHook hook_;

  bool syncs_ = true;
  std::optional<Step> step_;
  std::vector<bool> touched_;      // by leaf: a gradient arrived since the last averaged step
  bool unsynced_ = false;          // one of these in a pass without sync
  std::vector<int32_t> expected_;  // static_graph: how many gradients each leaf gets; empty before the first step
  bool order_known_ = false;
  int32_t steps_ = 0;
  bool joining_ = false, divide_by_all_ = true;
  bool all_know_ = false;  // all ranks raised the last error
};

// Makes one and starts it.
std::shared_ptr<Reducer> make_reducer(const void* module, const std::string& name, const DeviceMesh& mesh,
                                      const NamedTensors& parameters, const NamedTensors& buffers,
                                      const ReplicateOptions& options, FindUnaveraged find_unaveraged);

}  // namespace intarsia
