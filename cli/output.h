#pragma once
// Passes on what a rank writes, whole lines at a time, so that the lines of ranks never mix.

#include <string>

namespace intarsia::cli {

class LineForwarder {
 public:
  // Reads from `from`, writes to `to` with `prefix` before every line, and without it to `log` unless that is -1.
  LineForwarder(int from, int to, std::string prefix, int log);
  ~LineForwarder();
  LineForwarder(const LineForwarder&) = delete;
  LineForwarder& operator=(const LineForwarder&) = delete;

  int fd() const { return from_; }  // -1 after the end of the stream

  // Takes what is there without blocking. At the end of the stream an unfinished line is finished.
  void forward();
  // Ends the stream here, whoever still holds its other side.
  void finish();

 private:
  void write_lines(size_t end);
  int from_, to_, log_;
  std::string prefix_;
  std::string pending_;
};

}  // namespace intarsia::cli
