#pragma once
// Interrupts of threads that wait for other ranks: Python raises KeyboardInterrupt.

#include <exception>

namespace c10d {
class Work;
}

namespace intarsia {

// Callbacks of the program.
struct Interrupts {
  void (*check)();   // called on a waiting thread about ten times a second: an exception ends the wait
  void (*repeat)();  // an exception of check() could not be passed on: raise it again
  bool (*stops)(const std::exception_ptr&);  // whether an exception from the program's code is meant to stop it
};
// Set once, before the first collective.
void set_interrupts(const Interrupts* interrupts);
bool interruptible();

// The exception of check(). Not a std::exception, so that handlers which word errors of other ranks let it pass.
struct Interruption {
  std::exception_ptr cause;
};

// Calls check(); throws an Interruption. Does nothing if no callbacks are set.
void check_interrupts();
void repeat_interrupt();
bool is_interrupt(const std::exception_ptr& error);

// Runs a function that may be interrupted; rethrows the exception of check().
template <class Call>
void with_interrupts(Call call) {
  try {
    call();
  } catch (const Interruption& interruption) {
    std::rethrow_exception(interruption.cause);
  }
}

// While it lives, the wait for `work` returns false about ten times a second, so that the waiting thread can check for
// interrupts. For gloo's send and recv, whose wait returns false after abort() and can then be called again. Null: does
// nothing.
class Nudges {
 public:
  explicit Nudges(c10d::Work* work);
  ~Nudges();
  Nudges(const Nudges&) = delete;
  Nudges& operator=(const Nudges&) = delete;

 private:
  c10d::Work* work_;
};

}  // namespace intarsia
