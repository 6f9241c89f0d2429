// What torch::nn::functional calls.

#include <ATen/ATen.h>

#include "tests/ops/composites.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;

void add_convolutions(const AddCalls& each) {
  for (bool along : {false, true}) {
    auto batch = along ? 1 : 5;
    each({"conv1d"}, {x({batch, 2, 6}), x({4, 2, 3}), x({4}), Ints{1}, Ints{1}, Ints{1}, 1});
    each({"conv2d"}, {x({batch, 2, 5, 6}), x({4, 2, 3, 3}), x({4}), Ints{1}, Ints{1}, Ints{1}, 1});
    each({"conv3d"}, {x({batch, 2, 3, 4, 4}), x({3, 2, 2, 2, 2}), kNone, Ints{1}, Ints{0}, Ints{1}, 1});
  }
  each({"conv1d.padding"}, {x({5, 2, 6}), x({4, 2, 3}), x({4}), Ints{1}, "same", Ints{1}, 1});
  each({"conv2d.padding"}, {x({5, 2, 5, 6}), x({4, 2, 3, 2}), x({4}), Ints{1}, "same", Ints{1}, 1});
  each({"conv3d.padding"}, {x({5, 2, 3, 4, 4}), x({3, 2, 2, 2, 2}), kNone, Ints{1}, "valid", Ints{1}, 1});
  each({"conv_transpose1d"}, {x({5, 2, 4}), x({2, 3, 3}), x({3}), Ints{2}, Ints{1}, Ints{1}, 1, Ints{1}});
  each({"conv_transpose2d.input"}, {x({5, 2, 4, 3}), x({2, 3, 3, 3}), x({3}), Ints{2}, Ints{1}, Ints{1}, 1, Ints{1}});
  each({"conv_transpose3d.input"},
       {x({3, 2, 3, 2, 2}), x({2, 3, 2, 2, 2}), kNone, Ints{1}, Ints{0}, Ints{0}, 1, Ints{1}});
  each({"thnn_conv2d"}, {x({5, 2, 5, 6}), x({4, 2, 3, 3}), Ints{3, 3}, x({4}), Ints{1, 1}, Ints{1, 1}});
  each({"slow_conv3d"}, {x({5, 2, 3, 4, 4}), x({3, 2, 2, 2, 2}), Ints{2, 2, 2}, x({3}), Ints{1, 1, 1}, Ints{0, 0, 0}});
}

void add_pools(const AddCalls& each) {
  each({"adaptive_avg_pool1d", "adaptive_max_pool1d"}, {x({5, 2, 6}), Ints{4}});
  each({"adaptive_avg_pool2d"}, {x({5, 2, 6, 5}), Ints{4, 3}});
  each({"adaptive_avg_pool3d"}, {x({5, 2, 4, 3, 3}), Ints{2, 2, 2}});
  each({"avg_pool1d"}, {x({5, 2, 6}), Ints{2}, Ints{2}, Ints{1}, false, true});
  each({"max_pool1d", "max_pool1d_with_indices"}, {x({5, 2, 6}), Ints{2}, Ints{2}, Ints{1}, Ints{1}, false});
  each({"max_pool2d"}, {x({5, 2, 6, 5}), Ints{2, 2}, Ints{2, 2}, Ints{0}, Ints{1}, false});
  each({"max_pool3d"}, {x({3, 2, 4, 4, 3}), Ints{2, 2, 2}, Ints{2, 2, 2}, Ints{0}, Ints{1}, false});
  for (auto mode : {"constant", "reflect", "replicate", "circular"})
    each({"pad"}, {x({5, 2, 6}), Ints{2, 1}, mode, kNone});
  each({"grid_sampler"}, {x({5, 3, 4, 2}), unit({5, 3, 2, 2}), 0, 0, true});
  each({"upsample_nearest1d.vec"}, {x({5, 2, 4}), Ints{6}, kNone});
  each({"upsample_nearest2d.vec"}, {x({5, 2, 4, 3}), kNone, Floats{2, 1.5}});
  each({"upsample_nearest3d.vec"}, {x({3, 2, 2, 3, 2}), Ints{3, 4, 4}, kNone});
  each({"upsample_linear1d.vec"}, {x({5, 2, 4}), Ints{6}, false, kNone});
  each({"upsample_bilinear2d.vec", "upsample_bicubic2d.vec"}, {x({5, 2, 4, 3}), Ints{6, 5}, true, kNone});
  each({"upsample_trilinear3d.vec"}, {x({3, 2, 2, 3, 2}), Ints{3, 4, 4}, false, kNone});
}

