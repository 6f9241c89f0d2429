#include "intarsia/checkpoint/load.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/hugging_face.h"
#include "intarsia/checkpoint/shared_reading.h"
#include "intarsia/comm/trace.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia::checkpoint {
namespace {

constexpr size_t kMostNamed = 20;

// The edit distance between two names, up to a limit.
int64_t distance(const std::string& a, const std::string& b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    auto corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      auto changed = corner + (a[i - 1] != b[j - 1]);
      corner = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

// The name in the checkpoint that is closest to a missing one, if any is close.
std::string near_miss(const std::string& name, const std::set<std::string>& candidates) {
  const std::string* best = nullptr;
  auto least = static_cast<int64_t>(name.size() / 3 + 1);
  for (auto& other : candidates) {
    if (std::abs(static_cast<int64_t>(other.size()) - static_cast<int64_t>(name.size())) > least) continue;
    auto found = distance(name, other);
    if (found <= least) best = &other, least = found - 1;
  }
  return best ? c10::str(" (the checkpoint has \"", *best, "\")") : "";
}

bool in_scopes(const std::string& name, const std::vector<std::string>& scopes) {
  return std::any_of(scopes.begin(), scopes.end(),
                     [&](auto& scope) { return name.compare(0, scope.size(), scope) == 0; });
}

std::string listed(const char* title, const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == kMostNamed) return text + c10::str("\n    and ", lines.size() - i, " more");
    text += (i ? "\n    " : c10::str("\n  ", title, " (", lines.size(), "):\n    ")) + lines[i];
  }
  return text;
}

// The requested tensors that the checkpoint has, by their names there.
struct Match {
  std::vector<std::pair<const IndexedTensor*, std::pair<std::string, at::Tensor>>> tensors;
  std::vector<std::string> missing, unexpected, mismatched, missing_lines;
};

Match match(const Wanted& wanted, const CheckpointIndex& index, const Rename& rename) {
  Match result;
  std::set<std::string> asked, left;
  for (auto& [name, tensor] : wanted.tensors) asked.insert(rename(name));
  for (auto& [name, tensor] : index.tensors) {
    if (!asked.contains(name)) left.insert(name);
    if (!asked.contains(name) && in_scopes(name, wanted.scopes)) result.unexpected.push_back(name);
  }
  for (auto& [name, value] : index.values) {
    if (in_scopes(name, wanted.value_scopes) && !wanted.used_values.contains(name)) result.unexpected.push_back(name);
  }
  for (auto& [name, target] : wanted.tensors) {
    auto stored = rename(name);
    auto found = index.tensors.find(stored);
    if (found == index.tensors.end()) {
      result.missing.push_back(name);
      auto near =
          result.missing_lines.size() < kMostNamed ? near_miss(stored, left) : "";  // the others are only counted
      result.missing_lines.push_back(name + (stored == name ? "" : " (as \"" + stored + "\")") + near);
    } else if (target.sizes() != at::IntArrayRef(found->second.shape)) {
      result.mismatched.push_back(
          c10::str(name, ": ", at::IntArrayRef(found->second.shape), " in the checkpoint, ", target.sizes(), " here"));
    } else if (!c10::canCast(found->second.dtype, target.scalar_type())) {
      result.mismatched.push_back(c10::str(name, ": ", found->second.dtype, " in the checkpoint, ",
                                           target.scalar_type(), " here, which cannot hold its values"));
    } else {
      result.tensors.push_back({&found->second, {name, target}});
    }
  }
  std::set<std::string> values;
  for (auto& [name, value] : index.values) values.insert(name);
  for (auto& name : wanted.values) {
    if (index.values.contains(rename(name))) continue;
    result.missing.push_back(name);
    result.missing_lines.push_back(name +
                                   (result.missing_lines.size() < kMostNamed ? near_miss(rename(name), values) : ""));
  }
  return result;
}

void refuse_mismatch(const std::string& path, const Match& match) {
  auto text = listed("missing in the checkpoint", match.missing_lines) +
              listed("unexpected in the checkpoint", match.unexpected) +
              listed("of another shape or kind", match.mismatched);
  TORCH_CHECK_VALUE(text.empty(), path, " does not fit what is loaded:", text,
                    "\nRename with LoadOptions::rename, or load what fits with strict = false.");
}

