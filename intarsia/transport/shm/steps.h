#pragma once
// What one member does in a collective: steps (send, receive, reduce), each of which continues when it can.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "intarsia/core/placement.h"
#include "intarsia/transport/shm/ring.h"
#include "intarsia/watch/member_faults.h"

namespace intarsia {

// Memory to a ring.
struct SendStep {
  RingWriter* ring;
  const char* from;
  MessageHeader header;
  uint64_t done = 0;
  bool begun = false;
  bool finished() const { return begun && done == header.bytes; }
  bool move();  // returns whether anything moved
};

// Copies a ring to memory.
struct RecvStep {
  RingReader* ring;
  char* to;
  MessageHeader header;
  uint64_t done = 0;
  bool begun = false;
  bool finished() const { return begun && done == header.bytes; }
  bool move();
};

// Reduces the messages of all other members and our own memory, in the order of the line.
struct ReduceStep {
  c10::SmallVector<RingReader*, 4> from;  // per member of the line; null: ours
  const char* mine = nullptr;
  char* to = nullptr;            // may be `mine`
  RingWriter* onward = nullptr;  // where the result is also sent; null: nowhere
  MessageHeader header;          // of the incoming messages, and of the onward one
  c10::ScalarType type = c10::ScalarType::Undefined;
  ReduceOp op = ReduceOp::sum;
  uint64_t done = 0;
  bool begun = false;
  bool finished() const { return begun && done == header.bytes; }
  bool move();

 private:
  bool begin();
  bool added_up_apart() const;
  uint64_t next_piece();
};

// The steps of one collective and the tensors whose memory they use. Small enough for malloc's cache of blocks (1 KB):
// one is made for each asynchronous collective.
struct Task {
  Collective call;
  c10::SmallVector<SendStep, 2> sends;
  c10::SmallVector<RecvStep, 2> recvs;
  std::optional<ReduceStep> reduction;
  c10::SmallVector<at::Tensor, 2> tensors;
  std::shared_ptr<Task> self;  // while it is in progress and no thread may wait for it

  void write_headers();  // when it has its number
  bool sent() const;     // all that others need of us is in the rings
  bool received() const;
  uint64_t unread() const;  // bytes that we still have to read, of all rings together
  bool finished() const { return sent() && received(); }
  bool move(bool may_push, bool may_pull);
  // The members that it waits for, in no order, maybe several times.
  std::vector<int64_t> missing() const;
};
static_assert(sizeof(Task) <= 960);

}  // namespace intarsia