void add_norms(const AddCalls& each) {
  each({"layer_norm"}, {x({5, 3}), Ints{3}, x({3}), x({3}), 1e-5, false});
  each({"rms_norm"}, {x({5, 3}), Ints{3}, x({3}), 1e-5});
  each({"group_norm"}, {x({5, 4, 3}), 2, x({4}), x({4}), 1e-5, false});
  each({"instance_norm"}, {x({5, 4, 3}), x({4}), x({4}), kNone, kNone, true, 0.1, 1e-5, false});
  each({"batch_norm"}, {x({5, 4, 3}), x({4}), x({4}), kNone, kNone, true, 0.1, 1e-5, false});
  for (int64_t dim : {0, 1}) {
    each({"softmax.int", "log_softmax.int", "special_softmax", "special_log_softmax"}, {x({5, 3}), dim, kNone});
    each({"special_logsumexp"}, {x({5, 3}), Ints{dim}, false});
  }
  each({"prelu"}, {x({5, 3}), unit({3})});
  auto attention = [&](Ints q, Ints k) {
    each({"scaled_dot_product_attention"}, {x(q), x(k), x(k), kNone, 0.0, false, kNone, false});
  };
  attention({3, 2, 5, 4}, {3, 2, 3, 4});
  attention({5, 4}, {3, 4});
  each({"scaled_dot_product_attention"}, {x({2, 5, 4}), x({2, 5, 4}), x({2, 5, 4}), kNone, 0.0, true, kNone, false});
}

void add_losses(const AddCalls& each) {
  for (int64_t reduction : {0, 1, 2}) {
    each({"l1_loss", "hinge_embedding_loss"}, {x({5, 3}), x({5, 3}).sign(), reduction});
    each.list.back().args.insert(each.list.back().args.begin() + 2, 0.8);
    each({"kl_div"}, {x({5, 3}), pos({5, 3}), reduction, false});
    each({"poisson_nll_loss"}, {x({5, 3}), pos({5, 3}), true, true, 1e-8, reduction});
    each({"cosine_embedding_loss"}, {x({5, 3}), x({5, 3}), x({5}).sign(), 0.2, reduction});
    each({"margin_ranking_loss"}, {x({5}), x({5}), x({5}).sign(), 0.2, reduction});
    each({"triplet_margin_loss"}, {x({5, 3}), x({5, 3}), x({5, 3}), 1.0, 2.0, 1e-6, true, reduction});
    each({"nll_loss", "nll_loss_nd"}, {x({5, 4}), below(4, {5}), pos({4}), reduction, -100});
    each({"nll_loss2d"}, {x({5, 4, 2, 3}), below(4, {5, 2, 3}), kNone, reduction, -100});
    each({"cross_entropy_loss"}, {x({5, 4}), below(4, {5}), pos({4}), reduction, 2, 0.1});
    each({"multilabel_margin_loss"}, {x({5, 3}), below(3, {5, 3}), reduction});
    auto scores = unit({6, 5, 4}).mul(3).log_softmax(2);
    auto targets = at::tensor({1, 2, 3, 1, 1, 2, 3, 3, 2, 1}, at::kLong).reshape({5, 2});
    Ints steps = {6, 5, 6, 4, 6}, counts = {2, 1, 2, 1, 2};
    each({"ctc_loss.IntList"}, {scores, targets, steps, counts, 0, reduction, false});
    each({"ctc_loss.Tensor"}, {scores, targets, at::tensor(steps), at::tensor(counts), 0, reduction, false});
  }
  each({"one_hot"}, {below(4, {5, 3}), 6});
}

void add_embeddings(const AddCalls& each) {
  for (int64_t mode : {0, 1, 2}) {
    each({"embedding_bag"},
         {x({7, 3}), below(7, {5}), at::tensor({0, 2, 2}, at::kLong), false, mode, false, kNone, false});
    each({"embedding_bag.padding_idx"},
         {x({7, 3}), below(7, {5}), at::tensor({0, 2, 5}, at::kLong), false, mode, false, kNone, true, 1});
  }
  each({"embedding_backward"}, {x({5, 3}), below(7, {5}), 7, -1, false, false});
}

}  // namespace

void add_nn_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  add_convolutions(each);
  add_pools(each);
  add_norms(each);
  add_losses(each);
  add_embeddings(each);
}

}  // namespace intarsia
