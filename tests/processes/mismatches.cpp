#include "tests/processes/mismatches.h"

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/launch/init.h"
#include "intarsia/comm/trace.h"
#include "intarsia/intarsia.h"

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

void gather(const Axis& axis, int64_t numel) {
  auto all = at::empty({numel * axis.size()});
  axis.all_gather({at::ones({numel})}, {all}, {std::vector<int64_t>(axis.size(), numel)});
}

void deal(const Axis& axis, int64_t each) {
  Counts counts{std::vector<int64_t>(axis.size(), each)};
  axis.all_to_all({at::ones({each * axis.size()})}, counts, {at::empty({each * axis.size()})}, counts);
}

void scatter(const Axis& axis, std::vector<int64_t> counts) {
  int64_t length = 0;
  for (auto count : counts) length += count;
  axis.reduce_scatter({at::ones({length})}, {counts}, ReduceOp::sum);
}

// Who sends needs nobody: it shows when the next one does not fit.
void send_from(const Axis& axis, int64_t source) {
  axis.broadcast({at::ones({5})}, source);
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

using Do = std::function<void(const Axis&)>;
struct Mismatch {
  const char* name;
  Do most, one;  // what rank 1 does
};

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
  };
}

std::string told(const Mismatch& mismatch) {
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
  for (auto& mismatch : mismatches()) {
    init();
    std::printf("%s: rank %d: %s\n", mismatch.name, int(rank()), told(mismatch).c_str());
    std::fflush(stdout);
    finalize();
  }
}

}  // namespace intarsia
