#include "intarsia/nn/op_style.h"

#include <mutex>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// Immutable once it is on a tensor: clones share it.
struct StyleNote final : c10::intrusive_ptr_target {
  std::optional<OpStyle> styles[3];
};

const StyleNote* note_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? dynamic_cast<const StyleNote*>(body_of(tensor).note.get()) : nullptr;
}

at::Tensor moved(const at::Tensor& tensor, const std::optional<Placement>& to, const char* where) {
  if (!to) return tensor;
  auto placements = normalized({*to}, tensor.dim(), where);
  return placements_of(tensor) == placements ? tensor : redistribute(tensor, placements);
}

// Runs the ops as they are on tensors without a note.
using WithoutNotes = c10::impl::ExcludeDispatchKeyGuard;

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  WithoutNotes guard(kNoteKey);
  auto* style = op_style_of(weight, StyledOp::linear);
  if (!style) return at::linear(input, weight, bias);
  return style->finish(at::linear(style->prepare(input, weight.size(-1)), weight, bias));
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding_idx,
                     bool scale_grad_by_freq, bool sparse) {
  WithoutNotes guard(kNoteKey);
  auto* style = op_style_of(weight, StyledOp::embedding);
  if (!style) return at::embedding_symint(weight, indices, padding_idx, scale_grad_by_freq, sparse);
  return style->finish(at::embedding_symint(weight, style->prepare(indices), padding_idx, scale_grad_by_freq, sparse));
}

const OpStyle* norm_style(const std::optional<at::Tensor>& weight) {
  return weight ? op_style_of(*weight, StyledOp::norm) : nullptr;
}

at::Tensor layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool cudnn_enable) {
  WithoutNotes guard(kNoteKey);
  auto* style = norm_style(weight);
  if (!style) return at::layer_norm_symint(input, shape, weight, bias, eps, cudnn_enable);
  return style->finish(at::layer_norm_symint(style->prepare(input), shape, weight, bias, eps, cudnn_enable));
}

at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                    std::optional<double> eps) {
  WithoutNotes guard(kNoteKey);
  auto* style = norm_style(weight);
  if (!style) return at::rms_norm_symint(input, shape, weight, eps);
  return style->finish(at::rms_norm_symint(style->prepare(input), shape, weight, eps));
}

void register_styled_ops() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kNoteKey, __FILE__, __LINE__);
    aten->impl("linear", linear);
    aten->impl("embedding", embedding);
    aten->impl("layer_norm", layer_norm);
    aten->impl("rms_norm", rms_norm);
  });
}

}  // namespace

at::Tensor OpStyle::prepare(const at::Tensor& tensor, std::optional<int64_t> features) const {
  if (is_dtensor(tensor)) {
    TORCH_CHECK_VALUE(mesh_of(tensor) == mesh, "[parallel style] its input is on ", mesh_of(tensor).text(),
                      ", but the module was parallelized on ", mesh.text(),
                      ". Distribute the input, and what computes it, on that mesh.");
    return moved(tensor, desired, "parallel style");
  }
  auto placements = normalized({input}, tensor.dim(), "parallel style");
  FromLocalOptions options;
  if (features && cut_dim(placements[0]) == tensor.dim() - 1) {  // so uneven shards need no exchange of shapes
    options.shape = value_at(tensor, 0).sizes().vec();
    options.shape->back() = *features;
  }
  return moved(from_local(tensor, mesh, placements, options), desired, "parallel style");
}

at::Tensor OpStyle::finish(const at::Tensor& tensor) const {
  auto result = moved(tensor, output, "parallel style");
  return use_local_output ? to_local(result) : result;
}

void set_op_style(const at::Tensor& parameter, StyledOp op, const OpStyle& style) {
  register_styled_ops();
  auto note = c10::make_intrusive<StyleNote>();
  if (auto* present = note_of(parameter))
    std::copy(std::begin(present->styles), std::end(present->styles), note->styles);
  note->styles[static_cast<int>(op)] = style;
  attach_note(parameter, std::move(note));
}

const OpStyle* op_style_of(const at::Tensor& parameter, StyledOp op) {
  auto* note = note_of(parameter);
  if (!note) return nullptr;
  auto& style = note->styles[static_cast<int>(op)];
  return style ? &*style : nullptr;
}

}  // namespace intarsia
