#include "intarsia/checkpoint/saving.h"

#include <cmath>
#include <thread>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/tell.h"
#include "intarsia/checkpoint/writer.h"

namespace intarsia::checkpoint {
namespace {

// What ranks tell each other begins with one of these.
constexpr char kWritten = 'W', kFailed = 'E';
constexpr const char* kFailedName = "failed";

std::string file_name(int64_t rank, int64_t ranks) { return c10::str("rank-", rank, "-of-", ranks, ".safetensors"); }
std::string part_name(int64_t rank) { return c10::str("part-", rank); }

bool same_value(const Value& a, const Value& b) {
  auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return a == b || (x && y && std::isnan(*x) && std::isnan(*y));
}

// What ranks that save different things differ in.
void check_alike(const CheckpointIndex& first, const CheckpointIndex& other, size_t rank) {
  auto differ = [&](const std::string& name, const std::string& here, const std::string& there) {
    TORCH_CHECK_VALUE(false, "rank 0 and rank ", rank, " save different things: \"", name, "\" is ", here, " on rank 0 and ", there,
                      " on rank ", rank, ". All ranks have to give the same names, and equal numbers and texts");
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

// One buffer for all copies, kept for the next save: memory that is new to the process costs more than the copy.
at::Tensor& copies() {
  static auto* buffer = new at::Tensor;
  return *buffer;
}

}  // namespace

Saving::Saving(const World& world, std::string path, const Items& items, SaveOptions options)
    : world_(world), path_(std::move(path)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(!name_of(path_).empty() && path_.find(kSavingMark) == std::string::npos, "[checkpoint::save] \"", path_,
                    "\" is no name for a checkpoint. Name a folder, such as runs/7/step-100.");
  while (path_.back() == '/') path_.pop_back();
  auto contents = contents_of(items);
  values_ = std::move(contents.values);
  parts_ = owned_parts(world_, contents.tensors, forms_);
  auto id = new_id();
  std::string error = leads() ? prepare_folder(id) : "";
  std::vector<std::string> mine(world_.hosted().size(), error.empty() ? kWritten + path_ + "\n" + id : kFailed + error);
  auto all = told_by_all(world_, mine);
  TORCH_CHECK(all[0][0] != kFailed, "[checkpoint::save] rank 0: ", all[0].substr(1));
  auto line = all[0].find('\n');
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank].substr(1, all[rank].find('\n') - 1) == all[0].substr(1, line - 1),
                      "[checkpoint::save] rank 0 saves to ", all[0].substr(1, line - 1), ", but rank ", rank, " to ",
                      all[rank].substr(1, all[rank].find('\n') - 1), ". All ranks have to name one folder.");
  }
  id_ = all[0].substr(line + 1);
  folder_ = path_ + kSavingMark + id_;
  // Only now: all ranks have left the saves before this one, and whether those failed stood in what is removed here.
  if (leads()) remove_abandoned(folder_of(path_));
}

std::string Saving::prepare_folder(const std::string& id) {
  try {
    lock_.emplace(begin_folder(path_, id));
    return "";
  } catch (const std::exception& error) {
    return words_of(error);
  }
}

void Saving::copy_to_memory() {
  at::NoGradGuard no_grad;
  int64_t total = 0;
  for (auto& part : parts_) total += bytes_of(part) + 8 * part.pieces.size();
  auto& buffer = copies();
  if (!buffer.defined() || buffer.numel() < total) {
    buffer = at::Tensor();  // the old one goes before the new one comes
    buffer = at::empty({total}, at::kByte);
  }
  int64_t offset = 0;
  for (auto& part : parts_) {
    for (auto& piece : part.pieces) {
      auto bytes = static_cast<int64_t>(piece.values.nbytes());
      auto copy = buffer.narrow(0, offset, bytes).view(piece.values.scalar_type()).view(piece.values.sizes());
      copy.copy_(piece.values);
      piece.values = copy;
      offset += (bytes + 7) / 8 * 8;
    }
  }
}

