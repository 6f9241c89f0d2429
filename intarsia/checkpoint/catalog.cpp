#include "intarsia/checkpoint/catalog.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

#include "intarsia/checkpoint/checksum.h"

namespace intarsia::checkpoint {
namespace {

struct Found {
  int64_t sequence;
  std::string path;
};

bool is_being_written(const std::string& name) { return name.find(kSavingMark) != std::string::npos; }

// A moment passes between creating a folder and locking it, and between unlocking it and renaming it.
bool is_fresh(const std::string& path) {
  std::error_code error;
  auto changed = std::filesystem::last_write_time(path, error);
  return error || std::filesystem::file_time_type::clock::now() - changed < std::chrono::minutes(1);
}

// If the file disappears while this looks, its owner is at work.
bool is_in_use(const std::string& path, const std::string& lock) {
  if (!path_exists(lock)) return is_fresh(path);
  try {
    return !OpenFile::changing(lock).try_lock();
  } catch (const c10::Error&) {
    return true;
  }
}

std::vector<Found> find_complete(const std::string& folder) {
  std::vector<Found> found;
  for (auto& name : names_in(folder)) {
    auto path = folder + "/" + name;
    if (is_being_written(name) || !path_exists(path + "/" + kIndexName)) continue;
    try {
      auto index = read_index(path);
      check_files(path, index);
      found.push_back({index.sequence, path});
    } catch (const c10::Error&) {  // not complete
    }
  }
  std::stable_sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.sequence < b.sequence; });
  return found;
}

}  // namespace

void check_files(const std::string& path, const CheckpointIndex& index) {
  for (auto& file : index.files) {
    auto name = path + "/" + file.name;
    TORCH_CHECK(path_exists(name), "the file ", name, ", which rank ", file.rank, " wrote, is missing");
    auto bytes = file_size(name);
    TORCH_CHECK(bytes == file.bytes, "the file ", name, ", which rank ", file.rank, " wrote, has ", bytes,
                " bytes, but had ", file.bytes, " when it was written");
  }
}

std::vector<std::string> complete(const std::string& folder) {
  std::vector<std::string> paths;
  for (auto& found : find_complete(folder)) paths.push_back(found.path);
  return paths;
}

bool has_latest(const std::string& folder) { return !find_complete(folder).empty(); }

std::string latest(const std::string& folder) {
  auto found = find_complete(folder);
  TORCH_CHECK(!found.empty(), "[checkpoint::latest] there is no complete checkpoint in ", folder, ".");
  return found.back().path;
}

std::vector<std::string> retire(const std::string& folder, int64_t count) {
  TORCH_CHECK_VALUE(count > 0, "[checkpoint::keep] cannot keep ", count, " checkpoints. Keep one at least.");
  auto found = find_complete(folder);
  std::vector<std::string> retired;
  for (size_t i = 0; i + count < found.size(); ++i) {
    auto gone = found[i].path + kSavingMark + new_id();
    std::error_code error;
    std::filesystem::rename(found[i].path, gone, error);
    if (error == std::errc::no_such_file_or_directory) continue;  // another process removes folders as well
    TORCH_CHECK(!error, "could not remove ", found[i].path, ": ", error.message());
    retired.push_back(gone);
  }
  return retired;
}

void keep(const std::string& folder, int64_t count) {
  for (auto& path : retire(folder, count)) remove_all(path);
}

void try_to_remove(const std::string& path) {
  try {
    remove_all(path);
  } catch (const c10::Error&) {
  }
}

void remove_abandoned(const std::string& folder) {
  std::vector<std::string> names;
  try {
    names = names_in(folder);
  } catch (const c10::Error&) {  // a folder that can be written to, but not listed
  }
  for (auto& name : names) {
    if (!is_being_written(name)) continue;
    auto path = folder + "/" + name, lock = path + "/" + kLockName;
    if (!is_in_use(path, lock)) try_to_remove(path);
  }
}

int64_t next_sequence(const std::string& folder) {
  auto found = find_complete(folder);
  return found.empty() ? 1 : found.back().sequence + 1;
}

std::string new_id() {
  std::random_device device;
  return checksum_text(static_cast<uint64_t>(device()) << 32 | device()).substr(0, 12);
}

OpenFile begin_folder(const std::string& path, const std::string& id) {
  make_folders(folder_of(path));
  auto folder = path + kSavingMark + id;
  make_folders(folder);
  // It is renamed to this once it is locked: an unlocked file was left by a process that has ended.
  auto name = folder + "/" + kLockName;
  auto lock = OpenFile::writing(name + ".new");
  lock.try_lock();
  put_in_place(name + ".new", name);
  return lock;
}

std::string checked_place(const std::string& path, const char* where) {
  auto name = name_of(path);
  bool fits =
      !name.empty() && name != "." && name != ".." && !is_being_written(name) && path.find('\0') == std::string::npos;
  TORCH_CHECK_VALUE(fits, "[checkpoint::", where, "] \"", path, "\" is no name for a checkpoint. Name a folder, ",
                    "such as runs/7/step-100.");
  return path.substr(0, path.find_last_not_of('/') + 1);
}

void check_replaceable(const std::string& path, const char* where) {
  if (!path_exists(path) || path_exists(path + "/" + kIndexName)) return;
  bool is_file = !std::filesystem::is_directory(path);
  TORCH_CHECK_VALUE(!is_file && names_in(path).empty(), "[checkpoint::", where, "] ", path, " is ",
                    is_file ? "a file" : "a folder with other things than a checkpoint",
                    ", which would be lost. Name a new folder, such as ", path, "/step-100.");
}

void complete_folder(const std::string& folder, const std::string& path) {
  remove_all(folder + "/" + kLockName);
  sync_folder(folder);
  put_in_place(folder, path);
  sync_folder(folder_of(path));
}

void complete_checkpoint(const std::string& folder, const std::string& path, const CheckpointIndex& index) {
  auto text = index_text(index);
  parse_index(text);  // an error in it shows now, not when it is needed
  write_text(folder + "/" + kIndexName, text);
  complete_folder(folder, path);
}

}  // namespace intarsia::checkpoint