// Where one hosted rank reads to: boxes of its shard.
struct Destination {
  const IndexedTensor* stored;
  std::string name;
  Box box;
  at::Tensor target;
};

void add_destinations(const IndexedTensor& stored, const std::string& name, const at::Tensor& tensor,
                      std::vector<Destination>& result) {
  if (is_per_rank(tensor)) {
    for (auto& value : values_of(tensor)) result.push_back({&stored, name, whole_box(value.sizes()), value});
    return;
  }
  if (!is_dtensor(tensor)) return result.push_back({&stored, name, whole_box(tensor.sizes()), tensor});
  auto& layout = layout_of(tensor);
  auto& slots = layout.mesh().slots();
  auto& shards = body_of(tensor).shards();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    for (auto& [box, local] : boxes_of(layout, tensor.sizes(), slots[slot].coordinate)) {
      result.push_back({&stored, name, box, view_of_box(shards[slot], local, box.shape)});
    }
  }
}

// Everything that is read: by each rank alone, or by the ranks of a mesh jointly.
struct ReadingPlan {
  std::vector<Destination> alone;
  std::vector<std::pair<DeviceMesh, std::vector<SharedTarget>>> joint;
  std::vector<std::pair<at::Tensor, at::Tensor>> settled_copies;  // a pending tensor is read into a settled one

  int64_t bytes = 0;  // that the hosted ranks receive

  void add_joint(const SharedTarget& target) {
    auto& mesh = mesh_of(target.tensor);
    auto found = std::find_if(joint.begin(), joint.end(), [&](auto& entry) { return entry.first == mesh; });
    if (found == joint.end()) found = joint.insert(joint.end(), {mesh, {}});
    found->second.push_back(target);
  }
  // Per mesh, the text on which its ranks have to agree.
  std::vector<std::string> joint_texts() const {
    std::vector<std::string> texts;
    for (auto& [mesh, targets] : joint) {
      auto& text = texts.emplace_back();
      for (auto& target : targets) text += joint_text(target) + "\n";
    }
    return texts;
  }
};

ReadingPlan plan_reading(const Match& match) {
  ReadingPlan plan;
  for (auto& [stored, named] : match.tensors) {
    auto target = named.second.detach();
    if (is_dtensor(target) && layout_of(target).has_partial()) {
      auto copy = empty(target.sizes(), mesh_of(target), settled(placements_of(target)), target.options());
      plan.settled_copies.emplace_back(target, copy);
      target = copy;
    }
    std::vector<Destination> alone;
    add_destinations(*stored, named.first, target, alone);
    for (auto& d : alone) plan.bytes += d.box.count() * static_cast<int64_t>(c10::elementSize(stored->dtype));
    if (is_dtensor(target) && is_read_jointly(*stored, layout_of(target))) {
      plan.add_joint({stored, named.first, target});
    } else {
      plan.alone.insert(plan.alone.end(), alone.begin(), alone.end());
    }
  }
  return plan;
}

// A rank that read jointly what others of its mesh do not would wait for them forever.
void check_joint(const World& world, const ReadingPlan& plan) {
  std::string words;
  auto texts = plan.joint_texts();
  for (auto& text : texts) words += checksum_text(checksum_of(text.data(), text.size()));
  auto all = gather_texts(world, std::vector<std::string>(world.hosted().size(), words));
  for (size_t i = 0; i < texts.size(); ++i) {
    for (auto rank : plan.joint[i].first.ranks()) {
      TORCH_CHECK_VALUE(all[rank].find(words.substr(16 * i, 16)) != std::string::npos, "rank ", world.hosted()[0],
                        " and rank ", rank, " load different things onto ", plan.joint[i].first.text(),
                        ". All ranks of a mesh have to load the same tensors in the same layouts");
    }
  }
}

