#include "intarsia/comm/error_message.h"

#include <c10/util/Exception.h>

namespace intarsia {

std::string message_of(const std::exception& error) {
  auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

std::string plain_text(const std::exception& error) {
  auto text = message_of(error);
  auto end = text.find("] ");  // gloo starts with [file:line]
  if (text.starts_with("[/") && end != text.npos) text = text.substr(end + 2);
  text = text.substr(0, text.find(". This is typically"));
  while (!text.empty() && (text.back() == '.' || text.back() == '\n')) text.pop_back();
  return text;
}

}  // namespace intarsia
