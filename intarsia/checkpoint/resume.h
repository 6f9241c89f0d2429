#pragma once
// Loads the newest checkpoint of a training run, if there is one.
//
//   if (auto loaded = checkpoint::resume("runs/7", items)) step = loaded->integer("step");

#include <optional>
#include <string>

#include "intarsia/checkpoint/load.h"

namespace intarsia::checkpoint {

// The newest complete checkpoint of the folder, as all ranks of the current world see it; they call it together.
std::optional<std::string> newest_for_all(const std::string& folder);

// Loads the newest complete checkpoint of the folder, as load does; none if there is none, or no such folder. All ranks
// of the current world call it together. An error if they do not find the same one.
std::optional<Loaded> resume(const std::string& folder, const Items& items, const LoadOptions& options = {});

}  // namespace intarsia::checkpoint
