#pragma once
// The header of a message, which says to which collective its bytes belong.

#include <cstdint>
#include <string>

#include "intarsia/comm/collective.h"

namespace intarsia {

// A reader takes only the header that it expects. See Note [A message knows what it is].
struct MessageHeader {
  uint64_t number = 0;       // of the collective on its line
  uint64_t fingerprint = 0;  // see Collective
  uint64_t bytes = 0;
  uint64_t what = 0;  // kind, op and dtype, for the error of a rank that expects another
  bool operator==(const MessageHeader&) const = default;

  void describe(const Collective& call);
  std::string text() const;  // all_reduce(sum) of 64 floats
};
static_assert(sizeof(MessageHeader) == 32);

}  // namespace intarsia
