#pragma once
// Reads a checkpoint, or files of Hugging Face, into modules, optimizers and tensors, whatever their layouts.
//
//   auto loaded = checkpoint::load(checkpoint::latest("runs/7"), {{"model", model}, {"optimizer", optimizer}});
//   auto step = loaded.integer("step");
//   checkpoint::load("llama", {{"", model}});  // a folder with model.safetensors.index.json, or a .safetensors file

#include <string>
#include <vector>

#include "intarsia/checkpoint/items.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

struct LoadOptions {
  bool strict = true;  // names that are missing, unexpected or do not fit are an error, before anything is read
  Rename rename;       // from a name in the program to the one in the checkpoint
  ProgressFn progress;
  bool quiet = false;
};

// The values of a checkpoint, and the names that a non-strict load left out.
class Loaded {
 public:
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  bool flag(const std::string& name) const;
  std::string text(const std::string& name) const;
  bool has(const std::string& name) const { return values_.contains(name); }
  const ValueMap& values() const { return values_; }
  const std::vector<std::string>& missing() const { return missing_; }        // requested, but not in the checkpoint
  const std::vector<std::string>& unexpected() const { return unexpected_; }  // in the checkpoint, but not requested
  const std::vector<std::string>& mismatched() const { return mismatched_; }  // of another shape or kind

 private:
  friend Loaded load(const std::string&, const Items&, const LoadOptions&);
  ValueMap values_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

// Reads into the items, in place: tensors keep their layouts, dtypes and handles. Every rank of the current world calls
// it and reads what it holds; ranks send each other only short texts, and parts of blocks that several of them need
// (see Note [Whole blocks]). The checkpoint may come from any number of ranks in any layouts. Items that are not
// requested are left alone, so a part can be loaded; a module or an optimizer requests everything it has. An error on
// one rank is raised on all. An error while tensors are read (a damaged file) leaves some of them changed.
Loaded load(const std::string& path, const Items& items, const LoadOptions& options = {});

// The index of anything that `load` can read.
CheckpointIndex index_of(const std::string& path);

}  // namespace intarsia::checkpoint
