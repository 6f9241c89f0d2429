#include "tests/processes/mismatches.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/intarsia.h"
#include "intarsia/job/init.h"
#include "tests/processes/mismatches_of_models.h"

namespace intarsia {
namespace {

const char* cause_ = "aten::mm";

void add(const Axis& axis, int64_t numel, at::ScalarType type = at::kFloat, ReduceOp op = ReduceOp::sum) {
  CauseScope cause(cause_, true);
  axis.all_reduce({at::ones({numel}, type)}, op);
}

void add_later(const Axis& axis, int64_t numel) {
  Wait wait;
  axis.all_reduce({at::ones({numel})}, ReduceOp::sum, &wait);
  if (wait) wait();
}

void gather(const Axis& axis, int64_t numel, at::ScalarType type = at::kFloat) {
  auto all = at::empty({numel * axis.size()}, type);
  axis.all_gather({at::ones({numel}, type)}, {all}, {std::vector<int64_t>(axis.size(), numel)});
}

void gather_parts(const Axis& axis, std::vector<int64_t> counts) {
  axis.all_gather({at::ones({counts[rank()]})}, {at::empty({6})}, {counts});
}

void deal(const Axis& axis, int64_t each, at::ScalarType type = at::kFloat) {
  Counts counts{std::vector<int64_t>(axis.size(), each)};
  axis.all_to_all({at::ones({each * axis.size()}, type)}, counts, {at::empty({each * axis.size()}, type)}, counts);
}

void scatter(const Axis& axis, std::vector<int64_t> counts, ReduceOp op = ReduceOp::sum,
             at::ScalarType type = at::kFloat) {
  int64_t length = 0;
  for (auto count : counts) length += count;
  axis.reduce_scatter({at::ones({length}, type)}, {counts}, op);
}

// Who sends needs nobody: it shows when the next one does not fit.
void send_from(const Axis& axis, int64_t source, int64_t numel = 5, at::ScalarType type = at::kFloat) {
  axis.broadcast({at::ones({numel}, type)}, source);
  add(axis, 4);
}

void lay_out(const Axis&, Placement to) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  redistribute(from_local(at::ones({2, 6}), mesh, {Shard(0)}), {to});
}

void take(const Axis&, std::vector<int64_t> local, Placement as) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  full_tensor(from_local(at::ones(local), mesh, {as}));
}

void train(const Axis&, bool other_layout) {
  auto mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  auto weight = distribute_tensor(at::ones({6, 6}), mesh, {Shard(0)}).detach().requires_grad_();
  auto x = distribute_tensor(at::ones({3, 6}), mesh, {Replicate()});
  at::linear(x, weight).pow(2).sum().backward();
  TORCH_CHECK(str(placements_of(weight.grad())) == "[S(0)]", str(placements_of(weight.grad())));
  redistribute(weight.grad(), {other_layout ? Placement(Shard(1)) : Placement(Replicate())});
}

