// ctc_loss(log_probs [T, N, C], targets [N, S] or joined, lengths): the samples of the batch are independent.

#include <algorithm>
#include <limits>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/ops/along/replicated.h"
#include "intarsia/ops/losses/mean.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

struct Samples {
  int64_t first, count;
};

// The samples of this rank, by the layout of the tensor that has them in `dim`.
Samples samples_of(const LocalCall& local, size_t input, int64_t dim) {
  auto& form = local.call.inputs[input];
  auto coordinate = local.slot.coordinate;
  return {local_offset(*local.in[input], form.sizes, coordinate)[dim],
          local_shape(*local.in[input], form.sizes, coordinate)[dim]};
}

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : std::max<int64_t>(0, *std::max_element(lengths.begin(), lengths.end()));
}

// Keeps the lengths, and the part of joined targets, of this rank's samples.
void own_samples(LocalCall& local, const Samples& mine, size_t targets, size_t lengths) {
  auto all = local.stack[lengths + 1].toIntVector();
  for (auto arg : {lengths, lengths + 1}) {
    auto list = local.stack[arg].toIntVector();
    local.stack[arg] = std::vector<int64_t>(list.begin() + mine.first, list.begin() + mine.first + mine.count);
  }
  auto joined = local.stack[targets].toTensor();
  if (joined.dim() != 1) return;
  auto begin = std::accumulate(all.begin(), all.begin() + mine.first, int64_t{0});
  auto end = std::accumulate(all.begin() + mine.first, all.begin() + mine.first + mine.count, begin);
  local.stack[targets] = joined.slice(0, begin, end).contiguous();
}

void align(LocalCall& local) {
  auto scores = local.stack[0].toTensor();
  auto width = 2 * longest(local.stack[3].toIntVector()) + 1;
  if (scores.dim() != 3) return local.call_plain();
  auto mine = samples_of(local, 0, 1);
  if (mine.count == 0) {
    local.stack = {at::empty({0}, scores.options()), at::empty({0, scores.size(0), width}, scores.options())};
    return;
  }
  own_samples(local, mine, 1, 2);
  local.call_plain();
  auto paths = local.stack[1].toTensor();  // as wide as this rank's longest target
  local.stack[1] = at::constant_pad_nd(paths, {0, width - paths.size(2)});
}

Rule alignment() {
  return rows("loss",
              [](const OpCall& call) {
                if (call.inputs[0].dim() != 3) return Rows();
                return Rows{{{S(1), call.inputs[1].dim() == 1 ? R : S(0)}, {S(0), S(0)}}};
              })
      .with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> {
        auto& scores = call.inputs[0].sizes;
        auto width = 2 * longest(call.arg("target_lengths").toIntVector()) + 1;
        if (scores.size() < 3) return {{}, {scores[0], width}};
        return {{scores[1]}, {scores[1], scores[0], width}};
      })
      .with_dtypes([](const OpCall& call) { return std::vector<c10::ScalarType>(2, call.inputs[0].dtype); })
      .with_local(align);
}

// backward(grad [N], log_probs, targets, lengths, lengths, loss [N], paths [N, T, W])
void align_backward(LocalCall& local) {
  auto scores = local.stack[1].toTensor();
  if (scores.dim() != 3) return local.call_plain();
  auto mine = samples_of(local, 1, 1);
  if (mine.count == 0) {
    local.stack = {at::zeros_like(scores)};
    return;
  }
  own_samples(local, mine, 2, 3);
  auto width = 2 * longest(local.stack[4].toIntVector()) + 1;
  local.stack[6] = local.stack[6].toTensor().slice(2, 0, width).contiguous();
  local.call_plain();
}

Rule alignment_backward() {
  return rows("loss",
              [](const OpCall& call) {
                if (call.inputs[1].dim() != 3) return Rows();
                return Rows{{{S(0), S(1), call.inputs[2].dim() == 1 ? R : S(0), S(0), S(0)}, {S(1)}}};
              })
      .like_input(1)
      .with_local(align_backward);
}

// LibTorch's version reads the lengths and divides by a plain tensor of them.
at::Tensor ctc_loss_of_numbers(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
                               at::IntArrayRef target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  auto model = is_dtensor(log_probs) ? log_probs : targets;
  auto labels = is_dtensor(targets) ? targets : replicated_like(targets, model);
  auto loss = std::get<0>(at::_ctc_loss(log_probs, labels, input_lengths, target_lengths, blank, zero_infinity));
  if (zero_infinity)
    loss = at::where(at::eq(loss, std::numeric_limits<double>::infinity()), at::zeros_like(loss), loss);
  if (reduction == kSum) return loss.sum();
  if (reduction != kMean) return loss;
  auto counts = at::tensor(target_lengths, at::kLong).clamp_min(1).to(loss.scalar_type());
  return at::div(loss, replicated_like(loss.dim() ? counts : counts.squeeze(0), loss)).mean();
}

at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets, const at::Tensor& input_lengths,
                    const at::Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  return ctc_loss_of_numbers(log_probs, targets, numbers_in(input_lengths), numbers_in(target_lengths), blank,
                             reduction, zero_infinity);
}

}  // namespace

void add_ctc_loss(RuleTable& t) {
  t.add("aten::_ctc_loss", alignment());
  t.add("aten::_ctc_loss_backward", alignment_backward());
  t.composite("aten::ctc_loss.Tensor", ctc_loss);
  t.composite("aten::ctc_loss.IntList", ctc_loss_of_numbers);
}

}  // namespace intarsia
