#include "tests/comm/engine_bodies.h"
