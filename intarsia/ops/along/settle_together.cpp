#include "intarsia/ops/along/settle_together.h"

#include <algorithm>

#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

std::vector<int64_t> axes_of(const Layout& layout, ReduceOp op) {
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (pending_op(layout.placements()[axis]) == op) axes.push_back(axis);
  }
  return axes;
}

// The tensors that have to be reduced, one list per layout.
std::vector<std::vector<at::Tensor>> unsettled_by_layout(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> lists;
  for (auto& tensor : tensors) {
    if (!is_dtensor(tensor)) continue;
    auto& body = body_of(tensor);
    if (!body.layout->has_partial() || !settle_by_sums(*body.layout) || body.shards().empty() || body.known_settled())
      continue;
    auto same = [&](auto& list) { return body_of(list[0]).layout == body.layout; };
    auto list = std::find_if(lists.begin(), lists.end(), same);
    if (list == lists.end()) list = lists.emplace(lists.end());
    auto known = std::any_of(list->begin(), list->end(), [&](auto& other) { return &body_of(other) == &body; });
    if (!known) list->push_back(tensor);
  }
  return lists;
}

}  // namespace

bool settle_by_sums(const Layout& layout) {
  return std::all_of(layout.placements().begin(), layout.placements().end(),
                     [](auto& placement) { return !is_partial(placement) || adds_up(placement); });
}

ShardsList settled_together(const Layout& layout, ShardsList values) {
  for (auto op : {ReduceOp::sum, ReduceOp::avg}) {
    auto axes = axes_of(layout, op);
    if (!axes.empty()) values = all_reduce(Axis::of(layout.mesh(), axes), values, op);
  }
  return values;
}

void settle_together(const std::vector<at::Tensor>& tensors) {
  for (auto& list : unsettled_by_layout(tensors)) {
    if (list.size() < 2) continue;  // its reader reduces it
    auto* layout = body_of(list[0]).layout;
    ShardsList values;
    for (auto& tensor : list) values.push_back(body_of(tensor).shards());
    values = settled_together(*layout, std::move(values));
    auto* done = layout->with(settled(layout->placements()));
    for (size_t i = 0; i < list.size(); ++i) {
      auto& body = body_of(list[i]);
      body.settled([&] { return DTensorBody::Settled{done, body.version(), values[i]}; });
    }
  }
}

}  // namespace intarsia
