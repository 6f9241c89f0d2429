#pragma once
// What the mpi engine needs of an MPI, without mpi.h: the plugin implements it, the library uses it. Standard C++ only,
// so that a plugin can be built for another MPI without LibTorch.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace intarsia {

// The version of this file. A plugin of another version is not used.
constexpr int kMpiPortVersion = 1;

// An error that MPI returned.
struct MpiError : std::runtime_error {
  using std::runtime_error::runtime_error;
  bool truncated = false;  // the message was longer than we expected
  int64_t request = -1;    // the failed one among those that were tested
};

// A pending message; 0: it has arrived.
using MpiRequest = std::uintptr_t;

// A separate communicator. Messages of one stream between two members arrive in the order in which they were sent.
class MpiLine {
 public:
  virtual ~MpiLine() = default;
  virtual MpiRequest send(const void* from, int64_t bytes, int member, int stream) = 0;
  virtual MpiRequest receive(void* to, int64_t bytes, int member, int stream) = 0;
  // Takes a message of up to `bytes` that has arrived and that no receive matches, and returns its sender; -1: none
  // has.
  virtual int take(void* to, int64_t bytes, int stream) = 0;
  // Frees the communicator if no message is pending on it. Otherwise its messages may still arrive: it stays until the
  // process ends.
  virtual void leave() = 0;
};

enum class MpiThreads { single, funneled, serialized, multiple };

// The ranks of a communicator, as one of them sees it. `threads` says which threads may call.
class MpiPort {
 public:
  virtual ~MpiPort() = default;
  int rank = 0, size = 1;
  int on_this_host = 1;  // ranks, including ours
  MpiThreads threads = MpiThreads::single;
  bool started_here = false;  // MPI; else the program did
  int64_t longest = 1 << 30;  // bytes of one message

  // All of these ranks call it; if several threads make lines at once, each uses another `tag`.
  virtual MpiLine* make_line(const std::vector<int>& ranks, int tag) = 0;
  // Makes progress. Requests that have arrived become 0; returns whether any did. Throws MpiError.
  virtual bool test(MpiRequest* requests, size_t count) = 0;
  // Cancels a receive. It is over when test says so.
  virtual void cancel(MpiRequest request) = 0;
  // All ranks get rank 0's bytes. Waits for all.
  virtual void broadcast(void* bytes, int64_t count) = 0;
  virtual bool may_call() const = 0;  // this thread
  virtual bool ended() const = 0;     // MPI_Finalize was called
};

// A request for the port of a communicator. If MPI has not been started, the plugin starts it.
struct MpiQuestion {
  bool world = true;     // MPI_COMM_WORLD; else
  int communicator = 0;  // a Fortran handle
};

// What a plugin exports, as `intarsia_mpi_plugin`. The first three members never move.
struct MpiPlugin {
  int version;                                    // kMpiPortVersion
  const char* built_for;                          // Open MPI 4.1.4
  const char* (*runs_on)();                       // the version text of the MPI in this process
  MpiPort* (*open)(const MpiQuestion& question);  // throws MpiError
  void (*end)();                                  // MPI_Finalize, if we have started MPI and it has not ended
};

}  // namespace intarsia
