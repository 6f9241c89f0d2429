#pragma once
// Python values as bytes that pickle.load reads.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace intarsia {

// A value, already written; nest them. The whole is pickled() once.
class Pickle {
 public:
  using Items = std::vector<std::pair<std::string, Pickle>>;
  static Pickle text(std::string_view value);
  static Pickle number(int64_t value);
  static Pickle truth(bool value);
  static Pickle list(const std::vector<Pickle>& values);
  static Pickle pair(const Pickle& first, const Pickle& second);  // a tuple
  static Pickle dict(const Items& items);
  static Pickle sizes(const std::vector<int64_t>& values);        // a list of numbers

  std::string pickled() const;

 private:
  explicit Pickle(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;
};

}  // namespace intarsia