void read_all(const std::string& folder, const CheckpointIndex& index, const Match& match, const ReadingPlan& plan,
              const std::string& path, const LoadOptions& options, bool speaks) {
  Progress progress("loading " + path, plan.bytes, options.progress, speaks && !options.quiet);
  PieceReader reader(folder, index);
  std::string error;  // of joint reading, which continues
  for (auto& [mesh, targets] : plan.joint) read_jointly(mesh, targets, reader, progress, error);
  TORCH_CHECK(error.empty(), error);
  for (auto& d : plan.alone) {
    try {
      reader.read(*d.stored, d.box, d.target, progress);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "tensor \"", d.name, "\": ", error.what_without_backtrace());
    }
  }
  for (auto& [target, copy] : plan.settled_copies) target.copy_(copy);
  for (auto& [stored, named] : match.tensors) {
    // A rank that found damage has written nothing: for the tensor's origin it makes no difference.
    if (is_dtensor(named.second)) body_of(named.second).written(body_of(named.second).origin);
    if (!named.second.is_inference()) named.second.unsafeGetTensorImpl()->bump_version();
  }
}

void check_headers(const std::string& folder, const CheckpointIndex& index) {
  check_files(folder, index);
  for (auto& file : index.files) {
    auto header = read_header(OpenFile::reading(folder + "/" + file.name));
    TORCH_CHECK(header.checksum == file.header_checksum, "the header of ", folder, "/", file.name, ", which rank ",
                file.rank, " wrote, is damaged: its checksum does not fit");
  }
}

const Value& value_named(const ValueMap& values, const std::string& name) {
  auto found = values.find(name);
  std::set<std::string> names;
  for (auto& [other, value] : values) names.insert(other);
  TORCH_CHECK_VALUE(found != values.end(), "[checkpoint::load] there is no value \"", name, "\"",
                    near_miss(name, names), ".");
  return found->second;
}

template <class T>
T value_as(const ValueMap& values, const std::string& name, const char* kind) {
  auto& value = value_named(values, name);
  auto* found = std::get_if<T>(&value);
  TORCH_CHECK_TYPE(found, "[checkpoint::load] \"", name, "\" is ", str(value), ", which is no ", kind, ".");
  return *found;
}

}  // namespace

int64_t Loaded::integer(const std::string& name) const { return value_as<int64_t>(values_, name, "whole number"); }
bool Loaded::flag(const std::string& name) const { return value_as<bool>(values_, name, "flag"); }
std::string Loaded::text(const std::string& name) const { return value_as<std::string>(values_, name, "text"); }
double Loaded::number(const std::string& name) const {
  auto& value = value_named(values_, name);
  if (auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  return value_as<double>(values_, name, "number");
}

CheckpointIndex index_of(const std::string& path) {
  std::string folder;
  return !path_exists(path + "/" + kIndexName) && is_hugging_face(path) ? read_hugging_face(path, &folder)
                                                                        : read_index(path);
}

Loaded load(const std::string& path, const Items& items, const LoadOptions& options) {
  at::NoGradGuard no_grad;
  CauseScope cause("checkpoint::load", false);
  auto& world = current_world("checkpoint::load");
  auto rename = options.rename ? options.rename : [](const std::string& name) { return name; };
  auto folder = path;
  CheckpointIndex index;
  Wanted wanted;
  Match found;
  ReadingPlan plan;
  do_together(world, "checkpoint::load", [&] {
    bool hugging_face = !path_exists(path + "/" + kIndexName) && is_hugging_face(path);
    index = hugging_face ? read_hugging_face(path, &folder) : read_index(path);
    if (!hugging_face) check_headers(folder, index);
    wanted = wanted_by(items, index, rename);
    found = match(wanted, index, rename);
    if (options.strict) refuse_mismatch(path, found);
    plan = plan_reading(found);
  });
  do_together(world, "checkpoint::load", [&] { check_joint(world, plan); });
  do_together(world, "checkpoint::load",
              [&] { read_all(folder, index, found, plan, path, options, world.hosted()[0] == 0); });
  for (auto& step : wanted.finish) step();
  Loaded loaded;
  loaded.values_ = std::move(index.values);
  loaded.missing_ = std::move(found.missing);
  loaded.unexpected_ = std::move(found.unexpected);
  loaded.mismatched_ = std::move(found.mismatched);
  return loaded;
}

}  // namespace intarsia::checkpoint
