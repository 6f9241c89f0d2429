#pragma once
// Words among ranks, which move nothing of a tensor.

namespace intarsia {

// While it lives, the collectives of this thread are traced as agreements.
class WordScope {
 public:
  WordScope();
  ~WordScope();
  WordScope(const WordScope&) = delete;
  WordScope& operator=(const WordScope&) = delete;
  static bool active();

 private:
  bool outer_;
};

}  // namespace intarsia
