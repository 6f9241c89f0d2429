#include "intarsia/checkpoint/saving.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/writer.h"
#include "intarsia/core/copy_past_caches.h"

namespace intarsia::checkpoint {
namespace {

// The texts that ranks exchange begin with one of these.
constexpr char kWritten = 'W', kFailed = 'E';
constexpr std::chrono::milliseconds kLookAgain(5);

std::string file_name(int64_t rank, int64_t ranks) { return c10::str("rank-", rank, "-of-", ranks, ".safetensors"); }
std::string part_name(int64_t rank) { return c10::str("part-", rank); }

bool same_value(const Value& a, const Value& b) {
  auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return a == b || (x && y && std::isnan(*x) && std::isnan(*y));
}

// Raises an error that shows how the contents that two ranks save differ.
void check_alike(const CheckpointIndex& first, const CheckpointIndex& other, size_t rank) {
  auto differ = [&](const std::string& name, const std::string& here, const std::string& there) {
    TORCH_CHECK_VALUE(false, "rank 0 and rank ", rank, " save different things: \"", name, "\" is ", here,
                      " on rank 0 and ", there, " on rank ", rank,
                      ". All ranks have to give the same names, and equal numbers and texts");
  };
  for (auto& [name, tensor] : first.tensors) {
    auto found = other.tensors.find(name);
    if (found == other.tensors.end()) differ(name, "a tensor", "missing");
    auto here = tensor.form() + " " + tensor.layout, there = found->second.form() + " " + found->second.layout;
    if (here != there) differ(name, here, there);
  }
  for (auto& [name, value] : first.values) {
    auto found = other.values.find(name);
    if (found == other.values.end()) differ(name, str(value), "missing");
    if (!same_value(found->second, value)) differ(name, str(value), str(found->second));
  }
  for (auto& [name, tensor] : other.tensors) {
    if (!first.tensors.contains(name)) differ(name, "missing", "a tensor");
  }
  for (auto& [name, value] : other.values) {
    if (!first.values.contains(name)) differ(name, "missing", str(value));
  }
}

CheckpointIndex merged(const std::vector<std::string>& parts) {
  CheckpointIndex index;
  std::string failures;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    auto& text = parts[rank];
    if (!text.empty() && text[0] == kFailed)
      failures += c10::str(failures.empty() ? "" : "; ", "rank ", rank, ": ", text.substr(1));
  }
  TORCH_CHECK(failures.empty(), failures);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    auto part = parse_part(parts[rank].substr(1));
    auto base = static_cast<int64_t>(index.files.size());
    index.files.insert(index.files.end(), part.files.begin(), part.files.end());
    if (rank == 0) {
      index.tensors = part.tensors;
      index.values = part.values;
      continue;
    }
    check_alike(index, part, rank);
    for (auto& [name, tensor] : part.tensors) {
      auto& pieces = index.tensors.at(name).pieces;
      for (auto& piece : tensor.pieces) {
        pieces.push_back(piece);
        pieces.back().file += base;
      }
    }
  }
  index.ranks = parts.size();
  return index;
}

// The outcome of a save: the error, or the folders that are to be removed now.
std::string outcome_text(const std::vector<std::string>& retired) {
  std::string text(1, kWritten);
  for (auto& path : retired) text += path + '\0';
  return text;
}

std::vector<std::string> retired_in(const std::string& outcome) {
  std::vector<std::string> retired;
  if (outcome[0] != kWritten) return retired;
  std::istringstream rest(outcome.substr(1));
  for (std::string path; std::getline(rest, path, '\0');) retired.push_back(path);
  return retired;
}

// Removes an old checkpoint: every rank removes the files that the rank of the same number wrote, and the first rank
// the others.
void remove_share(const std::string& folder, const World& world) {
  constexpr const char* kBegin = "rank-";
  std::vector<std::string> names;
  try {
    names = names_in(folder);
  } catch (const c10::Error&) {  // removed already
  }
  for (auto& name : names) {
    bool data = name.compare(0, std::strlen(kBegin), kBegin) == 0;
    auto rank = data ? std::atoll(name.c_str() + std::strlen(kBegin)) % world.size() : 0;
    if (std::count(world.hosted().begin(), world.hosted().end(), rank)) try_to_remove(folder + "/" + name);
  }
  if (world.hosted()[0] == 0) try_to_remove(folder);
}

bool is_plain_memory(const at::Tensor& values) {
  return values.is_cpu() && values.is_contiguous() && !values.is_conj() && !values.is_neg();
}

