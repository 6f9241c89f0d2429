// Our engines as a backend of c10d, from C++.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "intarsia/c10d_backend/intarsia_backend.h"
#include "intarsia/job/init.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::processes_own_backend_test {
namespace {

c10::intrusive_ptr<c10d::Backend> backend_for(const std::string& test, BackendOptions options = {}) {
  c10d::TCPStoreOptions store_options;
  store_options.port = std::stoi(getenv("MASTER_PORT"));
  store_options.waitWorkers = false;
  static auto store = c10::make_intrusive<c10d::TCPStore>(getenv("MASTER_ADDR"), store_options);
  options.interface = "lo";
  options.timeout = std::chrono::seconds(60);
  return make_backend(c10::make_intrusive<c10d::PrefixStore>("own/" + test, store), rank(), world_size(), options);
}

std::vector<at::Tensor> signs(int64_t count) { return {at::full({count}, double(sign_of(rank())))}; }

TEST(IntarsiaBackend, ReducesInPlaceInTheOrderOfTheGroup) {
  auto backend = backend_for("reduce");
  for (int64_t count : {1, 5000, 70001, 3000000}) {  // read by all, in parts, past the caches
    auto tensors = signs(count);
    backend->allreduce(tensors)->wait();
    EXPECT_TRUE(at::equal(tensors[0], at::full({count}, double(sum_of_signs(world_size()))))) << count;
  }
}

TEST(IntarsiaBackend, ServesAProcessGroup) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank(), world_size());
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend_for("group"));
  auto tensors = signs(3);
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  group->allreduce(tensors, options)->wait();
  EXPECT_NEAR(tensors[0][0].item<double>(), double(sum_of_signs(world_size())) / world_size(), 1e-12);
}

TEST(IntarsiaBackend, IsSplit) {
  auto backend = backend_for("split");
  auto half = c10::make_intrusive<c10d::PrefixStore>("half", c10::make_intrusive<c10d::HashStore>());
  auto alone = backend->split(half, {static_cast<int>(rank())}, nullptr);
  EXPECT_EQ(alone->getSize(), 1);
  EXPECT_EQ(backend->split(half, {static_cast<int>(rank() + 1)}, nullptr), nullptr);
}

TEST(IntarsiaBackend, RefusesAfterItWasShutDown) {
  auto backend = backend_for("closed", {.group = "tp"});
  backend->barrier()->wait();
  backend->shutdown();
  auto tensors = signs(1);
  EXPECT_EQ(error_text<c10::Error>([&] { backend->allreduce(tensors); }),
            "[all_reduce] the process group \"tp\" was destroyed.");
}

}  // namespace
}  // namespace intarsia::processes_own_backend_test
