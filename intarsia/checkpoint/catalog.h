#pragma once
// Lists the checkpoints of a folder: which are complete, which is the newest, and which may be removed.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/checkpoint/index.h"

namespace intarsia::checkpoint {

// The complete checkpoints in `folder`, the oldest first: their index can be read, and their files exist and have the
// lengths in it.
std::vector<std::string> complete(const std::string& folder);

// The newest of them; an error if there is none. On several ranks, call it on each: the answer is the same as long as
// no save runs.
std::string latest(const std::string& folder);
bool has_latest(const std::string& folder);

// Removes the oldest ones until `count` are left. Folders that are not checkpoints are left alone.
void keep(const std::string& folder, int64_t count);
// The first half of it: gives the checkpoints to be removed names under which they are no longer checkpoints, and
// returns these.
std::vector<std::string> retire(const std::string& folder, int64_t count);

// Part of the name of a checkpoint that is being written, and the file in it that the writer keeps locked.
constexpr const char* kSavingMark = ".saving-";
constexpr const char* kLockName = "lock";

// Removes the folders of killed saves: those whose lock is free.
void remove_abandoned(const std::string& folder);

// The sequence number of the next checkpoint in the folder.
int64_t next_sequence(const std::string& folder);

// Raises an error if a file is missing or its length differs from the index.
void check_files(const std::string& path, const CheckpointIndex& index);

// A new, unique name for a checkpoint that is being written.
std::string new_id();

// `path` without trailing slashes; an error of `where` if it is not a valid name for a checkpoint.
std::string checked_place(const std::string& path, const char* where);

// Raises an error of `where` if there is something at `path` that is not a checkpoint: a save must not remove a folder
// of checkpoints.
void check_replaceable(const std::string& path, const char* where);

// Creates the folder in which `path` is written, and holds its lock.
OpenFile begin_folder(const std::string& path, const std::string& id);

// See Note [There or not]. The first moves a folder whose files are on the disk to its path; the second writes the
// index first. If something was at `path`, it has the name `folder` afterwards, and is to be removed.
void complete_folder(const std::string& folder, const std::string& path);
void complete_checkpoint(const std::string& folder, const std::string& path, const CheckpointIndex& index);

// Removes what is no longer a checkpoint. What cannot be removed now, the next save removes.
void try_to_remove(const std::string& path);

}  // namespace intarsia::checkpoint
