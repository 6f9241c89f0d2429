#include "intarsia/comm/shm/lane.h"

#include <algorithm>

namespace intarsia {

LaneWriter::LaneWriter(const Segment& segment, Segment::LaneMemory lane, std::vector<int64_t> readers, std::shared_ptr<LaneCopy> copy)
    : segment_(&segment), lane_(lane), readers_(std::move(readers)), copy_(std::move(copy)) {}

uint64_t LaneWriter::least_read() const {
  auto least = position_;
  for (size_t i = 0; i < readers_.size(); ++i) least = std::min(least, lane_.read[i].bytes.load());
  return least;
}

uint64_t LaneWriter::room(uint64_t wanted) {
  wanted = std::min(wanted, lane_.capacity - position_ % lane_.capacity);
  if (position_ + wanted - freed_ > lane_.capacity) freed_ = least_read();
  return std::min(wanted, lane_.capacity - (position_ - freed_));
}

void LaneWriter::publish() {
  lane_.written->bytes.store(position_);
  for (auto reader : readers_) ring(segment_->member(reader).bell);
}

void LaneWriter::behind(std::vector<int64_t>& members) const {
  auto least = least_read();
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (lane_.read[i].bytes.load() == least) members.push_back(readers_[i]);
  }
}

LaneReader::LaneReader(const Segment& segment, Segment::LaneMemory lane, int64_t writer, std::vector<int64_t> readers,
                       int64_t me)
    : segment_(&segment), lane_(lane), writer_(writer), readers_(std::move(readers)) {
  read_ = lane_.read + (std::find(readers_.begin(), readers_.end(), me) - readers_.begin());
}

uint64_t LaneReader::available(uint64_t wanted) {
  wanted = std::min(wanted, lane_.capacity - position_ % lane_.capacity);
  if (written_ - position_ < wanted) written_ = lane_.written->bytes.load();
  return std::min(wanted, written_ - position_);
}

void LaneReader::release() {
  read_->bytes.store(position_);
  ring(segment_->member(writer_).bell);
}

void LaneReader::behind(std::vector<int64_t>& members) const {
  bool full = false;
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (lane_.written->bytes.load() - lane_.read[i].bytes.load() + kLineBytes <= lane_.capacity) continue;
    members.push_back(readers_[i]);
    full = true;
  }
  if (!full) members.push_back(writer_);
}

}  // namespace intarsia
