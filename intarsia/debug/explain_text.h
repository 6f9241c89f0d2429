#pragma once
// Reads what explain() is asked, as the command line and Python write it.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/debug/explain.h"

namespace intarsia {

// "[8, 12] S(0), R", "[8] S(0) long", "[8, 12] double", or "none" for a tensor that is left out. Without a dtype it is
// float.
Imagined parse_imagined(std::string_view text);

// A call of an op as text: its tensors in order, and arguments by name, read as the schema has them: numbers, texts,
// dtypes, None, and lists of these ("[0, 1]"; one number may stand for several). Tensors may also be named.
struct ExplainedCall {
  std::vector<Imagined> tensors;
  std::map<std::string, c10::IValue> arguments;
};
ExplainedCall parse_call(const std::string& op, const std::vector<std::string>& tensors,
                         const std::map<std::string, std::string>& named);

}  // namespace intarsia
