#include "tests/comm/engine_bodies.h"
#include "tests/comm/packed_bodies.h"
