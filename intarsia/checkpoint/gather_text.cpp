#include "intarsia/checkpoint/gather_text.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"

namespace intarsia::checkpoint {

namespace {

constexpr int64_t kShort = 248;  // what most texts have at most: they travel with their lengths

// What every rank of the axis gives, one behind the other.
std::string gathered(const Axis& axis, const std::string& mine, const std::vector<int64_t>& counts) {
  auto own = at::empty({static_cast<int64_t>(mine.size())}, at::kByte),
       all = at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), mine.data(), mine.size());
  axis.all_gather({own}, {all}, {counts});
  return std::string(reinterpret_cast<const char*>(all.const_data_ptr()), all.numel());
}

}  // namespace

// The first message of a rank has the length of its text and, if that is short, the text. Long ones follow in a second.
std::vector<std::string> gather_texts(const World& world, const std::vector<std::string>& mine) {
  if (static_cast<int64_t>(mine.size()) == world.size()) return mine;
  TORCH_INTERNAL_ASSERT(mine.size() == 1, "a real process hosts one rank");
  CauseScope cause("checkpoint", false);
  WorldScope scope(world);
  auto& everyone = Axis::whole(init_device_mesh(c10::kCPU, {world.size()}));
  auto length = static_cast<int64_t>(mine[0].size());
  bool is_short = length <= kShort;
  std::string first(sizeof(length) + kShort, '\0');
  std::memcpy(first.data(), &length, sizeof(length));
  if (is_short) mine[0].copy(first.data() + sizeof(length), length);
  auto firsts = gathered(everyone, first, std::vector<int64_t>(world.size(), first.size()));
  std::vector<int64_t> lengths(world.size()), left(world.size(), 0);
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    std::memcpy(&lengths[rank], firsts.data() + rank * first.size(), sizeof(length));
    if (lengths[rank] > kShort) left[rank] = lengths[rank];
  }
  bool all_short = *std::max_element(lengths.begin(), lengths.end()) <= kShort;
  auto rest = all_short ? "" : gathered(everyone, is_short ? "" : mine[0], left);
  std::vector<std::string> texts;
  for (size_t rank = 0, next = 0; rank < lengths.size(); next += left[rank++]) {
    auto at = rank * first.size() + sizeof(length);
    texts.push_back(left[rank] ? rest.substr(next, left[rank]) : firsts.substr(at, lengths[rank]));
  }
  return texts;
}

void raise_together(const World& world, const std::string& where, const std::vector<std::string>& mine) {
  std::string text;
  auto all = gather_texts(world, mine);
  bool same = std::all_of(all.begin(), all.end(), [&](auto& other) { return other == all[0]; });
  if (same) text = all[0];
  for (size_t rank = 0; rank < all.size() && !same; ++rank) {
    if (!all[rank].empty()) text += c10::str(text.empty() ? "" : "; ", "rank ", rank, ": ", all[rank]);
  }
  TORCH_CHECK(text.empty(), "[", where, "] ", text);
}

void do_together(const World& world, const std::string& where, const std::function<void()>& step) {
  std::exception_ptr named;
  std::string words;
  try {
    step();
  } catch (const std::exception& error) {
    words = text_of_error(error);
    auto begin = "[" + where + "] ";
    if (words.compare(0, begin.size(), begin) == 0) named = std::current_exception(), words = words.substr(begin.size());
  }
  try {
    raise_together(world, where, std::vector<std::string>(world.hosted().size(), words));
  } catch (const c10::Error&) {
    if (named) std::rethrow_exception(named);
    throw;
  }
}

std::string text_of_error(const std::exception& error) {
  auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

}  // namespace intarsia::checkpoint
