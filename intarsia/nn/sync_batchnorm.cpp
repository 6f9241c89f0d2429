#include "intarsia/nn/sync_batchnorm.h"

#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/ops/batch_norm_ops.h>
#include <torch/nn/modules/batchnorm.h>

#include "intarsia/comm/trace.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Weights and statistics of converted norms. A weak reference keeps the address from being reused.
class SyncedNorms {
 public:
  static SyncedNorms& get() {
    static auto* norms = new SyncedNorms;
    return *norms;
  }

  void add(const at::Tensor& tensor, const DeviceMesh& mesh) {
    std::lock_guard lock(mutex_);
    std::erase_if(meshes_, [](auto& entry) { return entry.second.tensor.expired(); });
    Entry entry{decltype(Entry::tensor)(tensor.getIntrusivePtr()), mesh};
    meshes_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(entry));
    any_ = true;
  }

  std::optional<DeviceMesh> mesh_of(std::initializer_list<const OptionalTensor*> tensors) {
    if (!any_) return std::nullopt;
    std::lock_guard lock(mutex_);
    for (auto* tensor : tensors) {
      if (!*tensor || !(*tensor)->defined()) continue;
      auto found = meshes_.find((*tensor)->unsafeGetTensorImpl());
      if (found != meshes_.end()) return found->second.mesh;
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    DeviceMesh mesh;
  };
  std::atomic<bool> any_ = false;
  std::mutex mutex_;
  std::map<const c10::TensorImpl*, Entry> meshes_;
};

// The sum over the ranks. Each rank uses it in its own loss, so backward sums the gradients of all as well.
at::Tensor summed(const at::Tensor& local, const DeviceMesh& mesh) {
  return to_local(redistribute(from_local(local, mesh, {Partial()}), {Replicate()}), Placements{Partial()});
}

// The moving average that LibTorch's kernel computes; it keeps the variance of a sample.
void update(const OptionalTensor& running, const at::Tensor& now, double momentum) {
  if (!running || !running->defined()) return;
  at::NoGradGuard no_grad;
  running->mul_(1 - momentum).add_(now.detach().to(running->scalar_type()), momentum);
}

at::Tensor synced_batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& running_mean, const OptionalTensor& running_var, double momentum,
                             double eps, const DeviceMesh& mesh) {
  CauseScope cause("sync_batchnorm", false);
  auto dtype = input.scalar_type();
  auto x = input.movedim(1, -1).to(dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype);
  auto channels = x.sym_size(-1);
  std::vector<int64_t> rows(x.dim() - 1);
  std::iota(rows.begin(), rows.end(), 0);
  auto count = at::ones_like(x.detach().select(-1, 0)).sum().view({1});
  auto sums = summed(at::cat({x.sum(rows), count}), mesh);
  auto total = sums.narrow_symint(0, channels, 1).detach();
  auto mean = sums.narrow_symint(0, 0, channels) / total;
  auto centered = x - mean;
  auto variance = summed(centered.square().sum(rows), mesh) / total;
  update(running_mean, mean, momentum);
  update(running_var, variance * total / (total - 1).clamp_min(1), momentum);
  auto result = centered * at::rsqrt(variance + eps);
  if (weight && weight->defined()) result = result * *weight;
  if (bias && bias->defined()) result = result + *bias;
  return result.to(dtype).movedim(-1, 1);
}

template <class Norm>
bool convert(torch::nn::Module& module, const DeviceMesh& mesh) {
  auto* norm = dynamic_cast<Norm*>(&module);
  if (!norm) return false;
  bool known = norm->weight.defined() || norm->running_mean.defined();
  TORCH_CHECK_VALUE(known, "[convert_sync_batchnorm] ", module.name(), " has neither a weight nor running statistics, ",
                    "by which its calls could be recognized. Set affine or track_running_stats.");
  for (auto& tensor : {norm->weight, norm->running_mean}) {
    if (tensor.defined()) SyncedNorms::get().add(tensor, mesh);
  }
  return true;
}

}  // namespace

int64_t convert_sync_batchnorm(ModuleRef module, const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.defined() && mesh.ndim() == 1, "[convert_sync_batchnorm] expects a mesh of one axis, not ",
                    mesh.defined() ? mesh.text() : "none", ". Take a slice of it by name, or flatten it.");
  TORCH_CHECK(is_first_definition(symbols::kBatchNorm),
              "[convert_sync_batchnorm] this program searches LibTorch for functions before this ",
              "library, so that batch norms cannot be reached. Link this library before LibTorch; in Python use ",
              "intarsia.data_parallel.convert_sync_batchnorm.");
  int64_t converted = 0;
  module->apply([&](torch::nn::Module& part) {
    converted += convert<torch::nn::BatchNorm1dImpl>(part, mesh) || convert<torch::nn::BatchNorm2dImpl>(part, mesh) ||
                 convert<torch::nn::BatchNorm3dImpl>(part, mesh);
  });
  return converted;
}

}  // namespace intarsia

at::Tensor at::_ops::batch_norm::call(const at::Tensor& input, const ::std::optional<at::Tensor>& weight,
                                      const ::std::optional<at::Tensor>& bias,
                                      const ::std::optional<at::Tensor>& running_mean,
                                      const ::std::optional<at::Tensor>& running_var, bool training, double momentum,
                                      double eps, bool cudnn_enabled) {
  using namespace intarsia;
  auto mesh = training && !is_dtensor(input) ? SyncedNorms::get().mesh_of({&weight, &running_mean}) : ::std::nullopt;
  if (mesh && mesh->size() > 1) {
    return synced_batch_norm(input, weight, bias, running_mean, running_var, momentum, eps, *mesh);
  }
  static const auto theirs = next_definition<at::_ops::batch_norm::ptr_schema>(symbols::kBatchNorm);
  return theirs(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}
