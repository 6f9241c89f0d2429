#pragma once
// The steps of a save: agree on a folder, write, commit.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/checkpoint/pieces.h"
#include "intarsia/checkpoint/presence.h"
#include "intarsia/checkpoint/save.h"

namespace intarsia::checkpoint {

// One save, from beginning to end. Its steps `look_for_others`, `write` and `finish_alone` do not communicate.
class Saving {
 public:
  // All ranks agree on the folder to write to.
  Saving(const World& world, const std::string& path, const Items& items, SaveOptions options);

  void take_part();        // before finish_alone: each rank shows that it is alive, where the others can see it
  void copy_to_memory();   // so that the tensors may change
  void look_for_others();  // after take_part and before write
  void write();            // what the hosted ranks own; the next step raises errors

  // Rank 0 makes one checkpoint of everything that was written. An error of any rank is raised on all of them.
  void finish_together();
  // The same on another thread, where ranks signal each other through files.
  void finish_alone();

 private:
  bool leads() const { return world_.hosted()[0] == 0; }
  void agree();
  std::string commit(const std::vector<std::string>& parts);
  std::vector<std::string> wait_for_parts() const;
  std::string part_of(int64_t rank, std::chrono::steady_clock::time_point end) const;
  std::string wait_for_leader() const;
  bool is_in_place() const;
  void make_room() const;
  void remove_data();

  const World& world_;
  std::string path_, id_, folder_;  // the last is the folder that is written
  SaveOptions options_;
  std::map<std::string, IndexedTensor> forms_;
  ValueMap values_;
  std::vector<OwnedPart> parts_;
  std::vector<std::string> told_;  // per hosted rank: what it wrote, or its error
  std::optional<OpenFile> lock_;
  std::optional<Presence> mine_;
  std::vector<Presence> others_;  // the ranks that this one waits for: all on rank 0, rank 0 on any other
};

}  // namespace intarsia::checkpoint