std::vector<Mismatch> mismatches() {
  return {
      {"skipped", [](auto& a) { add(a, 4), gather(a, 2); }, [](auto& a) { gather(a, 2); }},
      {"doubled", [](auto& a) { add(a, 4), gather(a, 2); }, [](auto& a) { add(a, 4), add(a, 4), gather(a, 2); }},
      {"reordered", [](auto& a) { add(a, 4), gather(a, 2); }, [](auto& a) { gather(a, 2), add(a, 4); }},
      {"shape", [](auto& a) { add(a, 4); }, [](auto& a) { add(a, 6); }},
      {"large shape", [](auto& a) { add(a, 3000000); }, [](auto& a) { add(a, 3000001); }},
      {"small and large", [](auto& a) { add(a, 3); }, [](auto& a) { add(a, 3000000); }},
      {"dtype", [](auto& a) { add(a, 4); }, [](auto& a) { add(a, 4, at::kDouble); }},
      {"dtype of one size", [](auto& a) { add(a, 4); }, [](auto& a) { add(a, 4, at::kInt); }},
      {"op", [](auto& a) { add(a, 4); }, [](auto& a) { add(a, 4, at::kFloat, ReduceOp::max); }},
      {"root", [](auto& a) { send_from(a, 0); }, [](auto& a) { send_from(a, 1); }},
      {"kind", [](auto& a) { add(a, 6); }, [](auto& a) { deal(a, 2); }},
      {"parts", [](auto& a) { deal(a, 2); }, [](auto& a) { deal(a, 3); }},
      {"scattered parts", [](auto& a) { scatter(a, {1, 2, 3}); }, [](auto& a) { scatter(a, {3, 2, 1}); }},
      {"cause", [](auto& a) { add(a, 4); }, [](auto& a) { cause_ = "aten::bmm", add(a, 4), cause_ = "aten::mm"; }},
      {"later", [](auto& a) { add_later(a, 8); }, [](auto& a) { gather(a, 8); }},
      {"large later", [](auto& a) { add_later(a, 3000000); }, [](auto& a) { gather(a, 8); }},
      {"layout", [](auto& a) { lay_out(a, Replicate()); }, [](auto& a) { lay_out(a, Shard(1)); }},
      {"local rows", [](auto& a) { take(a, {2, 6}, Shard(0)); }, [](auto& a) { take(a, {3, 6}, Shard(0)); }},
      {"local shape", [](auto& a) { take(a, {2, 6}, Partial()); }, [](auto& a) { take(a, {6, 2}, Partial()); }},
      {"after a backward", [](auto& a) { train(a, false); }, [](auto& a) { train(a, true); }},
      {"skipped in between", [](auto& a) { add(a, 1), add(a, 2), add(a, 3); }, [](auto& a) { add(a, 1), add(a, 3); }},
      {"doubled gather", [](auto& a) { gather(a, 2), add(a, 4); },
       [](auto& a) { gather(a, 2), gather(a, 2), add(a, 4); }},
      {"reordered gathers", [](auto& a) { gather(a, 2), gather(a, 3); }, [](auto& a) { gather(a, 3), gather(a, 2); }},
      {"halves", [](auto& a) { add(a, 4, at::kHalf); }, [](auto& a) { add(a, 4, at::kBFloat16); }},
      {"bools", [](auto& a) { add(a, 4, at::kBool); }, [](auto& a) { add(a, 4, at::kByte); }},
      {"product", [](auto& a) { add(a, 4, at::kFloat, ReduceOp::product); },
       [](auto& a) { add(a, 4, at::kFloat, ReduceOp::min); }},
      {"dtype of a gather", [](auto& a) { gather(a, 4); }, [](auto& a) { gather(a, 4, at::kInt); }},
      {"parts of a gather", [](auto& a) { gather_parts(a, {1, 2, 3}); }, [](auto& a) { gather_parts(a, {3, 2, 1}); }},
      {"op of a scatter", [](auto& a) { scatter(a, {2, 2, 2}); },
       [](auto& a) { scatter(a, {2, 2, 2}, ReduceOp::max); }},
      {"dtype of a scatter", [](auto& a) { scatter(a, {2, 2, 2}); },
       [](auto& a) { scatter(a, {2, 2, 2}, ReduceOp::sum, at::kDouble); }},
      {"dtype of an exchange", [](auto& a) { deal(a, 2); }, [](auto& a) { deal(a, 2, at::kInt); }},
      {"size of a broadcast", [](auto& a) { send_from(a, 0); }, [](auto& a) { send_from(a, 0, 6); }},
      {"dtype of a broadcast", [](auto& a) { send_from(a, 0); }, [](auto& a) { send_from(a, 0, 5, at::kInt); }},
  };
}

int number_in(const char* name, int otherwise) {
  auto* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

std::string told(const Mismatch& mismatch) {
  cause_ = "aten::mm";
  try {
    auto& axis = Axis::of(init_device_mesh(at::kCPU, {world_size()}, {"tp"}), 0);
    axis.all_reduce({at::ones({1})}, ReduceOp::sum);  // collective 0 goes well
    (rank() == 1 ? mismatch.one : mismatch.most)(axis);
    return "nothing";
  } catch (const std::exception& error) {
    auto* ours = dynamic_cast<const c10::Error*>(&error);
    return ours ? ours->what_without_backtrace() : error.what();
  }
}

}  // namespace

// Each has a world of its own: a group that has failed stays so.
void play_mismatches() {
  auto all = mismatches();
  for (auto& one : mismatches_of_models()) all.push_back(one);
  auto share = number_in("INTARSIA_SHARE", 0), shares = number_in("INTARSIA_SHARES", 1);
  for (size_t i = share; i < all.size(); i += shares) {
    auto& mismatch = all[i];
    InitOptions options;
    if (mismatch.late) options.timeout = std::chrono::seconds(4);
    init(options);
    std::printf("%s: rank %d: %s\n", mismatch.name, int(rank()), told(mismatch).c_str());
    std::fflush(stdout);
    if (mismatch.late)
      std::this_thread::sleep_for(std::chrono::seconds(1));  // who leaves at once would be named instead
    finalize();
  }
}

}  // namespace intarsia
