#pragma once
// Schedules, scalers, generators and samplers as items of a checkpoint.
//
// Note [A state per rank]
// Every rank has its own generators and samplers, which may be in different states, as a sampler of a rank's part of
// the data is. A checkpoint has the states of all ranks, one row each. If all rows are equal, any number of ranks can
// continue from them; if not, only as many ranks as there are rows, each from its own.

#include "intarsia/checkpoint/items.h"

namespace intarsia::checkpoint {

// schedule.step_count; for a LambdaLR also schedule.base_lrs.0 and so on.
StateMaker schedule_state(torch::optim::LRScheduler& scheduler);

// scaler.scale and scaler.growth_tracker.
StateMaker scaler_state(GradScaler& scaler);

// generator.state: bytes, a row per rank.
StateMaker generator_state(const at::Generator& generator);

// What a sampler writes to an archive, tensor by tensor, with a row per rank.
StateMaker archive_state(WriteArchive write, ReadArchive read);

}  // namespace intarsia::checkpoint
