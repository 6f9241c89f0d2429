#pragma once
// Reads a checkpoint, or files of Hugging Face, into modules, optimizers and tensors, whatever their layouts.
//
//   auto step = checkpoint::load(checkpoint::latest("runs/7"), {{"model", model}, {"optimizer",
//   optimizer}}).integer("step"); checkpoint::load("llama", {{"", model}});  // a folder with
//   model.safetensors.index.json, or one .safetensors file

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

// What a checkpoint had beside tensors, and what a load that is not strict left out.
class Loaded {
 public:
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  bool flag(const std::string& name) const;
  std::string text(const std::string& name) const;
  bool has(const std::string& name) const { return values_.contains(name); }
  const ValueMap& values() const { return values_; }
  const std::vector<std::string>& missing() const { return missing_; }        // asked for, but not there
  const std::vector<std::string>& unexpected() const { return unexpected_; }  // there, but not asked for
  const std::vector<std::string>& mismatched() const { return mismatched_; }  // of another shape or kind

 private:
  friend Loaded load(const std::string&, const Items&, const LoadOptions&);
  ValueMap values_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

// Reads into the items, in place: tensors keep their layouts, dtypes and handles. Every rank of the current world calls
// it and reads what it holds; nothing is sent but a word at the end. The checkpoint may come from any number of ranks
// in any layouts. Items that are not asked for are left alone, so a part can be loaded; in a module or an optimizer
// everything is asked for. An error on one rank is one on all. One that comes while tensors are read (a damaged file)
// leaves some of them changed.
Loaded load(const std::string& path, const Items& items, const LoadOptions& options = {});

// The index of whatever `load` can read.
CheckpointIndex index_of(const std::string& path);

}  // namespace intarsia::checkpoint
