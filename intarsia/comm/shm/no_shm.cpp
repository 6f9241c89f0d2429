// Stands in for shm.cpp where the engine is not built in.

#include "intarsia/comm/shm/shm.h"

namespace intarsia {

MakeEngine shm_maker() { return nullptr; }

}  // namespace intarsia
