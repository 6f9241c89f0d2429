#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

thread_local int rehearsals_ = 0;

}  // namespace

RehearsalScope::RehearsalScope() { ++rehearsals_; }
RehearsalScope::~RehearsalScope() { --rehearsals_; }
bool is_rehearsing() { return rehearsals_ > 0; }

}  // namespace intarsia
