#include "intarsia/checkpoint/gather_text.h"

#include <algorithm>
#include <exception>

#include "intarsia/comm/agreement.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/trace.h"

namespace intarsia::checkpoint {

std::vector<std::string> gather_texts(const World& world, const std::vector<std::string>& mine) {
  if (static_cast<int64_t>(mine.size()) == world.size()) return mine;
  TORCH_INTERNAL_ASSERT(mine.size() == 1, "a real process hosts one rank");
  CauseScope cause("checkpoint", false);
  WorldScope scope(world);
  return exchange_texts(Axis::whole(init_device_mesh(c10::kCPU, {world.size()})), mine[0]);
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
    if (words.compare(0, begin.size(), begin) == 0)
      named = std::current_exception(), words = words.substr(begin.size());
  }
  try {
    raise_together(world, where, std::vector<std::string>(world.hosted().size(), words));
  } catch (const c10::Error&) {
    if (named) std::rethrow_exception(named);
    throw;
  }
}

std::string text_of_error(const std::exception& error) { return message_of(error); }

}  // namespace intarsia::checkpoint
