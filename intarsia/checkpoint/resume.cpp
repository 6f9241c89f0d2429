#include "intarsia/checkpoint/resume.h"

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/save.h"
#include "intarsia/core/world.h"

namespace intarsia::checkpoint {

std::optional<std::string> newest_for_all(const std::string& folder) {
  auto& world = current_world("checkpoint::resume");
  std::string mine;
  do_together(world, "checkpoint::resume", [&] {
    wait_for_saves();  // of this process: one of them may be the newest
    auto found = complete(folder);
    if (!found.empty()) mine = found.back();
  });
  auto all = gather_texts(world, std::vector<std::string>(world.hosted().size(), mine));
  auto words = [](const std::string& path) { return path.empty() ? std::string("none") : path; };
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank] == all[0], "[checkpoint::resume] the newest checkpoint is ", words(all[0]),
                      " on rank 0 and ", words(all[rank]), " on rank ", rank,
                      ". All ranks have to name one folder, and to see the same files.");
  }
  return all[0].empty() ? std::nullopt : std::optional(all[0]);
}

std::optional<Loaded> resume(const std::string& folder, const Items& items, const LoadOptions& options) {
  auto newest = newest_for_all(folder);
  return newest ? std::optional(load(*newest, items, options)) : std::nullopt;
}

}  // namespace intarsia::checkpoint
