#include "intarsia/dispatch/fan_out_register.h"

#include <set>

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "intarsia/core/foreign.h"
#include "intarsia/dispatch/fan_out.h"
#include "intarsia/dispatch/fan_out_autograd.h"
#include "intarsia/per_rank/per_rank.h"

namespace intarsia {
namespace {

constexpr auto kAutogradKey = c10::DispatchKey::AutogradPrivateUse2;

// A backend without kernels of its own, so that its autograd key has LibTorch's general ones.
constexpr auto kUsualAutogradKey = c10::DispatchKey::AutogradVE;

// These are about the handle and its history, not about values.
bool is_about_the_handle(const std::string& name) {
  static const std::set<std::string> names = {"detach", "detach_", "requires_grad_", "set_data", "data", "is_leaf",
                                              "output_nr", "_version", "retain_grad", "retains_grad", "_backward",
                                              "_fw_primal", "_make_dual", "_unpack_dual",
                                              "_has_compatible_shallow_copy_type"};
  return names.count(name) > 0;
}

bool copies_into_any(const at::Tensor& self, const at::Tensor& from) {
  return foreign_kind(self).empty() && foreign_kind(from).empty();
}

}  // namespace

void register_per_rank() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kPerRankKey, __FILE__, __LINE__);
  static auto* autograd = new torch::Library(torch::Library::IMPL, "aten", kAutogradKey, __FILE__, __LINE__);
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;
    bool composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    bool differentiable = op->hasKernelForDispatchKey(c10::DispatchKey::Autograd);
    // Where CPU has a kernel beside the composite one (silu_backward), plain tensors take it, and so do the ranks: the same bits.
    bool on_cpu = composite && op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    if (on_cpu) composite = false;
    bool usual = composite || differentiable;
    bool by_rank = usual && !is_about_the_handle(name.name.substr(6));
    auto text = c10::toString(name).substr(6);
    if (!composite || by_rank) aten->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&fan_out>());
    if (!by_rank) continue;
    auto key = on_cpu ? c10::DispatchKey::AutogradCPU : kUsualAutogradKey;
    auto kernel = std::make_unique<RankByRank>(op->getComputedKernelForDispatchKey(key), composite);
    autograd->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }
  autograd->impl("_has_compatible_shallow_copy_type", copies_into_any);
  static auto* others = new torch::Library(torch::Library::IMPL, "_", kPerRankKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&fan_out>());
  static auto* others_autograd = new torch::Library(torch::Library::IMPL, "_", kAutogradKey, __FILE__, __LINE__);
  others_autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

}  // namespace intarsia
