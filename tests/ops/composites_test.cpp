// Every function that LibTorch makes of other ops, with every cut of its inputs.

#include <map>
#include <set>

#include "tests/ops/composites.h"
#include "tests/ops/every_cut.h"

namespace intarsia::ops_composites_test {
namespace {

CutCase case_of(const Sample& sample) {
  auto call = std::make_shared<SampleCall>(sample, at::kDouble);
  EXPECT_TRUE(call->runs()) << call->text();
  CutCase c{call->text(), nullptr, call->tensors(), sample.gradient};
  // The others are what its backward needs; there are fewer of them than in LibTorch.
  if (sample.op.starts_with("aten::embedding_bag")) c.compared = 1;
  c.make = [call] {
    return Net{nullptr, [call](const Tensors& tensors) {
                 auto stack = call->with_tensors(tensors);
                 call->handle().callBoxed(stack);
                 return tensors_in(stack);
               }};
  };
  return c;
}

std::vector<Sample> all_composites() {
  std::vector<Sample> list;
  for (auto* add : {add_torch_composites, add_structure_composites, add_nn_composites, add_recurrent_composites,
                    add_linalg_composites, add_fft_composites, add_special_composites}) {
    add(list);
  }
  return list;
}

// Functions without a call, by reason.
const std::map<std::string, std::set<std::string>>& without_a_call() {
  static const std::map<std::string, std::set<std::string>> all = {
      {"it is about the handle, not about values",
       {"data",
        "dim",
        "get_device",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_contiguous.memory_format",
        "is_distributed",
        "is_floating_point",
        "is_inference",
        "is_leaf",
        "is_neg",
        "is_signed",
        "numel",
        "output_nr",
        "retain_grad",
        "retains_grad",
        "set_data",
        "size.int",
        "storage_offset",
        "stride.int",
        "sym_is_contiguous",
        "sym_numel",
        "sym_size.int",
        "sym_storage_offset",
        "sym_stride.int",
        "result_type.Scalar",
        "result_type.Scalar_Tensor",
        "result_type.Tensor",
        "cudnn_is_acceptable"}},
      {"it is for sparse tensors, which are not distributed",
       {"coalesce",
        "smm",
        "sspaddmm",
        "to_dense",
        "to_dense_backward",
        "to_mkldnn_backward",
        "to_sparse",
        "to_sparse.sparse_dim",
        "to_sparse_bsc",
        "to_sparse_bsr",
        "to_sparse_csc",
        "to_sparse_csr",
        "embedding_sparse_backward",
        "sparse_bsc_tensor.ccol_row_value",
        "sparse_bsc_tensor.ccol_row_value_size",
        "sparse_bsr_tensor.crow_col_value",
        "sparse_bsr_tensor.crow_col_value_size",
        "sparse_coo_tensor.indices",
        "sparse_coo_tensor.indices_size",
        "sparse_csc_tensor.ccol_row_value",
        "sparse_csc_tensor.ccol_row_value_size",
        "sparse_csr_tensor.crow_col_value",
        "sparse_csr_tensor.crow_col_value_size"}},
      {"it is for quantized tensors, which are not distributed",
       {"choose_qparams_optimized", "fake_quantize_per_channel_affine",
        "fake_quantize_per_channel_affine_cachemask_backward", "fake_quantize_per_tensor_affine",
        "fake_quantize_per_tensor_affine.tensor_qparams", "fake_quantize_per_tensor_affine_cachemask_backward",
        "fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation", "fbgemm_linear_int8_weight",
        "fbgemm_linear_int8_weight_fp32_activation", "fbgemm_linear_quantize_weight", "fbgemm_pack_gemm_matrix_fp16",
        "fbgemm_pack_quantized_matrix", "fbgemm_pack_quantized_matrix.KN", "fused_moving_avg_obs_fake_quant",
        "quantized_gru_cell", "quantized_lstm_cell", "quantized_rnn_relu_cell", "quantized_rnn_tanh_cell"}},
      {"it is for nested tensors, which are not distributed", {"nested_to_padded_tensor"}},
      {"it is for memory of accelerators", {"pin_memory"}},
      {"it is the gradient of a function that has calls, and they compare it",
       {"affine_grid_generator_backward", "conv_tbc_backward", "cummaxmin_backward", "cumprod_backward",
        "infinitely_differentiable_gelu_backward", "masked_select_backward", "matrix_exp_backward", "mish_backward",
        "silu_backward", "value_selecting_reduction_backward"}},
      {"it draws random numbers: functional_test.cpp",
       {"alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout", "rrelu"}},
      {"it takes packed sequences: factory_scope_test.cpp",
       {"gru.data", "lstm.data", "rnn_relu.data", "rnn_tanh.data"}},
      {"LibTorch has no arithmetic for halves of complex numbers on CPU", {"chalf"}},
      {"channels are shuffled by a function that has samples", {"native_channel_shuffle"}},
      {"it has a rule, and so samples",
       {"affine_grid_generator_backward", "conj_physical", "linear", "matmul", "square", "to.dtype"}},
  };
  return all;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](auto& argument) { return argument.type()->str().find("Tensor") != std::string::npos; });
}

bool writes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](auto& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); });
}

TEST(Composites, HaveACallEach) {
  std::set<std::string> known;
  for (auto& sample : all_composites()) known.insert(sample.op);
  for (auto& sample : samples()) known.insert(sample.op);
  for (auto& [reason, ops] : without_a_call()) {
    for (auto& op : ops) known.insert("aten::" + op);
  }
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || name.name[6] == '_' || name.name.back() == '_') continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    auto text = c10::toString(name);
    bool names =
        text.find("Dimname") != text.npos || text.find(".name") != text.npos || text.find("_names") != text.npos;
    if (names || writes(op->schema()) || !takes_tensors(op->schema())) continue;
    EXPECT_TRUE(known.count(text)) << text << " has no call: add one to composites_*.cpp, or a reason here";
  }
}

void check_composites(void (*add)(std::vector<Sample>&)) {
  std::vector<Sample> list;
  add(list);
  std::vector<CutCase> cases;
  for (auto& sample : list) cases.push_back(case_of(sample));
  check_every_cut(std::move(cases));
}

TEST(Composites, OfTorch) { check_composites(add_torch_composites); }
TEST(Composites, OfStructure) { check_composites(add_structure_composites); }
TEST(Composites, OfNn) { check_composites(add_nn_composites); }
TEST(Composites, OfRecurrentLayers) { check_composites(add_recurrent_composites); }
TEST(Composites, OfLinalg) { check_composites(add_linalg_composites); }
TEST(Composites, OfFft) { check_composites(add_fft_composites); }
TEST(Composites, OfSpecial) { check_composites(add_special_composites); }

}  // namespace
}  // namespace intarsia::ops_composites_test
