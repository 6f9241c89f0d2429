#include "intarsia/libtorch/ledger.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/libtorch/variable_hooks.h"
#include "intarsia/libtorch/version_counter.h"

namespace intarsia {
namespace {

std::string keys_found() {
  auto used = borrowed_keys_in_use();
  return used.empty() ? "" : "there are kernels for " + used;
}

std::string definitions_found() {
  auto missing = missing_definitions();
  return missing.empty() ? "" : "it does not export " + missing;
}

std::string hooks_found() { return set_data_can_be_replaced() ? "" : "set_data passes the hooks by"; }

std::string counters_found() {
  auto owner = at::empty({0}), view = at::empty({0});
  share_counter(view, owner);
  owner.unsafeGetTensorImpl()->bump_version();
  return view._version() == owner._version()
             ? ""
             : "a write to one of two tensors with one counter is not seen in the other";
}

}  // namespace

const std::vector<Assumption>& ledger() {
  static const auto* entries = new std::vector<Assumption>{
      {"dispatch_keys", "has no kernels for the dispatch keys that we borrow", "every op on distributed tensors",
       "2.13, 2.15", &keys_found},
      {"interposition", "exports the functions whose place ours take",
       "printing, the errors of data_ptr() and storage(), some modules", "2.13, 2.15", &definitions_found},
      {"variable_hooks", "calls set_data by an interface that can be replaced",
       "assigning data to parameters under fully_shard", "2.13, 2.15", &hooks_found},
      {"version_counter", "lets tensors share a version counter",
       "the check that autograd's saved tensors were not written to", "2.13, 2.15", &counters_found},
  };
  return *entries;
}

void check_ledger(const std::vector<Assumption>& entries) {
  std::string text;
  for (auto& entry : entries) {
    auto found = entry.broken();
    if (found.empty()) continue;
    text += c10::str("\n  ", entry.name, ": we count on a LibTorch that ", entry.assumes, ", but ", found,
                     ". Affected: ", entry.serves, ".");
  }
  TORCH_CHECK(text.empty(), "[start] LibTorch ", TORCH_VERSION,
              " works in another way inside than the versions this library was tried with:", text,
              "\nUse one of these versions, or see docs/libtorch.md.");
}

}  // namespace intarsia
