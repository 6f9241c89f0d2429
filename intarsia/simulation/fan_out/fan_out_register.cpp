#include "intarsia/simulation/fan_out/fan_out_register.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "intarsia/rules/table.h"
#include "intarsia/simulation/fan_out/fan_out.h"
#include "intarsia/simulation/fan_out/fan_out_autograd.h"
#include "intarsia/simulation/per_rank/per_rank.h"

namespace intarsia {
namespace {

void refuse_sparse(const c10::OperatorHandle&, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[sparse_coo_tensor] tensors that are distributed, or one per simulated rank, are dense. Make ",
      "embeddings with sparse = false, whose gradients are dense, and sparse tensors from plain ones.");
}

// The dispatch key of a sparse tensor follows from that of its values.
void refuse_sparse_tensors() {
  for (auto key : {c10::DispatchKey::SparsePrivateUse2, c10::DispatchKey::SparsePrivateUse3}) {
    auto* ops = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    ops->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
  }
}

}  // namespace

void register_per_rank() {
  refuse_sparse_tensors();
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kPerRankKey, __FILE__, __LINE__);
  static auto* autograd = new torch::Library(torch::Library::IMPL, "aten", kPerRankAutogradKey, __FILE__, __LINE__);
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;
    bool composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    bool differentiable = op->hasKernelForDispatchKey(c10::DispatchKey::Autograd);
    // If CPU has a kernel beside the composite one (silu_backward), plain tensors use it, and so do the ranks: the
    // results are bitwise the same.
    bool on_cpu = composite && op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    if (on_cpu) composite = false;
    bool usual = composite || differentiable;
    bool by_rank = usual && !rule_table().traits_of(name).about_the_handle;
    auto text = c10::toString(name).substr(6);
    if (!composite || by_rank) aten->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&fan_out>());
    if (!by_rank) continue;
    auto key = on_cpu ? c10::DispatchKey::AutogradCPU : kGeneralAutogradKey;
    auto kernel = std::make_unique<RankByRank>(op->getComputedKernelForDispatchKey(key), composite);
    autograd->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }
  rule_table().register_per_rank_kernels(*autograd);
  static auto* others = new torch::Library(torch::Library::IMPL, "_", kPerRankKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&fan_out>());
  static auto* others_autograd = new torch::Library(torch::Library::IMPL, "_", kPerRankAutogradKey, __FILE__, __LINE__);
  others_autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

}  // namespace intarsia