// One buffer for all copies, kept for the next save of this thread: memory that is new to the process costs more than
// the copy.
at::Tensor& copies() {
  static thread_local at::Tensor buffer;
  return buffer;
}

}  // namespace

Saving::Saving(const World& world, const std::string& path, const Items& items, SaveOptions options)
    : world_(world), options_(std::move(options)) {
  Contents contents;
  try {
    do_together(world_, "checkpoint::save", [&] {
      path_ = checked_place(path, "save");
      contents = contents_of(items);
      if (leads()) check_replaceable(path_, "save");
      if (leads()) lock_.emplace(begin_folder(path_, id_ = new_id()));
    });
    agree();
    parts_ = owned_parts(world_, contents.tensors, forms_);
    values_ = std::move(contents.values);
  } catch (...) {
    if (lock_) try_to_remove(path_ + kSavingMark + id_);
    throw;
  }
}

// All ranks name one path, and write to the folder that the first one chooses.
void Saving::agree() {
  if (id_.empty()) id_ = new_id();  // only rank 0's is used
  auto all = gather_texts(world_, std::vector<std::string>(world_.hosted().size(), id_ + path_));
  auto length = id_.size();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank].substr(length) == all[0].substr(length), "[checkpoint::save] rank 0 saves to ",
                      all[0].substr(length), ", but rank ", rank, " to ", all[rank].substr(length),
                      ". All ranks have to name one folder.");
  }
  id_ = all[0].substr(0, length);
  folder_ = path_ + kSavingMark + id_;
}

void Saving::copy_to_memory() {
  at::NoGradGuard no_grad;
  int64_t total = 0;
  for (auto& part : parts_) total += bytes_of(part) + 8 * part.pieces.size();
  auto& buffer = copies();
  if (!buffer.defined() || buffer.numel() < total) {
    buffer = at::Tensor();  // the old one is freed before the new one is allocated
    buffer = at::empty({total}, at::kByte);
  }
  int64_t offset = 0;
  for (auto& part : parts_) {
    for (auto& piece : part.pieces) {
      auto bytes = static_cast<int64_t>(piece.values.nbytes());
      auto copy = buffer.narrow(0, offset, bytes).view(piece.values.scalar_type()).view(piece.values.sizes());
      if (is_plain_memory(piece.values))
        copy_past_caches(static_cast<char*>(copy.mutable_data_ptr()),
                         static_cast<const char*>(piece.values.const_data_ptr()), bytes);
      else
        copy.copy_(piece.values);
      piece.values = copy;
      offset += (bytes + 7) / 8 * 8;
    }
  }
}

// The checkpoint that this save replaces stays on the disk until the new one is complete, but the system may cache the
// new files in the memory of the old ones: allocating new memory can take longer than writing.
void Saving::make_room() const {
  for (auto& part : parts_) drop_from_cache(path_ + "/" + file_name(part.rank, world_.size()));
  if (!leads() || options_.keep == 0) return;
  try {
    auto old = complete(folder_of(path_));
    for (size_t i = 0; i + options_.keep <= old.size(); ++i) {
      for (auto& name : names_in(old[i])) drop_from_cache(old[i] + "/" + name);
    }
  } catch (const c10::Error&) {  // this only costs time
  }
}

void Saving::write() {
  // Not earlier: all ranks have left the saves before this one, and this removes the record of whether those failed.
  if (leads()) remove_abandoned(folder_of(path_));
  make_room();
  int64_t total = 0;
  for (auto& part : parts_) total += bytes_of(part);
  Progress progress("saving " + path_, total, options_.progress, leads() && !options_.quiet);
  for (auto& part : parts_) {
    try {
      auto index = write_part(folder_, file_name(part.rank, world_.size()), part, forms_, progress);
      index.values = values_;
      told_.push_back(kWritten + part_text(index));
    } catch (const std::exception& error) {
      told_.push_back(kFailed + text_of_error(error));
      remove_data();  // so that a full disk has room for the error text
    }
  }
}

void Saving::remove_data() {
  for (auto& part : parts_) {
    try {
      remove_all(folder_ + "/" + file_name(part.rank, world_.size()));
    } catch (const std::exception&) {  // the next save removes all of it
    }
  }
}

