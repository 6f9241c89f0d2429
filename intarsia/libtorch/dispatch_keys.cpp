#include "intarsia/libtorch/dispatch_keys.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {
namespace {

constexpr c10::DispatchKey kBorrowed[] = {kDTensorKey, kPerRankKey,     kNoteKey,        kFirstUseKey,
                                          kFactoryKey, kBesidePlainKey, kLocalRandomKey, kCompositeKey};

// The dispatcher takes the highest key first: a scope must see an op before autograd does.
constexpr auto kAutograd = c10::DispatchKey::AutogradFunctionality;
static_assert(c10::toFunctionalityKey(kDTensorAutogradKey) == kAutograd &&
              c10::toFunctionalityKey(kPerRankAutogradKey) == kAutograd);
static_assert(kFirstUseKey > kAutograd && kFactoryKey > kAutograd && kBesidePlainKey > kAutograd &&
              kLocalRandomKey > kAutograd);

}  // namespace

std::string borrowed_keys_in_use() {
  c10::DispatchKeySet used;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = name.getNamespace() == "aten" ? dispatcher.findSchema(name) : std::nullopt;
    if (!op) continue;
    for (auto key : kBorrowed) {
      if (C10_UNLIKELY(op->hasKernelForDispatchKey(key))) used = used.add(key);
    }
  }
  std::string text;
  for (auto key : used) text.append(text.empty() ? "" : ", ").append(c10::toString(key));
  return text;
}

}  // namespace intarsia
