#pragma once
// Building blocks of ops on lists of tensors: foreach, fused optimizer steps, the check of a gradient scaler.
//
// Note [Elements of lists]
// Element i of a result depends only on the elements i of the lists, and on numbers. So a list may mix plain tensors
// with tensors of any meshes and layouts: elements of one mesh are handled by one call per rank on the lists of local
// shards, plain ones by the plain op. An op checks all elements before it writes to the first.

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "intarsia/core/layout.h"
#include "intarsia/rules/lowering.h"

namespace intarsia {

using Lists = std::vector<std::vector<at::Tensor>>;  // per argument; empty where it is none
constexpr size_t kLeaders = 0, kGradients = 1;       // the others follow the first; the second may have another layout

// A tensor's properties that decide how an op on lists handles it.
struct ListItem {
  bool defined;
  at::IntArrayRef sizes;
  const Layout* layout;  // null if it is plain
  at::ScalarType dtype;
};
ListItem item_of(const at::Tensor& tensor);

// Whether it is a number that is the same on all ranks of each group of the mesh; for an undefined mesh: a number that
// each rank has. It then serves any layout there.
bool serves(const ListItem& item, const DeviceMesh& mesh);
// Whether both have one form and are on one mesh, or both are plain.
bool is_partner(const ListItem& item, const ListItem& leader);

// The elements that share a mesh, one part per mesh in order of appearance; plain elements form a separate part.
struct ListPart {
  DeviceMesh mesh;  // undefined: plain
  std::vector<size_t> elements;
};
template <class ItemAt>
std::vector<ListPart> parts_of(size_t count, ItemAt item) {
  std::vector<ListPart> parts;
  for (size_t i = 0; i < count; ++i) {
    auto* layout = item(kLeaders, i).layout;
    auto mesh = layout ? layout->mesh() : DeviceMesh();
    auto known = std::find_if(parts.begin(), parts.end(), [&](auto& part) { return part.mesh == mesh; });
    if (known == parts.end()) known = parts.insert(parts.end(), ListPart{mesh, {}});
    known->elements.push_back(i);
  }
  return parts;
}

// Whether every rank can do its part of these elements alone, in one call: the leaders are all plain or on the part's
// mesh, and every other element has its leader's layout, or is a number that serves. With `may_move`, gradients are
// treated as if they had been redistributed to their leaders' layouts. item(arg, i) is element i of the list at arg.
template <class ItemAt>
bool lie_alike(const ListPart& part, const std::vector<size_t>& lengths, bool may_move, ItemAt item) {
  if (part.mesh.defined() && part.mesh.slots().empty()) return false;
  for (auto i : part.elements) {
    auto leader = item(kLeaders, i);
    if (!leader.defined || (leader.layout && leader.layout->has_partial())) return false;
    for (size_t arg = kLeaders + 1; arg < lengths.size(); ++arg) {
      if (lengths[arg] == 0) continue;
      auto own = item(arg, i);
      if (!is_partner(own, leader)) {
        bool may_differ =
            leader.sizes.empty() && (!leader.layout || arg == kGradients);  // the step of a scalar parameter does not
        if (may_differ || !serves(own, part.mesh)) return false;
      } else if (own.layout != leader.layout && !(may_move && arg == kGradients)) {
        return false;
      }
    }
  }
  return true;
}

// The tensor lists among the arguments on the stack.
Lists lists_of(const Stack& stack);

// The shard of a rank; for a number on another mesh, the rank's copy. Plain tensors stay as they are; per-rank tensors
// become the rank's value.
at::Tensor at_slot(const at::Tensor& tensor, const DeviceMesh& mesh, size_t slot);

// Runs the op on elements with one layout each, or all plain, and returns the results, one per element; none if the op
// returns nothing.
std::vector<at::Tensor> run_on_part(const c10::OperatorHandle& op, const Stack& stack, const ListPart& part);

}  // namespace intarsia
