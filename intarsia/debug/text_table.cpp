#include "intarsia/debug/text_table.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace intarsia {

TextTable::TextTable(std::vector<std::string> headings) {
  for (auto& heading : headings) {
    right_.push_back(heading.rfind('>', 0) == 0);
    if (right_.back()) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void TextTable::add(std::vector<std::string> row) {
  TORCH_INTERNAL_ASSERT(row.size() == right_.size());
  rows_.push_back(std::move(row));
}

std::string TextTable::text() const {
  std::vector<size_t> widths(right_.size(), 0);
  for (auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string gap(widths[i] - width_of(row[i]), ' ');
      line += (i ? "  " : "") + (right_[i] ? gap + row[i] : row[i] + gap);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

size_t width_of(const std::string& text) {
  // Bytes of the form 10xxxxxx continue a character.
  return std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace intarsia
