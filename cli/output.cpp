#include "cli/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace intarsia::cli {
namespace {

constexpr size_t kLongestLine = 1 << 20;  // a longer one is passed on in pieces

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    auto n = write(fd, text.data() + done, text.size() - done);
    if (n > 0) {
      done += n;
    } else if (errno == EAGAIN) {  // our own output may be a pipe that somebody else made non-blocking
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;  // nobody reads us any more
    }
  }
}

}  // namespace

LineForwarder::LineForwarder(int from, int to, std::string prefix, int log)
    : from_(from), to_(to), log_(log), prefix_(std::move(prefix)) {
  fcntl(from_, F_SETFL, fcntl(from_, F_GETFL) | O_NONBLOCK);
}

LineForwarder::~LineForwarder() {
  if (from_ >= 0) close(from_);
}

void LineForwarder::forward() {
  char chunk[65536];
  while (from_ >= 0) {
    auto n = read(from_, chunk, sizeof chunk);
    if (n > 0) {
      pending_.append(chunk, n);
      auto newline = pending_.rfind('\n');
      if (newline != pending_.npos) {
        write_lines(newline + 1);
      } else if (pending_.size() > kLongestLine) {
        write_lines(pending_.size());
      }
    } else if (n == 0) {
      finish();
    } else if (errno != EINTR) {
      return;
    }
  }
}

void LineForwarder::finish() {
  if (from_ < 0) return;
  close(from_);
  from_ = -1;
  if (!pending_.empty()) write_lines(pending_.size());
}

void LineForwarder::write_lines(size_t end) {
  auto lines = pending_.substr(0, end);
  pending_.erase(0, end);
  if (log_ >= 0) write_all(log_, lines);
  if (!prefix_.empty()) {
    if (lines.back() != '\n') lines += '\n';
    std::string marked;
    for (size_t begin = 0; begin < lines.size();) {
      auto next = lines.find('\n', begin) + 1;
      marked += prefix_ + lines.substr(begin, next - begin);
      begin = next;
    }
    lines.swap(marked);
  }
  write_all(to_, lines);
}

}  // namespace intarsia::cli
