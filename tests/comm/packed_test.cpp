#include "tests/comm/packed_bodies.h"
