#pragma once
// Forwards the output of a rank in whole lines, so that lines of ranks never mix.

#include <cstdint>
#include <functional>
#include <string>

namespace intarsia::cli {

void write_all(int fd, const std::string& text);

class LineForwarder {
 public:
  using Show = std::function<void(const std::string& lines)>;  // whole lines

  // Reads from `from`, passes whole lines to `show`, and writes all it reads to `log` unless that is -1.
  LineForwarder(int from, Show show, int log);
  ~LineForwarder();
  LineForwarder(const LineForwarder&) = delete;
  LineForwarder& operator=(const LineForwarder&) = delete;

  int fd() const { return from_; }  // -1 after the end of the stream

  // Reads what is available without blocking. At the end of the stream, completes an unfinished line.
  void forward();
  // Ends the stream here, whatever process still holds its other side.
  void finish();

 private:
  void write_lines(size_t end);
  int from_, log_;
  Show show_;
  std::string pending_;
};

// How to show the lines of a rank: unchanged; marked with the rank; on stderr, folded with those of other ranks.
LineForwarder::Show as_they_are(int to);
LineForwarder::Show marked(int to, int64_t rank);
LineForwarder::Show folded(int64_t rank);

}  // namespace intarsia::cli
