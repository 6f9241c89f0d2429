// A training step of a downsampling convolution on two gloo ranks, cut along the width, beside the plain convolution of
// half the width on each rank, and beside torch.distributed.tensor.
//
//   intarsia run -n 2 build/benchmarks/4_convolution
//
// Started alone, it starts itself that way. Wall time, best of several rounds, all sides in turn.

#include <torch/torch.h>

#include <cstdlib>

#include "benchmarks/processes.h"
#include "intarsia/intarsia.h"

using namespace intarsia;

namespace {

template <class F>
double best_ms(F call, int calls) {
  double best = 1e30;
  for (int i = 0; i < calls; ++i) {
    barrier();
    auto start = bench::wall_us();
    call();
    barrier();
    best = std::min(best, (bench::wall_us() - start) * 1e-3);
  }
  return best;
}

void step(torch::nn::Conv2d& conv, torch::optim::SGD& optimizer, const at::Tensor& x, const at::Tensor& grad) {
  optimizer.zero_grad();
  conv->forward(x).backward(grad);
  optimizer.step();
}

struct Side {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 256, 4).stride(4)};
  torch::optim::SGD optimizer{conv->parameters(), 0.001};
};

// A convolution so small that what surrounds it shows: processor time of this rank per call, in microseconds.
void small_calls(const DeviceMesh& mesh) {
  auto n = world_size();
  auto x = torch::rand({1, 4, 8, 8}), w = torch::rand({4, 4, 3, 3});
  auto dw = distribute_tensor(w, mesh, {Replicate()});
  auto call = [](const at::Tensor& input, const at::Tensor& weight) {
    return at::convolution(input, weight, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
  };
  auto row = [&](const char* text, const at::Tensor& input, const at::Tensor& whole) {
    torch::NoGradGuard no_grad;
    auto plain = bench::time_us([&] { call(input, w); }, 500, 7);
    barrier();
    auto ours = bench::time_us([&] { call(whole, dw); }, 500, 7);
    barrier();
    if (rank() == 0) printf("%-44s %10.2f us  %8.2f us over plain\n", text, ours, ours - plain);
  };
  if (rank() == 0) printf("\nconvolution 1x4x8x8 per rank, 4->4, 3x3, forward, processor time\n");
  row("the batch is cut: nothing is sent", x, from_local(x, mesh, {Shard(0)}));
  auto wide = torch::rand({1, 4, 8, 8 * n});
  row("the width is cut: a column from the neighbour", wide.narrow(3, 0, 8).contiguous(),
      distribute_tensor(wide, mesh, {Shard(3)}));
}

}  // namespace

int main(int argc, char** argv) {
  bench::start_as_ranks(argv, 2);
  at::set_num_threads(1);
  init();
  auto n = world_size();
  auto mesh = init_device_mesh(torch::kCPU, {n}, {"width"});
  Side plain, cut;
  auto half = torch::rand({7, 3, 512, 1024 / n}).requires_grad_();
  auto half_grad = torch::rand({7, 256, 128, 256 / n});
  auto whole = from_local(half.detach(), mesh, {Shard(3)}).detach().requires_grad_();
  auto whole_grad = from_local(half_grad, mesh, {Shard(3)}).detach();
  distribute_module(*cut.conv, mesh);

  const int kCalls = 2;
  double local = 1e30, ours = 1e30;
  CommDebugMode comms;
  for (int round = 0; round < 3; ++round) {
    local = std::min(
        local,
        best_ms([&] { step(plain.conv, plain.optimizer, half, half_grad), half.mutable_grad().reset(); }, kCalls));
    ours = std::min(
        ours, best_ms([&] { step(cut.conv, cut.optimizer, whole, whole_grad), whole.mutable_grad().reset(); }, kCalls));
  }
  auto peer = rank() ? std::map<std::string, double>()
                     : bench::read_values(
                           "env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} "
                           "benchmarks/peer_convolution.py 2>/dev/null");
  barrier();
  if (rank() == 0) {
    printf("convolution 7x3x512x1024, 3->256, 4x4 stride 4, training step on %d ranks\n", static_cast<int>(n));
    printf("%-44s %10.1f ms\n", "plain, half the width", local);
    printf("%-44s %10.1f ms   %.2fx of plain\n", "cut along the width", ours, ours / local);
    if (peer["step"] > 0) printf("%-44s %10.1f ms   (its data is wrong)\n", "torch.distributed.tensor", peer["step"]);
    int64_t halo = 0;
    for (auto& event : comms.events()) halo += event.kind == "halo" ? event.received : 0;
    printf("%-44s %10ld B\n", "halo", static_cast<long>(halo));
  }
  small_calls(mesh);
  finalize();
}