// Returns the outcome.
std::string Saving::commit(const std::vector<std::string>& parts) {
  try {
    auto index = merged(parts);
    index.id = id_;
    index.sequence = next_sequence(folder_of(path_));
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      for (auto& name : {part_name(rank), Presence::file_name(rank)}) remove_all(folder_ + "/" + name);
    }
    complete_checkpoint(folder_, path_, index);
  } catch (const std::exception& error) {
    return kFailed + text_of_error(error);
  }
  std::vector<std::string> retired;
  if (path_exists(folder_)) retired.push_back(folder_);  // what it replaced
  try {
    if (options_.keep > 0) {
      for (auto& old : retire(folder_of(path_), options_.keep)) retired.push_back(old);
    }
  } catch (const std::exception& error) {
    TORCH_WARN("[checkpoint::save] ", path_, " is complete, but an old one stays: ", text_of_error(error));
  }
  return outcome_text(retired);
}

void Saving::finish_together() {
  auto parts = gather_texts(world_, told_);
  std::vector<std::string> outcome(world_.hosted().size(), leads() ? commit(parts) : "");
  auto all = gather_texts(world_, outcome);
  if (all[0][0] == kWritten) {
    for (auto& folder : retired_in(all[0])) remove_share(folder, world_);
    return;
  }
  if (leads()) try_to_remove(folder_);
  TORCH_CHECK(false, "[checkpoint::save] ", path_, " was not written. ", all[0].substr(1));
}

void Saving::take_part() {
  if (static_cast<int64_t>(world_.hosted().size()) == world_.size()) return;
  auto rank = world_.hosted()[0];
  do_together(world_, "checkpoint::save", [&] { mine_.emplace(Presence::of_mine(folder_, rank)); });
}

// The folder keeps its name until this rank has written its part as well.
void Saving::look_for_others() {
  if (!mine_) return;
  auto rank = world_.hosted()[0];
  for (int64_t other = 0; other < world_.size(); ++other) {
    if (other != rank && (leads() || other == 0)) others_.push_back(Presence::of_another(folder_, other));
  }
}

void Saving::finish_alone() {
  if (static_cast<int64_t>(told_.size()) == world_.size()) return finish_together();  // no other rank to wait for
  auto name = folder_ + "/" + part_name(world_.hosted()[0]);
  write_text(name + ".new", told_[0]);
  put_in_place(name + ".new", name);
  std::string outcome;
  if (leads()) {
    outcome = commit(wait_for_parts());
    mine_->tell(outcome[0] == kWritten ? std::string(1, kWritten) : outcome);
    for (auto& folder : retired_in(outcome)) try_to_remove(folder);
  } else {
    outcome = wait_for_leader();
  }
  if (outcome[0] == kWritten) return;
  remove_data();
  TORCH_CHECK(false, "[checkpoint::save] ", path_, " was not written. ", outcome.substr(1));
}

std::vector<std::string> Saving::wait_for_parts() const {
  std::vector<std::string> parts;
  auto end = std::chrono::steady_clock::now() + options_.timeout;
  for (int64_t rank = 0; rank < world_.size(); ++rank) parts.push_back(part_of(rank, end));
  return parts;
}

// The text of a rank's part, or of its error.
std::string Saving::part_of(int64_t rank, std::chrono::steady_clock::time_point end) const {
  auto name = folder_ + "/" + part_name(rank);
  while (true) {
    bool gone = rank > 0 && others_[rank - 1].is_gone();  // checked first: a rank may write its part and end
    try {
      if (path_exists(name)) return read_text(name, INT64_MAX);
    } catch (const std::exception& error) {
      return kFailed + text_of_error(error);
    }
    if (gone) return kFailed + std::string("was gone before it had written its part");
    if (std::chrono::steady_clock::now() > end)
      return kFailed + c10::str("has not written its part in ", options_.timeout.count(), " s");
    std::this_thread::sleep_for(kLookAgain);
  }
}

std::string Saving::wait_for_leader() const {
  auto end = std::chrono::steady_clock::now() + options_.timeout;
  while (true) {
    bool gone = others_[0].is_gone();  // checked first, as above
    if (auto outcome = others_[0].told()) return *outcome;
    if (gone && is_in_place()) return std::string(1, kWritten);
    if (gone) return kFailed + std::string("rank 0: was gone before it was complete");
    if (std::chrono::steady_clock::now() > end)
      return kFailed + c10::str("rank 0: has not completed it in ", options_.timeout.count(), " s");
    std::this_thread::sleep_for(kLookAgain);
  }
}

// Whether rank 0 had moved the checkpoint to its path before it ended.
bool Saving::is_in_place() const {
  try {
    return read_index(path_).id == id_;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace intarsia::checkpoint
