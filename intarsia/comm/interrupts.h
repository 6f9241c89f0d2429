#pragma once
// A way to stop a thread that waits for other ranks: Python raises KeyboardInterrupt.

#include <exception>

namespace c10d {
class Work;
}

namespace intarsia {

// How the program around us is asked.
struct Interrupts {
  void (*check)();   // called on a waiting thread about ten times a second: what it throws ends the wait
  void (*repeat)();  // what it threw could not be passed on, so it is to be thrown again
  bool (*stops)(const std::exception_ptr&);  // whether what some code of the program threw is meant to stop it
};
// Set once, before the first collective.
void set_interrupts(const Interrupts* interrupts);
bool interruptible();

// What the check threw. No std::exception, so that it passes where errors of other ranks are put into words.
struct Interruption {
  std::exception_ptr cause;
};

// Asks; throws an Interruption. Nothing happens where nothing was set.
void check_interrupts();
void repeat_interrupt();
bool is_interrupt(const std::exception_ptr& error);

// Runs a function that may be interrupted; what the check threw comes out.
template <class Call>
void with_interrupts(Call call) {
  try {
    call();
  } catch (const Interruption& interruption) {
    std::rethrow_exception(interruption.cause);
  }
}

// While it lives, the wait for `work` returns false about ten times a second, so that the waiting thread can ask. For
// gloo's send and recv, whose wait returns false after abort() and can then be called again. Null: nothing happens.
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
