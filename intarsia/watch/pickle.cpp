#include "intarsia/watch/pickle.h"

namespace intarsia {
namespace {

// Protocol 2, of which this is all that is needed: numbers are little-endian two's complements with their length before them.
std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i & 0xff);
  return text;
}

}  // namespace

Pickle Pickle::text(std::string_view value) {
  return Pickle("X" + little_endian(value.size(), 4) + std::string(value));
}

Pickle Pickle::number(int64_t value) { return Pickle("\x8a\x08" + little_endian(static_cast<uint64_t>(value), 8)); }

Pickle Pickle::truth(bool value) { return Pickle(value ? "\x88" : "\x89"); }

Pickle Pickle::list(const std::vector<Pickle>& values) {
  std::string bytes = "](";
  for (auto& value : values) bytes += value.bytes_;
  return Pickle(bytes + "e");
}

Pickle Pickle::pair(const Pickle& first, const Pickle& second) { return Pickle(first.bytes_ + second.bytes_ + "\x86"); }

Pickle Pickle::dict(const Items& items) {
  std::string bytes = "}(";
  for (auto& [key, value] : items) bytes += text(key).bytes_ + value.bytes_;
  return Pickle(bytes + "u");
}

Pickle Pickle::sizes(const std::vector<int64_t>& values) {
  std::vector<Pickle> list_of;
  for (auto value : values) list_of.push_back(number(value));
  return list(list_of);
}

std::string Pickle::pickled() const { return "\x80\x02" + bytes_ + "."; }

}  // namespace intarsia
