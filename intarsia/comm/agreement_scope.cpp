#include "intarsia/comm/agreement_scope.h"

#include <utility>

namespace intarsia {
namespace {

thread_local bool words_ = false;

}  // namespace

AgreementScope::AgreementScope() : outer_(std::exchange(words_, true)) {}
AgreementScope::~AgreementScope() { words_ = outer_; }
bool AgreementScope::active() { return words_; }

}  // namespace intarsia
