#pragma once
// The families of ops, one function per file: each adds the rules, lowerings, traits and kernels of its ops to the
// table.

#include "intarsia/rules/table.h"

namespace intarsia {

// pointwise/
void add_pointwise(RuleTable& table);
void add_special(RuleTable& table);
void add_glu(RuleTable& table);

// reductions/
void add_reductions(RuleTable& table);
void add_statistics(RuleTable& table);
void add_total_norms(RuleTable& table);

// matmul/
void add_matmul(RuleTable& table);
void add_linear(RuleTable& table);
void add_attention(RuleTable& table);

// linalg/
void add_factorizations(RuleTable& table);
void add_solvers(RuleTable& table);
void add_distances(RuleTable& table);
void add_matrix_functions(RuleTable& table);

// norms/
void add_softmax(RuleTable& table);
void add_layer_norm(RuleTable& table);
void add_group_norm(RuleTable& table);
void add_batch_norm(RuleTable& table);
void add_rms_norm(RuleTable& table);
void add_weight_norm(RuleTable& table);

// losses/
void add_elementwise_losses(RuleTable& table);
void add_binary_cross_entropy(RuleTable& table);
void add_nll_losses(RuleTable& table);
void add_margin_losses(RuleTable& table);
void add_ctc_loss(RuleTable& table);

// embedding/
void add_embedding(RuleTable& table);
void add_embedding_bag(RuleTable& table);
void add_one_hot(RuleTable& table);

// structure/
void add_views(RuleTable& table);
void add_slices(RuleTable& table);
void add_joins(RuleTable& table);
void add_rearrangements(RuleTable& table);
void add_diagonals(RuleTable& table);

// indexing/
void add_indexing(RuleTable& table);
void add_index_select(RuleTable& table);
void add_gather(RuleTable& table);

// order/
void add_scans(RuleTable& table);
void add_extremes(RuleTable& table);
void add_topk_and_sort(RuleTable& table);
void add_look_ups(RuleTable& table);

// images/
void add_convolution(RuleTable& table);
void add_pools(RuleTable& table);
void add_fractional_pools(RuleTable& table);
void add_adaptive_max_pools(RuleTable& table);
void add_unfolds(RuleTable& table);
void add_samplers(RuleTable& table);
void add_constant_pad(RuleTable& table);
void add_circular_pad(RuleTable& table);
void add_resamples(RuleTable& table);
void add_pixels(RuleTable& table);
void add_affine_grid(RuleTable& table);

// lists/
void add_foreach(RuleTable& table);
void add_fused(RuleTable& table);
void add_unscale(RuleTable& table);

// in this folder
void add_handles(RuleTable& table);
void add_inplace_fast_path(RuleTable& table);
void add_unboxed_kernels(RuleTable& table);
void add_factories(RuleTable& table);
void add_fills(RuleTable& table);
void add_pending_fill(RuleTable& table);
void add_random_like(RuleTable& table);
void add_random_results(RuleTable& table);
void add_recurrent(RuleTable& table);
void add_recurrent_layer(RuleTable& table);
void add_packed_sequences(RuleTable& table);
void add_rrelu(RuleTable& table);
void add_transforms(RuleTable& table);
void add_whole(RuleTable& table);
void add_zero_gradients(RuleTable& table);

}  // namespace intarsia
