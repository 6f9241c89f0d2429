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

// A moment passes between making a folder and locking it, and between unlocking it and giving it its name.
bool is_fresh(const std::string& path) {
  std::error_code error;
  auto changed = std::filesystem::last_write_time(path, error);
  return error || std::filesystem::file_time_type::clock::now() - changed < std::chrono::minutes(1);
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
    TORCH_CHECK(bytes == file.bytes, "the file ", name, ", which rank ", file.rank, " wrote, has ", bytes, " bytes, but had ",
                file.bytes, " when it was written");
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

void keep(const std::string& folder, int64_t count) {
  TORCH_CHECK_VALUE(count > 0, "[checkpoint::keep] cannot keep ", count, " checkpoints. Keep one at least.");
  auto found = find_complete(folder);
  for (size_t i = 0; i + count < found.size(); ++i) {
    // Under another name it is no checkpoint any more: one that is half removed is not found, and goes with the next save.
    auto gone = found[i].path + kSavingMark + new_id();
    std::filesystem::rename(found[i].path, gone);
    remove_all(gone);
  }
}

void remove_abandoned(const std::string& folder) {
  for (auto& name : names_in(folder)) {
    if (!is_being_written(name)) continue;
    auto path = folder + "/" + name, lock = path + "/" + kLockName;
    bool in_use = path_exists(lock) ? !OpenFile::reading(lock).try_lock() : is_fresh(path);
    if (!in_use) remove_all(path);
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
  auto lock = OpenFile::writing(folder + "/" + kLockName);
  lock.try_lock();  // a file system without locks: then nobody removes it but by its age
  return lock;
}

void complete_folder(const std::string& folder, const std::string& path) {
  remove_all(folder + "/" + kLockName);
  sync_folder(folder);
  bool replaced = put_in_place(folder, path);
  sync_folder(folder_of(path));
  if (replaced) remove_all(folder);
}

void complete_checkpoint(const std::string& folder, const std::string& path, const CheckpointIndex& index) {
  auto text = index_text(index);
  parse_index(text);  // whatever is wrong with it is told now, and not when it is needed
  write_text(folder + "/" + kIndexName, text);
  complete_folder(folder, path);
}

}  // namespace intarsia::checkpoint
