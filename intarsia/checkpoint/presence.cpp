#include "intarsia/checkpoint/presence.h"

namespace intarsia::checkpoint {
namespace {

constexpr char kEndOfText = '\0';  // a text without it is still being written

}  // namespace

std::string Presence::file_name(int64_t rank) { return "alive-" + std::to_string(rank); }

Presence Presence::of_mine(const std::string& folder, int64_t rank) {
  Presence mine(OpenFile::writing(folder + "/" + file_name(rank)));
  mine.file_.try_lock();
  return mine;
}

Presence Presence::of_another(const std::string& folder, int64_t rank) {
  return Presence(OpenFile::changing(folder + "/" + file_name(rank)));
}

bool Presence::is_gone() const {
  if (!file_.try_lock()) return false;
  file_.unlock();  // others look as well
  return true;
}

void Presence::tell(const std::string& text) const {
  auto all = text + kEndOfText;
  file_.write(all.data(), all.size(), 0);
}

std::optional<std::string> Presence::told() const {
  std::string text(file_.size(), ' ');
  file_.read(text.data(), text.size(), 0);
  if (text.empty() || text.back() != kEndOfText) return std::nullopt;
  text.pop_back();
  return text;
}

}  // namespace intarsia::checkpoint
