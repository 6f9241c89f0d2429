#pragma once
// What one member does in a collective over MPI: messages, and reductions of received data.

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "intarsia/comm/message_header.h"
#include "intarsia/launch/mpi_port.h"
#include "intarsia/watch/member_faults.h"

namespace intarsia {

// Note [Heads]
// A collective sends one head to each member for which it has bytes: what it is and how long (see Note [A message knows
// what it is]), and the bytes themselves if they are few. Many bytes follow as separate messages, directly from memory
// to memory; they are sent and received when all heads have arrived and match. Heads, bytes and reduced bytes are three
// streams, each of them in the order of the collectives at both ends, so a message is identified by its position. A
// head that does not match ends the line before a byte of the message is used. No message is longer than its receiver
// expects.
enum class MpiStream { heads, bytes, reduced_bytes, farewells };

constexpr uint64_t kFewBytes = 2048;  // the most that is sent in the head
constexpr uint64_t kLongestHead = sizeof(MessageHeader) + kFewBytes;

// Memory that is sent to a member, or filled by it.
struct MpiParcel {
  int64_t member;
  char* memory;  // null: what arrives stays in the head, for a reduction
  uint64_t bytes;
  char* head = nullptr;
  bool few() const { return bytes <= kFewBytes; }
  uint64_t head_bytes() const { return sizeof(MessageHeader) + (few() ? bytes : 0); }
};

// What MPI reports of a message.
struct MpiFault {
  int64_t member;
  std::string text;
};

// Pending messages, and the member of each.
struct MpiMessages {
  c10::SmallVector<MpiRequest, 4> requests;
  c10::SmallVector<int64_t, 4> members;
  size_t open = 0;

  void add(MpiRequest request, int64_t member);
  bool test(MpiPort& port);  // whether any has arrived; throws UnexpectedMessage, MpiFault
  void missing(std::vector<int64_t>& of) const;
  void clear();
};

struct MpiEndpoint;
struct MpiTask;

// A part of a collective whose bytes are sent at once, and reduced together.
struct MpiPiece {
  MpiTask* task = nullptr;
  c10::SmallVector<MpiParcel, 2> sends, receives, reduced_receives;
  c10::SmallVector<const char*, 4> values;  // of all members, to be reduced; empty: no reduction
  const char* own = nullptr;                // our value
  char* result = nullptr;
  uint64_t result_bytes = 0;
  bool goes_on = false;          // the result is sent to all others
  std::unique_ptr<char[]> room;  // for values
  uint64_t room_bytes = 0;       // the size that it will need

  MpiMessages coming, going;  // data to be reduced; all the rest
  bool posted = false, reduced = false, sent_on = false;
  bool travels() const { return !sends.empty() || !receives.empty() || !reduced_receives.empty() || goes_on; }
  bool finished() const { return posted && reduced && sent_on && !coming.open && !going.open; }
};

// One collective, and the tensors whose memory it uses.
struct MpiTask {
  Collective call;
  std::shared_ptr<MpiEndpoint> side;  // the endpoint of its line
  MessageHeader header;
  c10::SmallVector<MpiParcel, 2> outgoing, incoming;
  c10::SmallVector<MpiPiece, 1> pieces;
  c10::SmallVector<at::Tensor, 2> tensors;
  MpiMessages arriving, leaving;   // heads
  size_t checked = 0;              // heads
  c10::SmallVector<bool, 4> seen;  // per head
  size_t first_open = 0;           // piece
  bool abandoned = false;          // its line has failed, and it will not end

  void send(int64_t member, const char* from, uint64_t bytes);
  void receive(int64_t member, char* to, uint64_t bytes);
  void write_heads();  // when it has its number; and makes room for those that come
  bool heads_checked() const { return checked == incoming.size(); }
  bool finished();
  // The members that it waits for, in no order, maybe several times.
  std::vector<int64_t> missing() const;
  void clear();

 private:
  struct alignas(64) Block {
    char bytes[64];
  };
  std::vector<Block> blocks_;
};

// The bytes after a head.
inline char* behind(char* head) { return head + sizeof(MessageHeader); }

}  // namespace intarsia
