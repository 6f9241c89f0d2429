#include "intarsia/tensor/composites.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/kernel.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {
namespace {

at::Tensor replicated_like(const at::Tensor& plain, const at::Tensor& model) {
  auto& mesh = mesh_of(model);
  return distribute_tensor(plain, mesh, Placements(mesh.ndim(), Replicate()), std::nullopt);
}

// Lengths of samples, the same numbers on every rank.
std::vector<int64_t> numbers_in(const at::Tensor& lengths) {
  at::NoGradGuard no_grad;
  auto whole = (is_dtensor(lengths) ? full_tensor(lengths) : lengths).to(at::kCPU, at::kLong).contiguous();
  return {whole.data_ptr<int64_t>(), whole.data_ptr<int64_t>() + whole.numel()};
}

at::Tensor ctc_loss_of_numbers(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
                               at::IntArrayRef target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  auto model = is_dtensor(log_probs) ? log_probs : targets;
  auto labels = is_dtensor(targets) ? targets : replicated_like(targets, model);
  auto loss = std::get<0>(at::_ctc_loss(log_probs, labels, input_lengths, target_lengths, blank, zero_infinity));
  if (zero_infinity) loss = at::where(at::eq(loss, std::numeric_limits<double>::infinity()), at::zeros_like(loss), loss);
  if (reduction == at::Reduction::Sum) return loss.sum();
  if (reduction != at::Reduction::Mean) return loss;
  auto counts = at::tensor(target_lengths, at::kLong).clamp_min(1).to(loss.scalar_type());
  return at::div(loss, replicated_like(loss.dim() ? counts : counts.squeeze(0), loss)).mean();
}

at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets, const at::Tensor& input_lengths,
                    const at::Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  return ctc_loss_of_numbers(log_probs, targets, numbers_in(input_lengths), numbers_in(target_lengths), blank, reduction,
                             zero_infinity);
}

// bilinear(x1 [..., i], x2 [..., j], weight [o, i, j]): leading dims are never flattened, so a cut batch stays cut.
at::Tensor bilinear(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(weight.dim() == 3 && x1.dim() > 0 && x2.dim() == x1.dim(), "bilinear(): weight must be 3D and the inputs of equal ",
              "dims. Got weight ", weight.sizes(), ", inputs ", x1.sizes(), " and ", x2.sizes());
  auto o = weight.size(0), i = weight.size(1), j = weight.size(2);
  TORCH_CHECK(x1.size(-1) == i && x2.size(-1) == j, "bilinear(): the weight ", weight.sizes(), " does not fit inputs ",
              x1.sizes(), " and ", x2.sizes());
  auto half = at::linear(x2, weight.reshape({o * i, j}));  // [..., o * i]
  auto shape = half.sizes().vec();
  shape.back() = o;
  shape.push_back(i);
  auto y = at::sum(at::mul(half.view(shape), x1.unsqueeze(-2)), -1);
  return bias && bias->defined() ? at::add(y, *bias) : y;
}

// Attention written in products. A causal mask is made here, as a replicated tensor; the rest is LibTorch's own.
std::tuple<at::Tensor, at::Tensor> attention_math(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                                  const std::optional<at::Tensor>& mask, double dropout, bool causal,
                                                  const std::optional<at::Tensor>& dropout_mask,
                                                  std::optional<double> scale, bool grouped) {
  auto allowed = mask;
  if (causal) {
    TORCH_CHECK(!mask || !mask->defined(), "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True");
    auto later = at::ones({query.size(-2), key.size(-2)}, at::kBool).tril().logical_not();
    auto added = at::zeros(later.sizes(), query.scalar_type()).masked_fill_(later, -std::numeric_limits<double>::infinity());
    allowed = replicated_like(added, query);
  }
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("aten::_scaled_dot_product_attention_math", "")
                       .typed<std::tuple<at::Tensor, at::Tensor>(
                           const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                           bool, const std::optional<at::Tensor>&, std::optional<double>, bool)>();
  return op.redispatch(kComposite, query, key, value, allowed, dropout, false, dropout_mask,
                       scale, grouped);
}

