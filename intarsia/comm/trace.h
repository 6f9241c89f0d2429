#pragma once
// The trace: one event per collective, which every open recorder gets.

#include <algorithm>
#include <cstdint>
#include <string>

namespace intarsia {

class World;

struct CommEvent {
  std::string kind;    // all_reduce(sum), all_gather, reduce_scatter(sum), all_to_all, broadcast, ...
  std::string axis;    // the name of the mesh axis; several axes joined by "_"
  int64_t sent;        // bytes that one rank must send (the busiest hosted one), in theory
  int64_t received;    // bytes that one rank must receive
  std::string op;      // the call that caused it: aten::mm, redistribute, full_tensor, ...
  bool implicit;       // chosen by dispatch, not requested by the caller
  double start = 0;    // seconds since the process began
  double seconds = 0;  // how long this rank spent in it
  std::string engine;  // what carried it: shm, gloo, simulation, ...

  int64_t bytes() const { return std::max(sent, received); }
};

std::string str(const CommEvent& event);  // reduce_scatter(sum) tp 192B

// An op without a rule that ran on whole tensors.
struct FallbackEvent {
  std::string op;
  std::string layouts;
};

// The ranks of an axis exchanged numbers or a text, no part of a tensor: whether an op succeeded on all of them, for
// example.
struct AgreementEvent {
  std::string op;
  std::string axis;
};

// Note [Who sees what]
// A recorder sees what its thread does, and what other threads do in the world that its thread is in: a helper thread
// of the program, and threads on which autograd goes on with a backward pass. Simulations of different threads are
// different worlds, of which neither sees the other.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void on_comm(const CommEvent& event) = 0;
  virtual void on_fallback(const FallbackEvent& event) = 0;
  virtual void on_agreement(const AgreementEvent&) {}
};

// Events are delivered one at a time, to all recorders that see their world.
void add_recorder(Recorder* recorder);
void remove_recorder(Recorder* recorder);
bool recording();  // some recorder is open
void record(const World& world, const CommEvent& event);
void record(const World& world, const FallbackEvent& event);
void record(const World& world, const AgreementEvent& event);
double seconds_since_start();

// The cause of the reduction of norms, which runs when one of them is read. A rank that is not in it has called the op
// as well.
constexpr const char* kNormCause = "the value of aten::norm";

// Sets the call on whose behalf the collectives of this scope run. The outermost scope wins.
class CauseScope {
 public:
  CauseScope(const char* op, bool implicit);
  ~CauseScope();
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;
  static const char* op();
  static bool implicit();
  static const char* spoken(const char* op);  // as the program wrote it: item() for the op behind it

 private:
  bool outermost_;
};

}  // namespace intarsia
