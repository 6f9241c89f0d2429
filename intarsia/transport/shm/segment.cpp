#include "intarsia/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

constexpr uint64_t kPage = 4096;
// Per member, for its ring to all, and for its rings to single members together. Small enough to stay in a core's
// cache.
constexpr uint64_t kLaneBytes = 512 << 10;

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Segment::Segment(int64_t size, int fd) : size_(size), fd_(fd) {
  auto others = static_cast<uint64_t>(std::max<int64_t>(size - 1, 1));
  single_capacity_ = std::max(kLaneBytes / others / kPage * kPage, kPage);
  counters_ =
      whole_pages((1 + size + 2 * size) * sizeof(RingCounter));  // to all: one written, `size` read; single: two each
  per_member_ = counters_ + kLaneBytes + size * single_capacity_;
  bytes_ = whole_pages(size * sizeof(MemberRecord)) + size * per_member_;
}

void Segment::map() {
  auto* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  TORCH_CHECK(mapped != MAP_FAILED, "cannot map ", bytes_, " bytes of shared memory: ", std::strerror(errno));
  base_ = static_cast<char*>(mapped);
  members_ = reinterpret_cast<MemberRecord*>(base_);
}

Segment::~Segment() {
  if (base_) munmap(base_, bytes_);
  close_file();
}

std::shared_ptr<Segment> Segment::make(int64_t size) {
  int fd = memfd_create("intarsia", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  TORCH_CHECK(fd >= 0, "cannot make shared memory: ", std::strerror(errno));
  std::shared_ptr<Segment> segment(new Segment(size, fd));
  // Allocated now: a page that cannot be allocated later would raise SIGBUS.
  int failed = ftruncate(fd, segment->bytes_) ? errno : posix_fallocate(fd, 0, segment->bytes_);
  TORCH_CHECK(!failed, "no room for ", segment->bytes_, " bytes of shared memory: ", std::strerror(failed));
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  segment->map();
  for (int64_t i = 0; i < size; ++i)
    new (&segment->members_[i]) MemberRecord;  // counters begin as the zeros of new memory
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& path, int64_t size) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  TORCH_CHECK(fd >= 0, "cannot open ", path, ": ", std::strerror(errno));
  std::shared_ptr<Segment> segment(new Segment(size, fd));
  struct stat about{};
  bool same = fstat(fd, &about) == 0 && static_cast<size_t>(about.st_size) == segment->bytes_;
  TORCH_CHECK(same, path, " is something else");
  segment->map();
  segment->close_file();
  return segment;
}

std::string Segment::path() const { return c10::str("/proc/", getpid(), "/fd/", fd_); }

void Segment::close_file() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Segment::RingMemory Segment::ring_to_all(int64_t writer) const {
  auto* begin = base_ + whole_pages(size_ * sizeof(MemberRecord)) + writer * per_member_;
  auto* counters = reinterpret_cast<RingCounter*>(begin);
  return {counters, counters + 1, begin + counters_, kLaneBytes};
}

Segment::RingMemory Segment::ring(int64_t writer, int64_t reader) const {
  auto* begin = base_ + whole_pages(size_ * sizeof(MemberRecord)) + writer * per_member_;
  auto* counters = reinterpret_cast<RingCounter*>(begin) + 1 + size_ + 2 * reader;
  return {counters, counters + 1, begin + counters_ + kLaneBytes + reader * single_capacity_, single_capacity_};
}

}  // namespace intarsia
