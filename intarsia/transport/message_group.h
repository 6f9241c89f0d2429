#pragma once
// A group over connections that move bytes between pairs of ranks: it adds the collectives, their order, and the
// diagnosis of waits that do not end. The shortest path to a transport; one that has a faster way to reduce or to copy
// implements Group itself.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "intarsia/transport/transport.h"
#include "intarsia/watch/member_faults.h"

namespace intarsia {

// The connections of one member to all others. Bytes of a pair arrive in the order in which they were sent. One thread
// uses it at a time.
class ByteLinks {
 public:
  virtual ~ByteLinks() = default;
  virtual const char* carrier() const = 0;  // its name, for traces and errors

  // Moves as many of `size` bytes as can go now, and returns that number: 0 if none. Never blocks. Throws LostMember.
  virtual size_t send(int64_t member, const char* from, size_t size) = 0;
  virtual size_t receive(int64_t member, char* to, size_t size) = 0;

  // Returns when bytes may move that could not before, after `time` at the latest.
  virtual void wait(std::chrono::milliseconds time) = 0;
};

// One thread of the group runs its collectives, one after the other. Every message has a header, so ranks in different
// collectives get an error that shows both; if a rank is gone, late or interrupted, the error on all others names it.
// Reduces in the order of the line: the same bits as every other transport.
std::shared_ptr<const Group> make_message_group(const LineRequest& line, std::unique_ptr<ByteLinks> links);

}  // namespace intarsia
