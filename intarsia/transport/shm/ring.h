#pragma once
// The two ends of a ring of bytes: its writer and a reader. See Note [Rings].

#include <cstdint>
#include <memory>
#include <vector>

#include "intarsia/comm/message_header.h"
#include "intarsia/transport/shm/ring_copy.h"
#include "intarsia/transport/shm/segment.h"

namespace intarsia {

// Messages begin at multiples of this. So a header lies in one piece, as does every element of a dtype, whose sizes
// divide what is left of the first line behind a header.
constexpr uint64_t kCacheLineBytes = 64;

// A piece of a message that ends in the middle of it ends at a multiple of kCacheLineBytes of the ring: the counters of
// both ends stay on multiples, and a header always finds room or is there as a whole.
inline uint64_t whole_lines(uint64_t position, uint64_t bytes, uint64_t left) {
  return bytes >= left ? left : (position + bytes) / kCacheLineBytes * kCacheLineBytes - position;
}

class RingWriter {
 public:
  // `copy` may serve several rings.
  RingWriter(const Segment& segment, Segment::RingMemory ring, std::vector<int64_t> readers,
             std::shared_ptr<RingCopy> copy);

  // Bytes that can be written behind one another now, of `wanted`.
  uint64_t room(uint64_t wanted);
  uint64_t position() const { return position_; }
  char* here() const { return ring_.data + position_ % ring_.capacity; }
  void advance(uint64_t bytes) { position_ += bytes; }  // what was written; not yet to be seen
  // The same at once. There must be room.
  void write(const char* from, uint64_t bytes) {
    (*copy_)(here(), from, bytes);
    advance(bytes);
  }
  bool past_caches() const { return copy_->past_caches(); }
  void end_message() { position_ = (position_ + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes; }
  void publish();
  // Those who must read before there is room.
  void behind(std::vector<int64_t>& members) const;

 private:
  uint64_t least_read() const;
  const Segment* segment_;
  Segment::RingMemory ring_;
  std::vector<int64_t> readers_;       // members, in the order of their counters
  uint64_t position_ = 0, freed_ = 0;  // freed_: read by all, as far as we have looked
  std::shared_ptr<RingCopy> copy_;
};

class RingReader {
 public:
  // The readers are as the writer names them; we are one of them.
  RingReader(const Segment& segment, Segment::RingMemory ring, int64_t writer, std::vector<int64_t> readers,
             int64_t me);

  // Bytes that lie behind one another and can be read now, of `wanted`.
  uint64_t available(uint64_t wanted);
  uint64_t position() const { return position_; }
  const char* here() const { return ring_.data + position_ % ring_.capacity; }
  void advance(uint64_t bytes) { position_ += bytes; }  // what was read; its room is not yet free
  void end_message() { position_ = (position_ + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes; }
  void release();
  int64_t writer() const { return writer_; }
  // Those because of whom there is nothing to read: other readers, if they keep the ring full, else the writer.
  void behind(std::vector<int64_t>& members) const;

 private:
  const Segment* segment_;
  Segment::RingMemory ring_;
  int64_t writer_;
  std::vector<int64_t> readers_;
  RingCounter* read_;                    // our counter
  uint64_t position_ = 0, written_ = 0;  // written_: as far as we have looked
};

}  // namespace intarsia
