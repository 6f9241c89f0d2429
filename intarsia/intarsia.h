#pragma once
// Distributed tensors for LibTorch: what a program that uses them needs, beside torch/torch.h. Not included are rules
// of one's own (rules/table.h, rules/builders.h, debug/prove.h), meshes over existing process groups
// (comm/c10d/from_group.h), interrupts of waits (comm/interrupts.h), and what the library keeps to itself (dispatch/,
// ops/, tensor/body.h).

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/comm/launch/init.h"
#include "intarsia/comm/simulation.h"
#include "intarsia/core/layout.h"
#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"
#include "intarsia/data_parallel/fully_shard.h"
#include "intarsia/data_parallel/replicate.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/debug/explain.h"
#include "intarsia/debug/explain_step.h"
#include "intarsia/debug/module_trace.h"
#include "intarsia/debug/visualize.h"
#include "intarsia/dispatch/one_generator.h"
#include "intarsia/dispatch/random_scope.h"
#include "intarsia/nn/born_sharded.h"
#include "intarsia/nn/recompute.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/hooks.h"
#include "intarsia/nn/parallelize_module.h"
#include "intarsia/nn/redistribute_module.h"
#include "intarsia/nn/state_dict.h"
#include "intarsia/nn/styles.h"
#include "intarsia/redistribute/cost.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/printing.h"
