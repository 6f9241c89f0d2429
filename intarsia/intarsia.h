#pragma once
// Distributed tensors for LibTorch: everything a program needs.

#include "intarsia/comm/init.h"
#include "intarsia/comm/simulation.h"
#include "intarsia/core/layout.h"
#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/debug/explain.h"
#include "intarsia/debug/visualize.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/hooks.h"
#include "intarsia/nn/parallelize_module.h"
#include "intarsia/nn/state_dict.h"
#include "intarsia/nn/styles.h"
#include "intarsia/redistribute/cost.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
