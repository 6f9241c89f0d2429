#pragma once
// What a transport throws when a member of its line does not do what was expected. A Watchdog finds out why.

#include <cstdint>
#include <optional>
#include <string>

#include "intarsia/comm/message_header.h"

namespace intarsia {

// Why a member takes no part any more, as it says itself.
enum class Farewell : uint32_t { none, left, failed, interrupted };

// A message that belongs to another collective.
struct UnexpectedMessage {
  int64_t member;
  std::optional<MessageHeader> found;  // none: it was too long to be read
};

// A member that takes no part any more.
struct LostMember {
  int64_t member;
  std::string how;            // "it closed the connection"
  bool left = false;          // it has closed its world
  bool says_no_more = false;  // it was able to say why; else it may still be about to
  std::string why = {};       // what it said; empty: nothing
  bool ended = false;         // its process did, without a word: not because of us
};

}  // namespace intarsia
