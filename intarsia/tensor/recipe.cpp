#include "intarsia/tensor/recipe.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "intarsia/comm/trace.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// The copy has the elements of the base's shard, in order.
void write_local(const Shards& targets, const Shards& values) {
  write_once(targets, values,
             [&](size_t slot) { write_into(targets[slot], values[slot].reshape(targets[slot].sizes())); });
}

// The base as a whole, per slot, with the values of the view written into it.
Shards rewritten(const Recipe& recipe, const Shards& wholes, const Shards& values) {
  auto same = [&](size_t i, size_t j) { return are_twins(wholes[i], wholes[j]) && are_twins(values[i], values[j]); };
  auto first =
      first_alike(wholes.size(), [&](size_t i) { return twin_hash(wholes[i]) + 3 * twin_hash(values[i]); }, same);
  return made_once(first, wholes, [&](size_t slot) {
    auto whole = at::empty_strided(recipe.base.sizes(), recipe.base.strides(), wholes[slot].options());
    write_into(whole, wholes[slot]);
    write_into(replay(recipe, whole), values[slot]);
    return whole;
  });
}

}  // namespace

uint64_t count_writes(const Shards& tensors) {
  uint64_t count = 0;
  for (auto& tensor : tensors) {
    auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) count += counter.current_version();
  }
  return count;
}

at::Tensor replay(const Recipe& recipe, const at::Tensor& base) {
  auto stack = recipe.args;
  stack[recipe.self] = base;
  recipe.op.callBoxed(stack);
  if (stack[0].isTensorList()) return stack[0].toTensorVector()[recipe.output];
  return stack[recipe.output].toTensor();
}

// Gathers the base as a whole tensor, writes the view's values through a plain view of it, and keeps each rank's part.
void write_through(const Recipe& recipe, const Shards& values, const Layout* layout) {
  at::AutoDispatchBelowADInplaceOrView guard;
  CauseScope cause("write through a view", true);
  auto& base = body_of(recipe.base);
  if (recipe.local) return write_local(base.shards(), values);
  auto* replicated = Layout::replicated(layout->mesh());
  auto element_size = c10::elementSize(recipe.base.scalar_type());
  auto gathered = run(plan(layout, replicated, recipe.sizes, element_size), values, recipe.sizes);
  auto wholes = shards_in(recipe.base, replicated);
  auto& targets = base.shards();
  auto shards = rewritten(recipe, wholes, gathered);
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    shards[slot] = shard_of(shards[slot], *base.layout, layout->mesh().slots()[slot].coordinate);
  }
  write_once(targets, shards, [&](size_t slot) { write_into(targets[slot], shards[slot]); });
}

bool overlap(const Recipe& a, const Recipe& b) {
  if (a.base.sizes() != b.base.sizes() || a.base.strides() != b.base.strides()) return true;
  at::AutoDispatchBelowADInplaceOrView guard;
  auto shown = at::empty_strided(a.base.sizes(), a.base.strides(), a.base.scalar_type()).zero_();
  replay(a, shown).fill_(1);
  return at::any(replay(b, shown)).item<bool>();
}

// An expanded dim is one place in memory, and copy_ refuses to write it many times; all its values are equal.
void write_into(at::Tensor target, at::Tensor value) {
  for (int64_t d = 0; d < target.dim(); ++d) {
    if (target.stride(d) == 0 && target.size(d) > 1) target = target.narrow(d, 0, 1), value = value.narrow(d, 0, 1);
  }
  target.copy_(value);
}

}  // namespace intarsia
