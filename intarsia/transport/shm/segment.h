#pragma once
// The shared memory of one line's members.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "intarsia/transport/shm/futex_event.h"
#include "intarsia/watch/member_faults.h"

namespace intarsia {

// The state of a member that the others see.
struct MemberRecord {
  FutexEvent event;
  alignas(64) std::atomic<uint64_t> echo{0};  // what it wrote to show that it sees this memory
  std::atomic<Farewell> farewell{Farewell::none};
  std::atomic<int64_t> awaits{-1};  // a rank of another host for which it waits; -1: none
  char why[1024] = "";              // it has failed: the words of its error, written before the farewell
};

// The counter of a ring: the total bytes written to it, or read from it by one member.
struct alignas(64) RingCounter {
  std::atomic<uint64_t> bytes{0};
};

// Note [Rings]
// A member writes to several rings: one that all others read, and one for each other member. A ring holds bytes, with a
// counter of written bytes and, for each reader, one of read bytes. So memory grows with the number of members (the
// rings for single members share what one member has for them), never with tensors: what does not fit waits for the
// readers to make room.
class Segment {
 public:
  // Creates the memory for `size` members; it has no name, and is freed when the last process that uses it ends.
  static std::shared_ptr<Segment> make(int64_t size);
  // Maps what another process has created; `path` is from its path().
  static std::shared_ptr<Segment> open(const std::string& path, int64_t size);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::string path() const;  // for open(), while the creator keeps its file
  void close_file();         // all members have mapped it

  int64_t size() const { return size_; }
  size_t bytes() const { return bytes_; }
  MemberRecord& member(int64_t member) const { return members_[member]; }

  struct RingMemory {
    RingCounter* written;
    RingCounter* read;  // one per reader, in ascending order
    char* data;
    uint64_t capacity;  // a multiple of 64
  };
  RingMemory ring_to_all(int64_t writer) const;
  RingMemory ring(int64_t writer, int64_t reader) const;
  uint64_t least_capacity() const { return single_capacity_; }  // of any ring

 private:
  Segment(int64_t size, int fd);
  void map();
  int64_t size_;
  uint64_t single_capacity_;
  size_t counters_, per_member_, bytes_;
  int fd_;  // -1: closed
  char* base_ = nullptr;
  MemberRecord* members_ = nullptr;
};

}  // namespace intarsia