// The mean of a smoothed loss with weights divides by the weights of the targets, which LibTorch collects with
// masked_select; here they are looked up where the targets lie. Everything else is LibTorch's own.
at::Tensor cross_entropy(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                         int64_t reduction, int64_t ignored, double smoothing) {
  using Op = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t, c10::SymInt, double);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::cross_entropy_loss", "").typed<Op>();
  bool smoothed_mean = smoothing > 0 && smoothing <= 1 && reduction == at::Reduction::Mean && weight && weight->defined() &&
                       self.dim() > 1 && target.sizes() != self.sizes();
  if (!smoothed_mean) {
    return op.redispatch(kComposite, self, target, weight, reduction, ignored, smoothing);
  }
  auto classes = self.size(1);
  auto scores = at::log_softmax(self, 1);
  auto hard = at::nll_loss_nd(scores, target, weight, reduction, ignored);
  std::vector<int64_t> shape(self.dim(), 1);
  shape[1] = classes;
  auto skipped = at::eq(target, ignored);
  auto soft = at::neg(at::sum(at::mul(scores, weight->reshape(shape)), 1)).masked_fill(skipped, 0);
  auto of_target = at::embedding(weight->detach().unsqueeze(1), target.masked_fill(skipped, 0)).squeeze(-1);
  auto mean = at::div(at::sum(soft), at::sum(of_target.masked_fill(skipped, 0)));
  return at::add(at::mul(hard, 1 - smoothing), at::mul(mean, smoothing / static_cast<double>(classes)));
}

// Statistics per sample and channel: LibTorch flattens the two into one dim, which would move an uneven batch.
at::Tensor instance_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                         const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                         bool use_input_stats, double momentum, double eps, bool) {
  bool tracked = running_mean && running_mean->defined(), both = running_var && running_var->defined();
  TORCH_CHECK(use_input_stats || (tracked && both),
              "Expected running_mean and running_var to be defined when use_input_stats is false");
  if (!use_input_stats) return at::batch_norm(input, weight, bias, running_mean, running_var, false, momentum, eps, false);
  TORCH_CHECK(input.dim() > 2, "instance_norm(): expected samples, channels and at least one more dim, got ", input.sizes());
  if (tracked || both) {
    at::NoGradGuard no_grad;
    std::vector<int64_t> dims(input.dim() - 2);
    std::iota(dims.begin(), dims.end(), 2);
    auto [var, mean] = at::var_mean(input, dims, /*correction=*/1, false);
    if (tracked) running_mean->mul_(1 - momentum).add_(mean.mean(0), momentum);
    if (both) running_var->mul_(1 - momentum).add_(var.mean(0), momentum);
  }
  return at::group_norm(input, input.size(1), weight, bias, eps, false);
}

// Random tensors in the form of another lie as it does; a pending reduction has no form to follow.
template <class Draw>
at::Tensor drawn_like(const at::Tensor& self, at::TensorOptions options, std::optional<at::MemoryFormat> format, Draw draw) {
  auto target = at::empty_like(self, options, format);
  if (is_dtensor(target) && layout_of(target).has_partial()) target = redistribute(target, settled(placements_of(target)));
  at::NoGradGuard no_grad;
  draw(target);
  return target;
}

at::TensorOptions options_of(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<at::Device> device, std::optional<bool> pinned) {
  return at::TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pinned);
}

at::Tensor rand_like(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [](auto& t) { t.uniform_(0, 1); });
}

at::Tensor randn_like(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [](auto& t) { t.normal_(0, 1); });
}

at::Tensor randint_like(const at::Tensor& self, c10::SymInt high, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned,
                        std::optional<at::MemoryFormat> format) {
  auto end = high.expect_int();
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [&](auto& t) { t.random_(0, end); });
}

at::Tensor randint_like_from(const at::Tensor& self, c10::SymInt low, c10::SymInt high, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned,
                             std::optional<at::MemoryFormat> format) {
  auto begin = low.expect_int(), end = high.expect_int();
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [&](auto& t) { t.random_(begin, end); });
}

