#include "intarsia/comm/words.h"

#include <utility>

namespace intarsia {
namespace {

thread_local bool words_ = false;

}  // namespace

WordScope::WordScope() : outer_(std::exchange(words_, true)) {}
WordScope::~WordScope() { words_ = outer_; }
bool WordScope::active() { return words_; }

}  // namespace intarsia
