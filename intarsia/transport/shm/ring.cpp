#include "intarsia/transport/shm/ring.h"

#include <algorithm>

namespace intarsia {

RingWriter::RingWriter(const Segment& segment, Segment::RingMemory ring, std::vector<int64_t> readers,
                       std::shared_ptr<RingCopy> copy)
    : segment_(&segment), ring_(ring), readers_(std::move(readers)), copy_(std::move(copy)) {}

uint64_t RingWriter::least_read() const {
  auto least = position_;
  for (size_t i = 0; i < readers_.size(); ++i) least = std::min(least, ring_.read[i].bytes.load());
  return least;
}

uint64_t RingWriter::room(uint64_t wanted) {
  wanted = std::min(wanted, ring_.capacity - position_ % ring_.capacity);
  if (position_ + wanted - freed_ > ring_.capacity) freed_ = least_read();
  return std::min(wanted, ring_.capacity - (position_ - freed_));
}

void RingWriter::publish() {
  ring_.written->bytes.store(position_);
  for (auto reader : readers_) notify(segment_->member(reader).event);
}

void RingWriter::behind(std::vector<int64_t>& members) const {
  auto least = least_read();
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (ring_.read[i].bytes.load() == least) members.push_back(readers_[i]);
  }
}

RingReader::RingReader(const Segment& segment, Segment::RingMemory ring, int64_t writer, std::vector<int64_t> readers,
                       int64_t me)
    : segment_(&segment), ring_(ring), writer_(writer), readers_(std::move(readers)) {
  read_ = ring_.read + (std::find(readers_.begin(), readers_.end(), me) - readers_.begin());
}

uint64_t RingReader::available(uint64_t wanted) {
  wanted = std::min(wanted, ring_.capacity - position_ % ring_.capacity);
  if (written_ - position_ < wanted) written_ = ring_.written->bytes.load();
  return std::min(wanted, written_ - position_);
}

void RingReader::release() {
  read_->bytes.store(position_);
  notify(segment_->member(writer_).event);
}

void RingReader::behind(std::vector<int64_t>& members) const {
  bool full = false;
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (ring_.written->bytes.load() - ring_.read[i].bytes.load() + kCacheLineBytes <= ring_.capacity) continue;
    members.push_back(readers_[i]);
    full = true;
  }
  if (!full) members.push_back(writer_);
}

}  // namespace intarsia
