#pragma once
// Errors as text, so that a test compares what the caller reads.

#include <string>

#include <c10/util/Exception.h>

namespace intarsia {

// The message of the error of type `Error` that `call` throws.
//   EXPECT_EQ(error_text<c10::ValueError>([&] { simulate(0); }), "[simulate] ...");
template <class Error, class Call>
std::string error_text(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("an error of another type: ") + error.what();
  }
  return "no error";
}

}  // namespace intarsia
