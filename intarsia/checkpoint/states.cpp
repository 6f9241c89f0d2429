#include "intarsia/checkpoint/states.h"

#include <mutex>
#include <optional>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/serialize.h>

#include "intarsia/core/world.h"
#include "intarsia/dispatch/one_generator.h"
#include "intarsia/nn/grad_scaler.h"
#include "intarsia/nn/lambda_lr.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::checkpoint {
namespace {

using torch::optim::LRScheduler;

// The step count of a scheduler is protected.
struct ScheduleAccess : LRScheduler {
  static unsigned& steps_of(LRScheduler& scheduler) { return scheduler.*(&ScheduleAccess::step_count_); }
};

// The numbers of a checkpoint under a name. Missing ones are reported with all others.
struct StoredNumbers {
  const std::string& scope;
  const CheckpointIndex& index;
  const Rename& rename;
  Wanted& wanted;

  template <class Number>
  std::optional<Number> find(const std::string& name) const {
    auto full = joined_name(scope, name);
    auto found = index.values.find(rename(full));
    if (found == index.values.end()) return wanted.values.push_back(full), std::nullopt;
    wanted.used_values.insert(found->first);
    auto* number = std::get_if<Number>(&found->second);
    TORCH_CHECK_TYPE(number, "[checkpoint::load] \"", full, "\" is ", str(found->second),
                     ", which is no number of its kind.");
    return *number;
  }
};

std::string rate_name(size_t group) { return "base_lrs." + std::to_string(group); }

// See Note [A state per rank].
at::Tensor rows_of_ranks(const at::Tensor& mine) {
  auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
  return from_local(mine.unsqueeze(0), mesh, {Shard(0)});
}

at::Tensor row_of_this_rank(const at::Tensor& rows, const std::string& name) {
  bool alike = rows.equal(rows.narrow(0, 0, 1).expand_as(rows));
  if (alike && rows.size(0)) return rows[0];
  auto& world = current_world();
  TORCH_CHECK_VALUE(rows.size(0) == world.size(), "[checkpoint::load] \"", name, "\" has a state for each of ",
                    rows.size(0), " ranks, which differ, and there are ", world.size(), " ranks now. Load it on ",
                    rows.size(0), " ranks, or leave it out.");
  TORCH_CHECK_VALUE(world.hosted().size() == 1, "[checkpoint::load] \"", name, "\" has a state for each of ",
                    rows.size(0), " ranks, which differ, and this process plays all of them with one. Leave it out.");
  return rows[world.hosted()[0]];
}

// Requests all rows of a tensor: as the checkpoint has them, or (if it lacks them) as `like`, to be reported as
// missing.
at::Tensor wanted_rows(const std::string& name, const at::Tensor& like, const CheckpointIndex& index,
                       const Rename& rename, Wanted& wanted) {
  auto found = index.tensors.find(rename(name));
  auto rows = found == index.tensors.end() ? like.unsqueeze(0) : at::empty(found->second.shape, found->second.dtype);
  wanted.tensors.emplace_back(name, rows);
  return found == index.tensors.end() ? at::Tensor() : rows;
}

// The tensors in an archive, by name.
Tensors tensors_in_archive(const WriteArchive& write) {
  torch::serialize::OutputArchive out;
  write(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  Tensors tensors;
  for (auto& key : in.keys()) {
    at::Tensor tensor;
    TORCH_CHECK_TYPE(in.try_read(key, tensor, /*is_buffer=*/true), "[checkpoint::save] a sampler writes \"", key,
                     "\", which is no tensor. Save its state as separate items.");
    tensors.emplace_back(key, tensor);
  }
  return tensors;
}

void read_from_tensors(const Tensors& tensors, const ReadArchive& read) {
  torch::serialize::OutputArchive out;
  for (auto& [key, tensor] : tensors) out.write(key, tensor, /*is_buffer=*/true);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  read(in);
}

}  // namespace

StateMaker schedule_state(LRScheduler& scheduler) {
  auto* lambda = dynamic_cast<LambdaLR*>(&scheduler);
  StateMaker state;
  state.contents = [&scheduler, lambda](const std::string& scope) {
    Contents contents;
    contents.values[joined_name(scope, "step_count")] = static_cast<int64_t>(ScheduleAccess::steps_of(scheduler));
    for (size_t i = 0; lambda && i < lambda->base_lrs().size(); ++i) {
      contents.values[joined_name(scope, rate_name(i))] = lambda->base_lrs()[i];
    }
    return contents;
  };
  state.want = [&scheduler, lambda](const std::string& scope, const CheckpointIndex& index, const Rename& rename,
                                    Wanted& wanted) {
    StoredNumbers numbers{scope, index, rename, wanted};
    auto steps = numbers.find<int64_t>("step_count");
    auto rates = lambda ? lambda->base_lrs() : std::vector<double>();
    for (size_t i = 0; i < rates.size(); ++i) rates[i] = numbers.find<double>(rate_name(i)).value_or(rates[i]);
    wanted.finish.push_back([=, &scheduler] {
      if (steps) ScheduleAccess::steps_of(scheduler) = *steps;
      if (lambda) lambda->set_base_lrs(rates);
    });
  };
  return state;
}

StateMaker scaler_state(GradScaler& scaler) {
  StateMaker state;
  state.contents = [&scaler](const std::string& scope) {
    auto [scale, tracker] = scaler.state();
    return Contents{{}, {{joined_name(scope, "scale"), scale}, {joined_name(scope, "growth_tracker"), tracker}}};
  };
  state.want = [&scaler](const std::string& scope, const CheckpointIndex& index, const Rename& rename, Wanted& wanted) {
    StoredNumbers numbers{scope, index, rename, wanted};
    auto scale = numbers.find<double>("scale");
    auto tracker = numbers.find<int64_t>("growth_tracker");
    wanted.finish.push_back([=, &scaler] {
      if (scale && tracker) scaler.set_state({*scale, *tracker});
    });
  };
  return state;
}

StateMaker generator_state(const at::Generator& generator) {
  TORCH_CHECK_VALUE(generator.defined(), "[checkpoint] a generator is undefined. Give one, such as ",
                    "at::detail::getDefaultCPUGenerator().");
  StateMaker state;
  state.contents = [generator](const std::string& scope) {
    return Contents{{{joined_name(scope, "state"), rows_of_ranks(state_of(generator))}}, {}};
  };
  state.want = [generator](const std::string& scope, const CheckpointIndex& index, const Rename& rename,
                           Wanted& wanted) {
    auto name = joined_name(scope, "state");
    auto rows = wanted_rows(name, state_of(generator), index, rename, wanted);
    wanted.finish.push_back([=] {
      if (!rows.defined()) return;
      auto target = generator;
      std::lock_guard lock(target.mutex());
      target.set_state(row_of_this_rank(rows, name).clone());  // LibTorch reads from the beginning of the storage
    });
  };
  return state;
}

StateMaker archive_state(WriteArchive write, ReadArchive read) {
  StateMaker state;
  state.contents = [write](const std::string& scope) {
    Contents contents;
    for (auto& [key, tensor] : tensors_in_archive(write)) {
      contents.tensors.emplace_back(joined_name(scope, key), rows_of_ranks(tensor));
    }
    return contents;
  };
  state.want = [write, read](const std::string& scope, const CheckpointIndex& index, const Rename& rename,
                             Wanted& wanted) {
    Tensors all_rows;  // of every tensor, by its name in the archive
    for (auto& [key, tensor] : tensors_in_archive(write)) {
      all_rows.emplace_back(key, wanted_rows(joined_name(scope, key), tensor, index, rename, wanted));
    }
    wanted.finish.push_back([=] {
      Tensors mine;
      for (auto& [key, rows] : all_rows) {
        if (!rows.defined()) return;
        mine.emplace_back(key, row_of_this_rank(rows, joined_name(scope, key)).clone());
      }
      read_from_tensors(mine, read);
    });
  };
  return state;
}

}  // namespace intarsia::checkpoint
