#pragma once
// Forwards bytes between pairs of connections, both ways, until one side closes.

#include <poll.h>

#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace intarsia {

// One thread for all pairs. It lives until the process ends, since its users cannot say when they are done.
class Relay {
 public:
  static Relay& instance();
  void add(int one, int other);  // the relay takes ownership of both

 private:
  struct Side {
    int fd;
    std::string waiting;  // to be sent to it
  };
  struct Pair {
    Side sides[2];
  };
  Relay();
  [[noreturn]] void serve();
  std::vector<pollfd> wishes();
  static bool pass_on(Side& from, Side& to, short events);
  static bool deliver(Side& to);

  std::mutex mutex_;
  std::vector<Pair> added_;
  std::list<Pair> pairs_;  // used by the thread only
  int wake_[2];
};

}  // namespace intarsia
