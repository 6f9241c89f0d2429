#pragma once
// Marks collectives that only let ranks agree, and send no part of a tensor.

namespace intarsia {

// While it lives, the collectives of this thread are traced as agreements.
class AgreementScope {
 public:
  AgreementScope();
  ~AgreementScope();
  AgreementScope(const AgreementScope&) = delete;
  AgreementScope& operator=(const AgreementScope&) = delete;
  static bool active();

 private:
  bool outer_;
};

}  // namespace intarsia