void Saving::write() {
  int64_t total = 0;
  for (auto& part : parts_) total += bytes_of(part);
  Progress progress("saving " + path_, total, options_.progress, leads() && !options_.quiet);
  for (auto& part : parts_) {
    try {
      auto index = write_part(folder_, file_name(part.rank, world_.size()), part, forms_, progress);
      index.values = values_;
      told_.push_back(kWritten + part_text(index));
    } catch (const std::exception& error) {
      told_.push_back(kFailed + words_of(error));
      remove_data();  // on a full disk, room for saying so
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

// Returns what went wrong, or nothing.
std::string Saving::commit(const std::vector<std::string>& parts) {
  try {
    auto index = merged(parts);
    index.id = id_;
    index.sequence = next_sequence(folder_of(path_));
    for (int64_t rank = 0; rank < world_.size(); ++rank) remove_all(folder_ + "/" + part_name(rank));
    complete_checkpoint(folder_, path_, index);
  } catch (const std::exception& error) {
    return words_of(error);
  }
  try {
    if (options_.keep > 0) keep(folder_of(path_), options_.keep);
  } catch (const std::exception& error) {
    TORCH_WARN("[checkpoint::save] ", path_, " is complete, but an old one stays: ", words_of(error));
  }
  return "";
}

void Saving::finish_together() {
  auto parts = told_by_all(world_, told_);
  auto error = leads() ? commit(parts) : "";
  std::vector<std::string> outcome(world_.hosted().size(), error);
  auto all = told_by_all(world_, outcome);
  if (all[0].empty()) return;
  if (leads()) {
    try {
      remove_all(folder_);
    } catch (const std::exception&) {  // the next save tries again
    }
  }
  TORCH_CHECK(false, "[checkpoint::save] ", path_, " was not written. ", all[0]);
}

void Saving::finish_alone() {
  if (static_cast<int64_t>(told_.size()) == world_.size()) return finish_together();  // nobody to wait for
  auto rank = world_.hosted()[0];
  auto name = folder_ + "/" + part_name(rank);
  write_text(name + ".new", told_[0]);
  put_in_place(name + ".new", name);
  if (!leads()) return wait_for_leader();
  std::string error;
  try {
    error = commit(wait_for_parts());
  } catch (const std::exception& failure) {
    error = words_of(failure);
  }
  if (error.empty()) return;
  remove_data();
  write_text(folder_ + "/" + kFailedName + ".new", error);
  put_in_place(folder_ + "/" + kFailedName + ".new", folder_ + "/" + kFailedName);
  TORCH_CHECK(false, "[checkpoint::save] ", path_, " was not written. ", error);
}

std::vector<std::string> Saving::wait_for_parts() const {
  std::vector<std::string> parts(world_.size());
  auto end = std::chrono::steady_clock::now() + options_.timeout;
  for (int64_t rank = 0; rank < world_.size(); ++rank) {
    auto name = folder_ + "/" + part_name(rank);
    while (!path_exists(name)) {
      if (std::chrono::steady_clock::now() > end) {
        parts[rank] = kFailed + c10::str("has not written its part in ", options_.timeout.count(), " s");
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (parts[rank].empty()) parts[rank] = read_text(name, INT64_MAX);
  }
  return parts;
}

// The folder gets its name, or a note that says why not.
void Saving::wait_for_leader() const {
  auto end = std::chrono::steady_clock::now() + options_.timeout;
  auto failed = folder_ + "/" + kFailedName;
  while (path_exists(folder_)) {
    TORCH_CHECK(!path_exists(failed), "[checkpoint::save] ", path_, " was not written. ", read_text(failed, INT64_MAX));
    TORCH_CHECK(std::chrono::steady_clock::now() < end, "[checkpoint::save] rank 0 has not completed ", path_, " in ",
                options_.timeout.count(), " s");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace intarsia::checkpoint
