#pragma once
// A table of text with columns as wide as their longest entry.

#include <string>
#include <vector>

namespace intarsia {

class TextTable {
 public:
  // A heading that begins with ">" right-aligns its column.
  explicit TextTable(std::vector<std::string> headings);
  void add(std::vector<std::string> row);  // one entry per column
  std::string text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

// The number of terminal columns that the UTF-8 text takes, if every character takes one.
size_t width_of(const std::string& text);

}  // namespace intarsia
