#pragma once
// A step of DistributedDataParallel in C++: c10d::Reducer over gloo, called as PyTorch's module calls it.

#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "intarsia/transport/gloo/gloo_process_groups.h"

namespace bench {

// The store of the job, under keys of our own.
inline c10::intrusive_ptr<c10d::Store> store_of_job(const std::string& prefix) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::PrefixStore>(
      prefix, c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options));
}

inline c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(int rank, int size) {
  static intarsia::GlooMaker maker("127.0.0.1", std::chrono::seconds(60));
  auto store = store_of_job("bench/ddp");
  auto backend = maker.make(store, rank, size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

class Ddp {
 public:
  Ddp(const std::vector<at::Tensor>& parameters, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      bool gradient_as_bucket_view) {
    std::vector<size_t> limits = {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap};
    std::vector<bool> sparse(parameters.size(), false);
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, sparse));
    std::unordered_map<size_t, std::string> names;
    for (size_t i = 0; i < parameters.size(); ++i) names[i] = std::to_string(i);
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters, std::vector<std::vector<size_t>>(buckets.rbegin(), buckets.rend()), group, sparse,
        c10d::kDefaultBucketBytesCap, /*find_unused_parameters=*/false, gradient_as_bucket_view, names,
        c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>{});
  }
  void before_forward() {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
  }
  void before_backward() { reducer_->prepare_for_backward({}); }

 private:
  std::shared_ptr<c10d::Reducer> reducer_;
};

}  // namespace bench