// Modules start recurrent layers and cells from plain zeros: those lie as the batch of the input does.
at::Tensor start_state(const at::Tensor& state, const at::Tensor& input, int64_t batch, int64_t own) {
  if (is_dtensor(state) || !is_dtensor(input) || state.requires_grad() || at::any(state).item<bool>()) return state;
  Placements placements(mesh_of(input).ndim(), Replicate());
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements_of(input)[axis] == Placement(Shard(batch)) && state.dim() == own + 2) placements[axis] = Shard(own);
  }
  return distribute_tensor(state, mesh_of(input), placements, std::nullopt);
}

bool is_plain(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() != 1 && !is_dtensor(tensor); }

bool any_plain(const c10::IValue& arg) {
  if (arg.isTensor()) return is_plain(arg.toTensor());
  if (!arg.isTensorList()) return false;
  auto tensors = arg.toTensorVector();
  return std::any_of(tensors.begin(), tensors.end(), is_plain);
}

// LibTorch's own, which makes masks and windows on its way and writes into what it has made: the former are the same on
// every rank, so they count as replicated, and the latter must not be pending. What the caller gives must be distributed,
// as always.
void with_tensors_of_its_own(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  auto first = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
  bool mixed = std::any_of(first, stack->end(), any_plain);
  for (auto arg = first; arg != stack->end(); ++arg) {
    if (!arg->isTensor() || !is_dtensor(arg->toTensor()) || !layout_of(arg->toTensor()).has_partial()) continue;
    *arg = redistribute(arg->toTensor(), settled(placements_of(arg->toTensor())));
  }
  PlainTensorScope scope(mixed ? plain_tensor_policy() : PlainTensors::replicate);
  op.redispatchBoxed(kComposite, stack);
}

// Its window of ones goes into the gradient, so it is made here.
void istft(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto& schema = op.schema();
  auto* args = stack->data() + stack->size() - schema.arguments().size();
  auto at = [&](const char* name) -> c10::IValue& { return args[*schema.argumentIndexWithName(name)]; };
  auto self = args[0].toTensor();
  if (at("window").isNone() && is_dtensor(self)) {
    auto length = at("win_length").isNone() ? at("n_fft").toInt() : at("win_length").toInt();
    at("window") = replicated_like(at::ones({length}, at::dtype(c10::toRealValueType(self.scalar_type()))), self);
  }
  with_tensors_of_its_own(op, keys, stack);
}

// The places that LibTorch finds with masks, looked up.
at::Tensor combinations(const at::Tensor& self, int64_t r, bool with_replacement) {
  TORCH_CHECK(self.dim() == 1, "Expect a 1D vector, but got shape ", self.sizes());
  auto places = at::combinations(at::arange(self.size(0)), r, with_replacement);
  return at::index_select(self, 0, replicated_like(places.flatten(), self)).view(places.sizes());
}

// How many singular values are above the tolerance: the larger of a number and a fraction of the largest.
at::Tensor rank_of(const at::Tensor& input, const at::Tensor& atol, const at::Tensor& rtol, bool hermitian) {
  auto values = hermitian ? at::linalg_eigvalsh(input).abs() : at::linalg_svdvals(input);
  if (values.size(-1) == 0) return at::sum(values, -1).to(at::kLong);
  auto tolerance = at::maximum(atol, at::mul(rtol, at::amax(values, -1)));
  return at::sum(at::gt(values, tolerance.unsqueeze(-1)), -1);
}

at::Tensor matrix_rank_above_tensors(const at::Tensor& input, const std::optional<at::Tensor>& atol,
                                     const std::optional<at::Tensor>& rtol, bool hermitian) {
  auto real = c10::toRealValueType(input.scalar_type());
  auto number = [&](double value) { return replicated_like(at::scalar_tensor(value, at::dtype(real)), input); };
  bool above_zero = atol && at::any(at::gt(*atol, 0)).item<bool>();
  auto usual = (c10::isFloatingType(real) && real == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                : std::numeric_limits<float>::epsilon()) *
               static_cast<double>(std::max(input.size(-1), input.size(-2)));
  return rank_of(input, atol ? *atol : number(0), rtol ? *rtol : number(above_zero ? 0 : usual), hermitian);
}

