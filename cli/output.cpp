#include "cli/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cli/folding.h"

namespace intarsia::cli {
namespace {

constexpr size_t kLongestLine = 1 << 20;  // a longer one is forwarded in pieces

void each_line(const std::string& lines, const std::function<void(std::string)>& use) {
  for (size_t begin = 0; begin < lines.size();) {
    auto next = std::min(lines.find('\n', begin), lines.size() - 1) + 1;
    auto line = lines.substr(begin, next - begin);
    use(line.back() == '\n' ? line : line + '\n');
    begin = next;
  }
}

}  // namespace

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    auto n = write(fd, text.data() + done, text.size() - done);
    if (n > 0) {
      done += n;
    } else if (errno == EAGAIN) {  // our output may be a pipe that another program made non-blocking
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;  // no process reads our output any more
    }
  }
}

LineForwarder::LineForwarder(int from, Show show, int log) : from_(from), log_(log), show_(std::move(show)) {
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
  show_(lines);
}

LineForwarder::Show as_they_are(int to) {
  return [to](const std::string& lines) { write_all(to, lines); };
}

LineForwarder::Show marked(int to, int64_t rank) {
  return [to, prefix = "[" + std::to_string(rank) + "] "](const std::string& lines) {
    std::string text;
    each_line(lines, [&](const std::string& line) { text += prefix + line; });
    write_all(to, text);
  };
}

LineForwarder::Show folded(int64_t rank) {
  return [rank](const std::string& lines) {
    each_line(lines, [&](const std::string& line) { errors_of_ranks().add(rank, line); });
  };
}

}  // namespace intarsia::cli
