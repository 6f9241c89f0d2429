#pragma once
// The message of an exception, without what only its author needs.

#include <exception>
#include <string>

namespace intarsia {

// The message, without a stack trace.
std::string message_of(const std::exception& error);

// The same without the source line and the advice that c10d's backends add, and without a full stop.
std::string plain_text(const std::exception& error);

}  // namespace intarsia