at::Tensor matrix_rank_above(const at::Tensor& input, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  auto real = c10::toRealValueType(input.scalar_type());
  auto given = [&](std::optional<double> value) {
    if (!value) return std::optional<at::Tensor>();
    return std::optional(replicated_like(at::scalar_tensor(*value, at::dtype(real)), input));
  };
  return matrix_rank_above_tensors(input, given(atol), given(rtol), hermitian);
}

at::Tensor matrix_rank(const at::Tensor& input, double tolerance, bool hermitian) {
  return matrix_rank_above(input, tolerance, 0.0, hermitian);
}

at::Tensor matrix_rank_by_tensor(const at::Tensor& input, const at::Tensor& tolerance, bool hermitian) {
  return matrix_rank_above_tensors(input, tolerance, at::zeros_like(tolerance), hermitian);
}

// Where to split may be said by a tensor; its numbers are read first.
std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& places, int64_t dim) {
  auto numbers = numbers_in(places);
  TORCH_CHECK(places.dim() <= 1, "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or ",
              "one-dimensional tensor, but got a tensor with ", places.dim(), " dims");
  return places.dim() == 0 ? at::tensor_split(self, numbers[0], dim) : at::tensor_split(self, at::IntArrayRef(numbers), dim);
}

// op(input, states, ...), then LibTorch's own.
void recurrent(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  auto* args = stack->data() + stack->size() - op.schema().arguments().size();
  auto batch_first = op.schema().argumentIndexWithName("batch_first");
  auto input = args[0].toTensor();
  auto own = batch_first ? 1 : 0, batch = batch_first && !args[*batch_first].toBool() ? 1 : 0;
  if (args[1].isTensorList()) {
    c10::List<at::Tensor> states;
    for (const at::Tensor& state : args[1].toTensorList()) states.push_back(start_state(state, input, batch, own));
    args[1] = states;
  } else {
    args[1] = start_state(args[1].toTensor(), input, batch, own);
  }
  op.redispatchBoxed(kComposite, stack);
}

}  // namespace

void register_composites(torch::Library& aten, torch::Library& aten_autograd) {
  for (auto* library : {&aten, &aten_autograd}) {
    library->impl("ctc_loss.Tensor", ctc_loss);
    library->impl("ctc_loss.IntList", ctc_loss_of_numbers);
    library->impl("bilinear", bilinear);
    library->impl("cross_entropy_loss", cross_entropy);
    library->impl("instance_norm", instance_norm);
    library->impl("rand_like", rand_like);
    library->impl("randn_like", randn_like);
    library->impl("randint_like", randint_like);
    library->impl("randint_like.low_dtype", randint_like_from);
    for (auto op : {"lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "lstm_cell", "gru_cell", "rnn_tanh_cell",
                    "rnn_relu_cell"}) {
      library->impl(op, torch::CppFunction::makeFromBoxedFunction<&recurrent>());
    }
    library->impl("combinations", combinations);
    library->impl("linalg_matrix_rank.atol_rtol_tensor", matrix_rank_above_tensors);
    library->impl("linalg_matrix_rank.atol_rtol_float", matrix_rank_above);
    library->impl("linalg_matrix_rank", matrix_rank);
    library->impl("linalg_matrix_rank.tol_tensor", matrix_rank_by_tensor);
    library->impl("istft", torch::CppFunction::makeFromBoxedFunction<&istft>());
    for (auto op : {"linalg_matrix_power", "quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"}) {
      library->impl(op, torch::CppFunction::makeFromBoxedFunction<&with_tensors_of_its_own>());
    }
    library->impl("tensor_split.tensor_indices_or_sections", tensor_split);
    library->impl("_scaled_dot_product_attention_math", attention_math);
  }
}

}  // namespace intarsia
