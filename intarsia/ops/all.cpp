#include "intarsia/ops/all.h"

#include <mutex>

#include "intarsia/dispatch/register.h"
#include "intarsia/libtorch/ledger.h"
#include "intarsia/libtorch/torch_version.h"
#include "intarsia/random/draw.h"
#include "intarsia/simulation/fan_out/fan_out_register.h"
#include "intarsia/start.h"

namespace intarsia {

// The only list of the families.
void add_all_ops(RuleTable& t) {
  add_pointwise(t);
  add_special(t);
  add_glu(t);

  add_reductions(t);
  add_statistics(t);
  add_total_norms(t);

  add_matmul(t);
  add_linear(t);
  add_attention(t);

  add_factorizations(t);
  add_solvers(t);
  add_distances(t);
  add_matrix_functions(t);

  add_softmax(t);
  add_layer_norm(t);
  add_group_norm(t);
  add_batch_norm(t);
  add_rms_norm(t);
  add_weight_norm(t);

  add_elementwise_losses(t);
  add_binary_cross_entropy(t);
  add_nll_losses(t);
  add_margin_losses(t);
  add_ctc_loss(t);

  add_embedding(t);
  add_embedding_bag(t);
  add_one_hot(t);

  add_views(t);
  add_slices(t);
  add_joins(t);
  add_rearrangements(t);
  add_diagonals(t);

  add_indexing(t);
  add_index_select(t);
  add_gather(t);

  add_scans(t);
  add_extremes(t);
  add_topk_and_sort(t);
  add_look_ups(t);

  add_convolution(t);
  add_pools(t);
  add_fractional_pools(t);
  add_adaptive_max_pools(t);
  add_unfolds(t);
  add_samplers(t);
  add_constant_pad(t);
  add_circular_pad(t);
  add_resamples(t);
  add_pixels(t);
  add_affine_grid(t);

  add_foreach(t);
  add_fused(t);
  add_unscale(t);

  add_handles(t);
  add_inplace_fast_path(t);
  add_unboxed_kernels(t);
  add_factories(t);
  add_fills(t);
  add_pending_fill(t);
  add_random_like(t);
  add_random_results(t);
  add_recurrent(t);
  add_recurrent_layer(t);
  add_packed_sequences(t);
  add_rrelu(t);
  add_transforms(t);
  add_whole(t);
  add_zero_gradients(t);
  add_draws(t);
  add_copy_rules(t);  // last: it reads the rules of views
}

void start() {
  static std::once_flag once;
  std::call_once(once, [] {
    check_ledger(ledger());  // before our kernels are there
    check_torch_version();
    register_dispatch();
    register_per_rank();
  });
}

}  // namespace intarsia
