#include "intarsia/nn/parallelize_module.h"

#include <fnmatch.h>

#include <set>

#include <torch/nn/module.h>

#include "intarsia/nn/rollback.h"

namespace intarsia {
namespace {

struct Found {
  torch::nn::Module* module;
  std::string path;
};

// The modules that the rest of a path, `tokens` from `next` on, matches under `module`.
void find(torch::nn::Module& module, const std::string& path, const std::vector<std::string>& tokens, size_t next,
          std::vector<Found>& found) {
  if (next == tokens.size()) return found.push_back({&module, path});
  for (auto& child : module.named_children()) {
    if (fnmatch(tokens[next].c_str(), child.key().c_str(), FNM_NOESCAPE) != 0) continue;
    find(*child.value(), path.empty() ? child.key() : path + "." + child.key(), tokens, next + 1, found);
  }
}

std::vector<Found> matches(torch::nn::Module& module, const std::string& path) {
  std::vector<std::string> tokens;
  for (size_t begin = 0; !path.empty() && begin <= path.size();) {
    auto end = std::min(path.find('.', begin), path.size());
    tokens.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<Found> found;
  find(module, "", tokens, 0, found);
  return found;
}

}  // namespace

void parallelize_module(ModuleRef given, const DeviceMesh& mesh, const ParallelPlan& plan,
                        std::optional<int64_t> src_data_rank) {
  auto& module = *given;
  TORCH_CHECK_VALUE(mesh.ndim() == 1, "[parallelize_module] ", mesh.text(), " has ", mesh.ndim(),
                    " axes. Tensor parallelism takes one: slice the mesh, as in mesh[\"", mesh.axis_name(-1), "\"].");
  TORCH_CHECK_VALUE(!src_data_rank || (0 <= *src_data_rank && *src_data_rank < mesh.size()),
                    "[parallelize_module] src_data_rank ", src_data_rank.value_or(0), " is not on ", mesh.text(),
                    ". It must be below ", mesh.size(), ", or std::nullopt.");
  if (plan.entries().empty()) {
    TORCH_WARN("[parallelize_module] the plan is empty: nothing is parallelized. Give a style, or styles by path.");
    return;
  }
  std::vector<std::pair<const ParallelStyle*, StyleTarget>> work;
  for (auto& [path, style] : plan.entries()) {
    auto found = matches(module, path);
    if (found.empty()) {
      TORCH_WARN("[parallelize_module] the path \"", path, "\" of the plan matches no module of ", module.name(),
                 ": nothing is done for it. Compare it with named_modules().");
    }
    std::set<torch::nn::Module*> seen;  // a module may be registered in two places
    for (auto& [target, name] : found) {
      if (seen.insert(target).second) work.emplace_back(&*style, StyleTarget{*target, mesh, name, src_data_rank});
    }
  }
  check_not_sharded("parallelize_module", module);
  for (auto& [style, target] : work) style->check(target);
  Rollback rollback(module);
  for (auto& [style, target] : work) style->apply(target);
  rollback.complete();
}

void parallelize_module(ModuleRef module, const ParallelPlan& plan, std::optional<int64_t> src_data_rank) {
  parallelize_module(module, current_mesh("parallelize_module"), plan, src_data_rank);
}

}  // namespace intarsia
