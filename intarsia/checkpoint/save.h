#pragma once
// Writes a checkpoint: every rank writes the boxes that it owns.
//
//   checkpoint::save("runs/7/step-100", {{"model", model}, {"optimizer", optimizer}, {"step", 100}});
//
// Note [There or not]
// A checkpoint is written into a temporary folder beside its path, synced to disk, and renamed to its path when all
// ranks have written and the index is complete. If a rank is killed at any moment, either the checkpoint exists, or a
// folder that the next save removes. An existing checkpoint is exchanged atomically.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "intarsia/checkpoint/items.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

struct SaveOptions {
  int64_t keep = 0;                    // how many checkpoints stay in the folder, including this one; 0: all
  ProgressFn progress;                 // called with the bytes done; in addition, rank 0 reports long saves on stderr
  bool quiet = false;                  // rank 0 reports nothing
  std::chrono::seconds timeout{1800};  // of an asynchronous save: how long it waits for other ranks
};

// All ranks of the current world call it together, with the same names. For a plain tensor, rank 0's is saved; numbers
// and texts must be the same on all ranks. Returns when the checkpoint is complete on the disk; an error on one rank is
// raised on all.
void save(const std::string& path, const Items& items, const SaveOptions& options = {});

// A save in progress.
class PendingSave {
 public:
  bool done() const;
  void wait();  // rethrows an error of the save. Without a wait, the next save rethrows it, or it appears on stderr
                // when the program ends

  struct State;
  explicit PendingSave(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// The same, but returns when everything has been copied to memory: tensors may change then. One save can be in progress
// at a time: the next one waits for it, and so does the end of the program.
PendingSave save_async(const std::string& path, const Items& items, const SaveOptions& options = {});
// Waits for the save in progress, if any.
void wait_for_saves();

}  // namespace intarsia::checkpoint
