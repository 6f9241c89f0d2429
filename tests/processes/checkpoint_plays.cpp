#include "tests/processes/checkpoint_plays.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/job/init.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

std::string test_folder() { return std::getenv("INTARSIA_TEST_FOLDER"); }

// What a step has to hold.
at::Tensor rows_of(int64_t step) { return (at::arange(200 * 1003, at::kLong) * (step + 1)).reshape({200, 1003}); }
at::Tensor bias_of(int64_t step) { return at::full({77}, step, at::kDouble); }

void save_step(const DeviceMesh& mesh, int64_t step) {
  auto rows = distribute_tensor(rows_of(step), mesh, {Shard(0)}, std::nullopt);
  auto bias = distribute_tensor(bias_of(step), mesh, {Replicate()}, std::nullopt);
  checkpoint::Items items = {{"rows", rows}, {"bias", bias}, {"step", step}};
  auto path = test_folder() + "/runs/step-" + std::to_string(step);
  if (step % 2) {
    checkpoint::save(path, items, {.keep = 3});
  } else {
    checkpoint::save_async(path, items, {.keep = 3});
  }
}

}  // namespace

void play_save_once() {
  init();
  save_step(init_device_mesh(at::kCPU, {world_size()}), 1);
}

void play_saves() {
  init();
  auto folder = test_folder();
  std::ofstream(folder + "/pid-" + std::to_string(rank())) << getpid();
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  auto runs = folder + "/runs";
  int64_t step = checkpoint::has_latest(runs) ? checkpoint::load(checkpoint::latest(runs), {}).integer("step") : 0;
  barrier();
  while (true) save_step(mesh, ++step);
}

void play_check() {
  init();
  auto runs = test_folder() + "/runs";
  if (!checkpoint::has_latest(runs)) return void(std::printf("step 0\n"));
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  auto rows = zeros({200, 1003}, mesh, {Shard(1)}, at::kLong);
  auto bias = at::zeros({77}, at::kDouble);
  auto step = checkpoint::load(checkpoint::latest(runs), {{"rows", rows}, {"bias", bias}}).integer("step");
  TORCH_CHECK(full_tensor(rows).equal(rows_of(step)) && bias.equal(bias_of(step)), "step ", step,
              " holds other values");
  std::printf("step %ld\n", static_cast<long>(step));
}

}  // namespace intarsia
