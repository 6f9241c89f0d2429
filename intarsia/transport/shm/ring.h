#pragma once
// The two ends of a ring of bytes: its writer and a reader. See Note [Rings].

#include <cstdint>
#include <memory>
#include <vector>

#include "intarsia/comm/message_header.h"
#include "intarsia/transport/shm/ring_copy.h"
#include "intarsia/transport/shm/segment.h"

namespace intarsia {

// Messages begin at multiples of this. So a header is contiguous, as is every element of a dtype, whose sizes divide
// what is left of the first cache line after a header.
constexpr uint64_t kCacheLineBytes = 64;

// A piece of a message that ends in the middle of it ends at a multiple of kCacheLineBytes of the ring: the counters of
// both ends stay multiples, and a header always finds room or is there as a whole.
inline uint64_t whole_lines(uint64_t position, uint64_t bytes, uint64_t left) {
  return bytes >= left ? left : (position + bytes) / kCacheLineBytes * kCacheLineBytes - position;
}

class RingWriter {
 public:
  // `copy` may serve several rings.
  RingWriter(const Segment& segment, Segment::RingMemory ring, std::vector<int64_t> readers,
             std::shared_ptr<RingCopy> copy);

  // The number of contiguous bytes that can be written now, up to `wanted`.
  uint64_t room(uint64_t wanted);
  uint64_t position() const { return position_; }
  char* here() const { return ring_.data + position_ % ring_.capacity; }
  void advance(uint64_t bytes) { position_ += bytes; }  // past what was written; readers do not see it yet
  // Writes bytes and advances. There must be room.
  void write(const char* from, uint64_t bytes) {
    (*copy_)(here(), from, bytes);
    advance(bytes);
  }
  bool past_caches() const { return copy_->past_caches(); }
  void end_message() { position_ = (position_ + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes; }
  void publish();
  // The members that must read before there is room.
  void behind(std::vector<int64_t>& members) const;

 private:
  uint64_t least_read() const;
  const Segment* segment_;
  Segment::RingMemory ring_;
  std::vector<int64_t> readers_;       // members, in the order of their counters
  uint64_t position_ = 0, freed_ = 0;  // freed_: read by all, when last checked
  std::shared_ptr<RingCopy> copy_;
};

class RingReader {
 public:
  // `readers` is as the writer has it; we are one of them.
  RingReader(const Segment& segment, Segment::RingMemory ring, int64_t writer, std::vector<int64_t> readers,
             int64_t me);

  // The number of contiguous bytes that can be read now, up to `wanted`.
  uint64_t available(uint64_t wanted);
  uint64_t position() const { return position_; }
  const char* here() const { return ring_.data + position_ % ring_.capacity; }
  void advance(uint64_t bytes) { position_ += bytes; }  // past what was read; its room is not free yet
  void end_message() { position_ = (position_ + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes; }
  void release();
  int64_t writer() const { return writer_; }
  // The members because of which there is nothing to read: other readers, if they keep the ring full, else the writer.
  void behind(std::vector<int64_t>& members) const;

 private:
  const Segment* segment_;
  Segment::RingMemory ring_;
  int64_t writer_;
  std::vector<int64_t> readers_;
  RingCounter* read_;                    // our counter
  uint64_t position_ = 0, written_ = 0;  // written_: when last checked
};

}  // namespace intarsia
