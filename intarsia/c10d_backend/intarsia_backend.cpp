#include "intarsia/c10d_backend/intarsia_backend.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/c10d_backend/flat_buffer.h"
#include "intarsia/c10d_backend/intarsia_work.h"
#include "intarsia/c10d_backend/tensor_line.h"
#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/trace.h"
#include "intarsia/job/engines.h"
#include "intarsia/launch/launcher_environment.h"

namespace intarsia {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;
using List = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr milliseconds kFarewell{5000};  // for pending collectives when a group is destroyed

// Causes are recorded by pointer, and may be read much later.
const char* kept(const std::string& text) {
  static auto* mutex = new std::mutex;
  static auto* texts = new std::set<std::string>;
  std::lock_guard lock(*mutex);
  return texts->insert(text).first->c_str();
}

ReduceOp op_of(const char* where, const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    case c10d::ReduceOp::BAND: return ReduceOp::band;
    case c10d::ReduceOp::BOR: return ReduceOp::bor;
    case c10d::ReduceOp::BXOR: return ReduceOp::bxor;
    default: break;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[", where,
                              "] this op is not known here (PREMUL_SUM is NCCL's). Multiply, then take SUM.");
}

const at::Tensor& only(const char* where, const List& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "[", where, "] ", tensors.size(), " tensors were given. Give one per rank.");
  return tensors[0];
}

const List& only(const char* where, const std::vector<List>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "[", where, "] ", lists.size(), " lists were given. Give one per rank.");
  return lists[0];
}

// Writes values as gloo does: below autograd, without incrementing the version counter.
struct Plainly {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

class IntarsiaBackend final : public c10d::Backend {
 public:
  IntarsiaBackend(int rank, int size, BackendOptions options, std::shared_ptr<const TensorLine> line, BackendPtr gloo)
      : Backend(rank, size),
        options_(std::move(options)),
        timeout_(options_.timeout),
        line_(std::move(line)),
        gloo_(std::move(gloo)),
        under_way_(std::make_shared<PendingCollectives>()) {
    init();
  }
  ~IntarsiaBackend() override { close(); }

  const std::string getBackendName() const override { return kBackendName; }
  bool supportsSplitting() const override { return true; }
  void setTimeout(milliseconds timeout) override { timeout_ = timeout; }
  void enableCollectivesTiming() override {}
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }
  void shutdown() override { close(); }
  void abort() override { close(milliseconds(0)); }

