#pragma once
// Writes a checkpoint: every rank the boxes that it owns.
//
//   checkpoint::save("runs/7/step-100", {{"model", model}, {"optimizer", optimizer}, {"step", 100}});
//
// Note [There or not]
// A checkpoint is written into a temporary folder beside its path, synced to disk, and renamed to its path when all
// ranks have written and the index is complete. A rank that is killed at any moment leaves either the checkpoint or a
// folder that the next save removes. An existing checkpoint is exchanged atomically.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "intarsia/checkpoint/items.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

struct SaveOptions {
  int64_t keep = 0;                    // how many checkpoints stay in the folder, this one among them; 0: all
  ProgressFn progress;                 // called with the bytes done; in addition, rank 0 reports long saves on stderr
  bool quiet = false;                  // it says nothing
  std::chrono::seconds timeout{1800};  // of an asynchronous save: how long it waits for other ranks
};

// All ranks of the current world call it together, with the same names. Plain tensors are those of rank 0; numbers and
// texts have to be the same on all ranks. Returns when the checkpoint is complete on the disk; an error on one rank is
// one on all.
void save(const std::string& path, const Items& items, const SaveOptions& options = {});

// A save that is under way.
class PendingSave {
 public:
  bool done() const;
  void wait();  // rethrows an error of the save; without a wait, the next save does, or stderr shows it when the
                // program ends

  struct State;
  explicit PendingSave(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// The same, but returns when everything has been copied to memory: tensors may change then. One save is under way at a
// time: the next one waits for it, and so does the end of the program.
PendingSave save_async(const std::string& path, const Items& items, const SaveOptions& options = {});
// Waits for the one that is under way, if any.
void wait_for_saves();

}  // namespace intarsia::checkpoint
