#include "intarsia/data_parallel/fully_shard/undecided.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/fully_shard/unshard_on_use.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Another handle, a view, or a view that is a copy.
bool is_shared(const at::Tensor& tensor) {
  auto body = shared_body_of(tensor);
  if (body.use_count() > 2 || &body->memory() != body.get()) return true;
  auto& shards = body->last_known_shards();
  return std::any_of(shards.begin(), shards.end(), [](auto& shard) { return shard.storage().use_count() > 1; });
}

}  // namespace

void adopt(const at::Tensor& handle, const at::Tensor& tensor) {
  handle.unsafeGetTensorImpl()->shallow_copy_from(tensor.getIntrusivePtr());
}

void decide_for_shards(const at::Tensor& tensor) { adopt(tensor, without_first_use_key(tensor)); }

at::Tensor decide_for_whole(const at::Tensor& tensor, bool is_written) {
  c10::InferenceMode as_it_is(tensor.is_inference());
  at::NoGradGuard no_grad;
  CauseScope cause("fully_shard", false);
  TORCH_CHECK_VALUE(!is_written || !is_shared(tensor), "[fully_shard] a tensor of shape ", tensor.sizes(),
                    " that was made like a parameter, without gradients, is written together with a plain tensor, and ",
                    "another tensor shares its memory. Call unshard() before, or write to a clone of it.");
  auto whole = full_tensor(without_first_use_key(tensor));
  if (!is_written) return whole;
  adopt(tensor, whole);
  return tensor;
}

}  // namespace intarsia