  c10::intrusive_ptr<Options> getBackendOptions() override {
    auto made = c10::make_intrusive<Options>(kBackendName, timeout_.load());
    made->group_name = options_.group;
    made->global_ranks_in_group.assign(line_->ranks().begin(), line_->ranks().end());
    return made;
  }

  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& given) override {
    auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) return nullptr;
    auto options = options_;
    options.ranks.clear();
    for (auto rank : ranks) options.ranks.push_back(line_->ranks().at(rank));
    if (given) options.timeout = given->timeout, options.group = given->group_name;
    return make_backend(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
                        std::move(options));
  }

  WorkPtr broadcast(List& tensors, const c10d::BroadcastOptions& given) override {
    auto& t = only("broadcast", tensors);
    return begin(OpType::BROADCAST, "broadcast", given, tensors, tensors,
                 [&] { return line_->broadcast(t, given.rootRank); });
  }

  WorkPtr allreduce(List& tensors, const c10d::AllreduceOptions& given) override {
    if (only("all_reduce", tensors).layout() != at::kStrided) return gloo().allreduce(tensors, given);
    return reduce_all("all_reduce", OpType::ALLREDUCE, tensors, given);
  }
  WorkPtr allreduce_sparse(List& tensors, const c10d::AllreduceOptions& given) override {
    return gloo().allreduce(tensors, given);
  }
  WorkPtr allreduce_coalesced(List& tensors, const c10d::AllreduceCoalescedOptions& given) override {
    return reduce_all("all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, tensors, given);
  }

  WorkPtr reduce(List& tensors, const c10d::ReduceOptions& given) override {
    auto& t = only("reduce", tensors);
    auto op = op_of("reduce", given.reduceOp);
    return begin(OpType::REDUCE, to_root("reduce", given.rootRank), given, tensors, tensors,
                 [&] { return line_->reduce(t, op, given.rootRank); });
  }

  WorkPtr allgather(std::vector<List>& outputs, List& inputs, const c10d::AllgatherOptions& given) override {
    auto& mine = only("all_gather", inputs);
    auto& all = only("all_gather", outputs);
    return begin(OpType::ALLGATHER, "all_gather", given, inputs, all, [&] { return line_->all_gather(mine, all); });
  }
  WorkPtr _allgather_base(at::Tensor& all, at::Tensor& mine, const c10d::AllgatherOptions& given) override {
    return begin(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", given, {mine}, {all},
                 [&] { return line_->all_gather(mine, all); });
  }
  WorkPtr allgather_coalesced(std::vector<List>& outputs, List& inputs, const c10d::AllgatherOptions& given) override {
    check_as_many("all_gather_coalesced", outputs.size(), inputs.size());
    List results;
    for (auto& list : outputs) results.insert(results.end(), list.begin(), list.end());
    return begin(OpType::ALLGATHER_COALESCED, "all_gather_coalesced", given, inputs, results, [&] {
      std::vector<Wait> waits;
      for (size_t i = 0; i < inputs.size(); ++i) waits.push_back(line_->all_gather(inputs[i], outputs[i]));
      return together(std::move(waits));
    });
  }
  WorkPtr allgather_into_tensor_coalesced(List& outputs, List& inputs, const c10d::AllgatherOptions& given) override {
    check_as_many("all_gather_into_tensor_coalesced", outputs.size(), inputs.size());
    return begin(OpType::ALLGATHER_COALESCED, "all_gather_into_tensor_coalesced", given, inputs, outputs, [&] {
      std::vector<Wait> waits;
      for (size_t i = 0; i < inputs.size(); ++i) waits.push_back(line_->all_gather(inputs[i], outputs[i]));
      return together(std::move(waits));
    });
  }

  WorkPtr gather(std::vector<List>& outputs, List& inputs, const c10d::GatherOptions& given) override {
    auto& mine = only("gather", inputs);
    auto all = outputs.empty() ? List{} : only("gather", outputs);
    return begin(OpType::GATHER, to_root("gather", given.rootRank), given, inputs, all,
                 [&] { return line_->gather(mine, all, given.rootRank); });
  }
  WorkPtr scatter(List& outputs, std::vector<List>& inputs, const c10d::ScatterOptions& given) override {
    auto& mine = only("scatter", outputs);
    auto all = inputs.empty() ? List{} : only("scatter", inputs);
    return begin(OpType::SCATTER, to_root("scatter", given.rootRank), given, all, outputs,
                 [&] { return line_->scatter(mine, all, given.rootRank); });
  }

  WorkPtr reduce_scatter(List& outputs, std::vector<List>& inputs, const c10d::ReduceScatterOptions& given) override {
    auto& mine = only("reduce_scatter", outputs);
    auto& all = only("reduce_scatter", inputs);
    auto op = op_of("reduce_scatter", given.reduceOp);
    return begin(OpType::REDUCE_SCATTER, "reduce_scatter", given, all, outputs,
                 [&] { return line_->reduce_scatter(all, mine, op); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& mine, at::Tensor& all, const c10d::ReduceScatterOptions& given) override {
    auto op = op_of("reduce_scatter_tensor", given.reduceOp);
    return begin(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", given, {all}, {mine},
                 [&] { return line_->reduce_scatter(all, mine, op); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(List& outputs, List& inputs,
                                          const c10d::ReduceScatterOptions& given) override {
    check_as_many("reduce_scatter_tensor_coalesced", outputs.size(), inputs.size());
    auto op = op_of("reduce_scatter_tensor_coalesced", given.reduceOp);
    return begin(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter_tensor_coalesced", given, inputs, outputs,
                 [&] {
                   std::vector<Wait> waits;
                   for (size_t i = 0; i < inputs.size(); ++i)
                     waits.push_back(line_->reduce_scatter(inputs[i], outputs[i], op));
                   return together(std::move(waits));
                 });
  }

  WorkPtr alltoall_base(at::Tensor& receive, at::Tensor& send, std::vector<int64_t>& receive_splits,
                        std::vector<int64_t>& send_splits, const c10d::AllToAllOptions& given) override {
    return begin(OpType::ALLTOALL_BASE, "all_to_all_single", given, {send}, {receive},
                 [&] { return line_->all_to_all(send, send_splits, receive, receive_splits); });
  }
  WorkPtr alltoall(List& receive, List& send, const c10d::AllToAllOptions& given) override {
    return begin(OpType::ALLTOALL, "all_to_all", given, send, receive,
                 [&] { return line_->all_to_all(send, receive); });
  }

  // Completes after all collectives that started before it.
  WorkPtr barrier(const c10d::BarrierOptions& given) override {
    return begin(OpType::BARRIER, "barrier", given, {}, {}, [&]() -> Wait {
      return [before = under_way_->open(), wait = line_->barrier()] {
        for (auto& one : before) one->finish();
        if (wait) wait();
      };
    });
  }
  void monitoredBarrier(const c10d::BarrierOptions& given, bool wait_for_all) override {
    auto own = given;
    if (own.timeout == c10d::kUnsetTimeout) own.timeout = timeout_;
    gloo().monitoredBarrier(own, wait_for_all);
  }

  WorkPtr send(List& tensors, int to, int tag) override {
    auto& t = only("send", tensors);
    List flat{flat_values(checked_for_message("send", t))};
    return message(OpType::SEND, c10::str("[send] to rank ", rank_of(to)), gloo().send(flat, to, tag), {});
  }
  WorkPtr recv(List& tensors, int from, int tag) override {
    Target to(checked_for_message("recv", only("recv", tensors)));
    List flat{to.flat()};
    return message(OpType::RECV, c10::str("[recv] of rank ", rank_of(from)), gloo().recv(flat, from, tag), to);
  }
  WorkPtr recvAnysource(List& tensors, int tag) override {
    Target to(checked_for_message("recv", only("recv", tensors)));
    List flat{to.flat()};
    return message(OpType::RECVANYSOURCE, "[recv] of any rank", gloo().recvAnysource(flat, tag), to);
  }

 private:
  c10d::Backend& gloo() const {
    TORCH_CHECK(!closed_, "[", kBackendName, "] the process group \"", options_.group, "\" was destroyed.");
    return *gloo_;
  }
  int64_t rank_of(int member) const { return line_->ranks().at(member); }
  static const char* to_root(const std::string& name, int64_t root) { return kept(c10::str(name, " at rank ", root)); }

  static void check_as_many(const char* where, size_t outputs, size_t inputs) {
    TORCH_CHECK_VALUE(outputs == inputs, "[", where, "] ", inputs, " inputs, but ", outputs,
                      " outputs. Give one for each.");
  }

  static const at::Tensor& checked_for_message(const char* where, const at::Tensor& t) {
    TORCH_CHECK_VALUE(t.is_cpu() && t.layout() == at::kStrided, "[", where, "] the tensor is ", t.layout(), " on ",
                      t.device(), ". Messages carry dense tensors in CPU memory.");
    return t;
  }

  WorkPtr message(OpType type, const std::string& what, WorkPtr work, std::optional<Target> to) {
    auto where = c10::str(what, " on rank ", rank_of(rank_), " in the group \"", options_.group, "\"");
    return c10::make_intrusive<MessageWork>(rank_, type, std::move(work), where, timeout_.load(), std::move(to));
  }

  WorkPtr reduce_all(const char* name, OpType type, const List& tensors, const c10d::AllreduceOptions& given) {
    auto op = op_of(name, given.reduceOp);
    return begin(type, name, given, tensors, tensors, [&] { return line_->all_reduce(tensors, op, given.asyncOp); });
  }

  // Adds the call to errors of the engine; those about arguments name it already.
  template <class Call>
  static void in_words(const TensorLine& line, const std::string& where, Call call) {
    Plainly plainly;
    try {
      call();
    } catch (const c10::DistBackendError& error) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str(where, " (ranks ", c10::ArrayRef<int64_t>(line.ranks()), ", over ",
                               line.engine().carrier(line.line()), ") failed: ", error.what_without_backtrace()));
    }
  }

  // Starts a collective, and completes it unless it is asynchronous.
  template <class Given, class Start>
  WorkPtr begin(OpType type, const char* name, const Given& given, const List& inputs, const List& results,
                Start start) {
    TORCH_CHECK(!closed_, "[", name, "] the process group \"", options_.group, "\" was destroyed.");
    CauseScope cause(name, false);
    auto where = c10::str("[", name, "] on rank ", rank_of(rank_), " in the group \"", options_.group, "\"");
    Wait rest;
    with_interrupts([&] {
      auto guard = around_waits();
      in_words(*line_, where, [&] { rest = start(); });
    });
    if (rest) rest = [line = line_, where, rest = std::move(rest)] { in_words(*line, where, rest); };
    auto what = std::make_shared<PendingCollective>(std::move(rest), results);
    auto timeout = given.timeout == c10d::kUnsetTimeout ? timeout_.load() : given.timeout;
    auto work = c10::make_intrusive<CollectiveWork>(
        CollectiveWork::About{rank_, type, name, number_++, timeout, options_.timeout, std::move(where)}, inputs, what,
        under_way_);
    if (given.asyncOp) {
      under_way_->add(what);
    } else {
      work->wait();
    }
    return work;
  }

  void close(milliseconds farewell = kFarewell) {
    if (closed_.exchange(true)) return;
    if (getpid() != pid_) return (void)gloo_.release();  // a fork, which has none of our threads
    bool ended = under_way_->end_all(farewell);
    line_->engine().close();
    under_way_->close(ended);
    gloo_.reset();
  }

  BackendOptions options_;
  std::atomic<milliseconds> timeout_;
  std::shared_ptr<const TensorLine> line_;
  BackendPtr gloo_;  // for what engines lack
  std::shared_ptr<PendingCollectives> under_way_;
  std::atomic<uint64_t> number_{0};
  std::atomic<bool> closed_{false};
  int pid_ = getpid();
};

Line line_of(int rank, int size, const BackendOptions& options) {
  Line line{options.group, size, {options.ranks}, {rank}};
  if (options.ranks.empty()) {
    line.ranks[0].resize(size);
    std::iota(line.ranks[0].begin(), line.ranks[0].end(), 0);
  }
  TORCH_CHECK_VALUE(0 <= rank && rank < size && static_cast<int>(line.ranks[0].size()) == size, "[make_backend] rank ",
                    rank, " of ", size, " with the ranks ", c10::ArrayRef<int64_t>(line.ranks[0]),
                    ". Give one per member.");
  return line;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               BackendOptions options) {
  auto line = line_of(rank, size, options);
  auto kind = choose_engine(options.engine);
  auto& ranks = line.ranks[0];
  if (options.world_size == 0) options.world_size = *std::max_element(ranks.begin(), ranks.end()) + 1;
  auto* environment = +[](const char* name) -> const char* { return getenv(name); };
  if (options.interface.empty())
    options.interface = read_interface(environment, {}, Launch{"make_backend", rank, size});
  auto part = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
  Job job{ranks[rank], options.world_size, part("engine"), options.interface, options.timeout};
  auto engine = make_together("make_backend", kind, job, ranks);
  auto gloo = make_gloo_process_group(part("gloo"), rank, size, options.interface, options.timeout);
  engine->adopt(ranks, gloo);
  auto& job_engine = *engine;
  auto carried = std::make_shared<TensorLine>(std::move(engine), std::move(line));
  {
    CauseScope cause("init_process_group", false);
    if (auto wait = carried->barrier()) wait();  // makes the lines now, on all ranks, instead of at first use
  }
  if (job_engine.reduces_in_place(carried->ranks())) carried->reduce_in_place();
  return c10::make_intrusive<IntarsiaBackend>(rank, size, std::move(options), std::move(carried), std::move(gloo));
}

}  // namespace intarsia
