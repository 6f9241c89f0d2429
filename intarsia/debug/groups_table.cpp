#include "intarsia/debug/groups_table.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "intarsia/data_parallel/fully_shard/group_hooks.h"
#include "intarsia/data_parallel/replicate/reducer.h"
#include "intarsia/debug/text_table.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

struct GroupLine {
  std::string kind, name, mesh, state;
  int64_t parameters = 0, whole = 0, held = 0;  // bytes
  std::vector<std::string> layouts;             // each once
};

// Bytes of the hosted rank that has most. Does not communicate.
int64_t bytes_held(const at::Tensor& tensor) {
  int64_t most = 0;
  if (!is_dtensor(tensor)) return value_at(tensor, 0).numel() * tensor.element_size();
  for (auto& shard : body_of(tensor).last_known_shards())
    most = std::max<int64_t>(most, shard.numel() * shard.element_size());
  return most;
}

std::string counted(size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string state_of(const ParamGroup& group) {
  return std::string(group.is_whole()   ? "whole"
                     : group.is_begun() ? "being gathered"
                                        : "shards") +
         (group.reshards_after_forward() ? ", freed after forward" : ", kept after forward");
}

GroupLine begin_line(const at::Tensor& leaf, LeafWatcher* watcher) {
  if (auto group = group_of(leaf)) {
    return {"fully_shard", group->name(), group->mesh().text(), state_of(*group), 0, 0, 0, {}};
  }
  if (auto* reducer = dynamic_cast<Reducer*>(watcher)) {
    return {"replicate",
            reducer->name(),
            reducer->mesh().text(),
            counted(reducer->bucket_names().size(), "bucket"),
            0,
            0,
            0,
            {}};
  }
  return {
      is_dtensor(leaf) ? "distributed" : "plain", "-", is_dtensor(leaf) ? mesh_of(leaf).text() : "-", "", 0, 0, 0, {}};
}

void add_to(GroupLine& line, const at::Tensor& value) {
  ++line.parameters;
  line.whole += value.numel() * static_cast<int64_t>(value.element_size());
  line.held += bytes_held(value);
  auto layout = is_dtensor(value) ? str(placements_of(value)) : "plain";
  if (std::find(line.layouts.begin(), line.layouts.end(), layout) == line.layouts.end()) line.layouts.push_back(layout);
}

}  // namespace

std::string groups_table(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::vector<GroupLine> lines;
  std::map<std::pair<LeafWatcher*, std::string>, size_t> places;
  std::set<const c10::TensorImpl*> seen;  // a tied parameter counts once
  bool any = false;
  for (auto& [name, leaf] : parameters) {
    if (!leaf.defined() || !seen.insert(leaf.unsafeGetTensorImpl()).second) continue;
    auto watcher = watcher_of(leaf);
    any = any || watcher;
    auto line = begin_line(leaf, watcher.get());
    auto [place, is_new] = places.try_emplace({watcher.get(), line.kind + line.mesh}, lines.size());
    if (is_new) lines.push_back(std::move(line));
    add_to(lines[place->second], at_rest(leaf));
  }
  if (!any) return "";
  TextTable table({"kind", "group", ">parameters", "on", "layouts", ">bytes", ">of a rank", "state"});
  GroupLine total;
  for (auto& line : lines) {
    std::string layouts;
    for (auto& layout : line.layouts) layouts += (layouts.empty() ? "" : ", ") + layout;
    table.add({line.kind, line.name, std::to_string(line.parameters), line.mesh, layouts, std::to_string(line.whole),
               std::to_string(line.held), line.state});
    total.parameters += line.parameters, total.whole += line.whole, total.held += line.held;
  }
  table.add({"total", "", std::to_string(total.parameters), "", "", std::to_string(total.whole),
             std::to_string(total.held), ""});
  return table.text();
}

}  // namespace intarsia
