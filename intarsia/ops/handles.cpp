// Ops about a tensor's handle, form or history rather than its values; and what copies of a tensor keep.

#include "intarsia/core/foreign.h"
#include "intarsia/ops/all.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

bool copies_into_any(const at::Tensor& self, const at::Tensor& from) {
  return foreign_kind(self).empty() && foreign_kind(from).empty();
}

// set_data may turn a plain parameter into a distributed one and back. It calls this op first, so this is where a new
// distributed value takes over the note of the old one.
bool copies_note_into(const at::Tensor& self, const at::Tensor& from) {
  if (is_dtensor(self) && is_dtensor(from) && body_of(self).note && !body_of(from).note) {
    attach_note(from, body_of(self).note);
  }
  return copies_into_any(self, from);
}

constexpr auto kGivesMemory =
    "gives a tensor the memory of another, and a distributed tensor has none of its own. Use copy_ or set_data. To "
    "load a module, as "
    "torch::load does by this op, use checkpoint::load; or load a plain one and call load_full_state_dict(module, "
    "full_state_dict(plain)).";

}  // namespace

void add_handles(RuleTable& t) {
  t.traits({"aten::detach", "aten::detach_", "aten::requires_grad_", "aten::set_data", "aten::data", "aten::is_leaf",
            "aten::output_nr", "aten::_version", "aten::retain_grad", "aten::retains_grad", "aten::_backward",
            "aten::_fw_primal", "aten::_make_dual", "aten::_unpack_dual", "aten::_has_compatible_shallow_copy_type"},
           [](Traits& traits) { traits.about_the_handle = true; });
  t.traits({"aten::lift_fresh", "aten::_shape_as_tensor"}, [](Traits& traits) { traits.hands_on = true; });
  t.traits({"aten::detach", "aten::alias", "aten::clone", "aten::copy"},
           [](Traits& traits) { traits.keeps_value = true; });
  t.traits({"aten::clone", "aten::_to_copy"}, [](Traits& traits) { traits.keeps_note = true; });
  t.traits("aten::resize_as_").forms_empty = true;
  t.traits("aten::set_").refused = kGivesMemory;

  t.kernel("aten::detach", another_handle);
  t.gradient("aten::_has_compatible_shallow_copy_type", copies_note_into);
  t.per_rank_gradient("aten::_has_compatible_shallow_copy_type", copies_into_any);
}

}  // namespace intarsia
