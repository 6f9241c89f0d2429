#pragma once
// Distributed tensors for LibTorch: everything a program needs.

#include "intarsia/comm/init.h"
#include "intarsia/comm/simulation.h"
#include "intarsia/core/layout.h"
#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
