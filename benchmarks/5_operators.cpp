// Operators: what a call costs over the plain op when its decision is known, alone or along a cut dim, what a call of
// new shapes costs, what an optimizer step costs, and what moves when an op runs along a cut dim, beside
// torch.distributed.tensor (peer_operators.py). Processor time, best of several rounds, in a world of one rank; bytes
// on two simulated ranks.

#include <torch/torch.h>

#include <cstdlib>

#include "benchmarks/timing.h"
#include "intarsia/intarsia.h"

using namespace intarsia;
namespace F = torch::nn::functional;

namespace {

using Values = std::vector<at::Tensor>;
struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Placement> placements;
  std::function<void(const Values&)> call;
};

Values make(const Case& c, const DeviceMesh* mesh, int64_t scale = 1) {
  torch::manual_seed(0);
  Values values;
  for (size_t i = 0; i < c.shapes.size(); ++i) {
    auto shape = c.shapes[i];
    if (c.placements[i] == Placement(Shard(0))) shape[0] *= scale;
    auto whole = torch::rand(shape);
    if (mesh && is_partial(c.placements[i])) {
      values.push_back(from_local(whole, *mesh, Placements(mesh->ndim(), c.placements[i])));
    } else {
      values.push_back(mesh ? distribute_tensor(whole, *mesh, Placements(mesh->ndim(), c.placements[i])) : whole);
    }
  }
  return values;
}

const Placement S0 = Shard(0), S1 = Shard(1), S2 = Shard(2), R = Replicate(), P = Partial();

// Nothing has to move in these.
const std::vector<Case> kLocal = {
    {"softmax", {{4, 4}}, {S0}, [](auto& v) { v[0].softmax(-1); }},
    {"log_softmax", {{4, 4}}, {S0}, [](auto& v) { v[0].log_softmax(-1); }},
    {"layer_norm", {{4, 4}}, {S0}, [](auto& v) { at::layer_norm(v[0], {4}); }},
    {"group_norm", {{4, 4, 2}}, {S0}, [](auto& v) { at::group_norm(v[0], 2); }},
    {"linear", {{4, 4}, {4, 4}}, {S0, R}, [](auto& v) { at::linear(v[0], v[1]); }},
    {"matmul 3-D", {{4, 4, 4}, {4, 4}}, {S0, R}, [](auto& v) { at::matmul(v[0], v[1]); }},
    {"addmm", {{4}, {4, 4}, {4, 4}}, {R, S0, R}, [](auto& v) { at::addmm(v[0], v[1], v[2]); }},
    {"bmm", {{4, 4, 4}, {4, 4, 4}}, {S0, S0}, [](auto& v) { v[0].bmm(v[1]); }},
    {"attention",
     {{4, 2, 4, 4}, {4, 2, 4, 4}, {4, 2, 4, 4}},
     {S0, S0, S0},
     [](auto& v) { at::scaled_dot_product_attention(v[0], v[1], v[2]); }},
    {"conv2d", {{4, 2, 4, 4}, {2, 2, 3, 3}}, {S0, R}, [](auto& v) { at::conv2d(v[0], v[1], {}, 1, 1); }},
    {"max_pool2d", {{4, 2, 4, 4}}, {S0}, [](auto& v) { at::max_pool2d(v[0], 2); }},
    {"mean", {{4, 4}}, {S0}, [](auto& v) { v[0].mean(1); }},
    {"var", {{4, 4}}, {S0}, [](auto& v) { v[0].var(1); }},
    {"max with indices", {{4, 4}}, {S0}, [](auto& v) { v[0].max(1); }},
    {"argmax", {{4, 4}}, {S0}, [](auto& v) { v[0].argmax(1); }},
    {"topk", {{4, 4}}, {S0}, [](auto& v) { v[0].topk(2); }},
    {"cumsum", {{4, 4}}, {S0}, [](auto& v) { v[0].cumsum(1); }},
    {"cat", {{4, 4}, {4, 4}}, {S0, S0}, [](auto& v) { at::cat({v[0], v[1]}, 1); }},
    {"stack", {{4, 4}, {4, 4}}, {S0, S0}, [](auto& v) { at::stack({v[0], v[1]}, 1); }},
    {"split", {{4, 4}}, {S0}, [](auto& v) { v[0].split(2, 1); }},
    {"slice", {{4, 4}}, {S0}, [](auto& v) { v[0].slice(1, 1, 3); }},
    {"select", {{4, 4}}, {S0}, [](auto& v) { v[0].select(1, 1); }},
    {"transpose", {{4, 4}}, {S0}, [](auto& v) { v[0].t(); }},
    {"reshape", {{4, 4}}, {S0}, [](auto& v) { v[0].reshape({-1, 2, 2}); }},
    {"expand", {{4, 1}}, {S0}, [](auto& v) { v[0].expand({-1, 4}); }},
    {"where", {{4, 4}, {4, 4}}, {S0, S0}, [](auto& v) { at::where(v[0] > 0.5, v[0], v[1]); }},
    {"masked_fill", {{4, 4}}, {S0}, [](auto& v) { v[0].masked_fill(v[0] > 0.5, 0.0); }},
    {"gelu", {{4, 4}}, {S0}, [](auto& v) { at::gelu(v[0]); }},
    {"mse_loss", {{4, 4}, {4, 4}}, {S0, S0}, [](auto& v) { at::mse_loss(v[0], v[1], at::Reduction::None); }},
    {"zeros_like", {{4, 4}}, {S0}, [](auto& v) { at::zeros_like(v[0]); }},
    {"to(double)", {{4, 4}}, {S0}, [](auto& v) { v[0].to(at::kDouble); }},
};

void print_hits() {
  torch::NoGradGuard no_grad;
  auto mesh = init_device_mesh(torch::kCPU, {1}, {"tp"});
  printf("%-18s %10s %12s %10s   (us, known calls, goal: at most 1.5 over)\n", "op", "plain", "distributed", "over");
  for (auto& c : kLocal) {
    auto plain = make(c, nullptr), cut = make(c, &mesh);
    auto p = bench::time_us([&] { c.call(plain); }, 2000, 5), d = bench::time_us([&] { c.call(cut); }, 2000, 5);
    printf("%-18s %10.3f %12.3f %10.3f\n", c.name, p, d, d - p);
  }
}

void print_misses() {
  torch::NoGradGuard no_grad;
  auto world = simulate(4);
  auto grid = init_device_mesh(torch::kCPU, {2, 2});
  printf("\n%-18s %10s   (us, the first call on a 2x2 mesh over the second, goal: at most 200)\n", "op", "over");
  for (auto& c : kLocal) {
    constexpr int kShapes = 50;
    double took[2];
    std::vector<Values> inputs;
    for (int i = 0; i < kShapes; ++i) inputs.push_back(make(c, &grid, 2 + i));
    for (auto& us : took) {
      auto start = bench::cpu_us();
      for (auto& v : inputs) c.call(v);
      us = (bench::cpu_us() - start) / kShapes;
    }
    printf("%-18s %10.1f\n", c.name, took[0] - took[1]);
  }
}

// A call whose sizes were never seen before, on simulated ranks: the decision is made anew each time.
void print_new_shapes() {
  torch::NoGradGuard no_grad;
  auto world = simulate(2);
  auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
  printf("\n%-18s %10s %10s   (us, always new shapes on 2 simulated ranks, and known ones)\n", "op", "new", "known");
  for (auto& c : kLocal) {
    constexpr int kShapes = 100;
    double took[2];
    std::vector<Values> inputs;
    for (int i = 0; i < kShapes; ++i) inputs.push_back(make(c, &mesh, 100 + i));
    for (auto& us : took) {
      auto start = bench::cpu_us();
      for (auto& v : inputs) c.call(v);
      us = (bench::cpu_us() - start) / kShapes;
    }
    printf("%-18s %10.1f %10.1f\n", c.name, took[0], took[1]);
  }
}

template <class Optimizer, class Options>
double step_us(const DeviceMesh* mesh, int64_t side) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 100; ++i) {
    auto whole = torch::rand({side, side});
    auto p = mesh ? distribute_tensor(whole, *mesh, {Shard(0)}) : whole;
    p = p.detach().requires_grad_();
    p.mutable_grad() = at::ones_like(p);
    parameters.push_back(p);
  }
  Optimizer optimizer(parameters, Options(1e-3));
  return bench::time_us([&] { optimizer.step(); }, 10, 7);
}

void print_optimizers(const std::map<std::string, double>& peer) {
  auto mesh = init_device_mesh(torch::kCPU, {1}, {"tp"});
  printf("\n%-18s %10s %12s %8s %14s   (us, a step over 100 parameters, goal: at most 1.3x)\n", "optimizer", "plain",
         "distributed", "ratio", "PyTorch's");
  auto line = [&](const char* name, const char* key, double plain, double cut) {
    printf("%-18s %10.1f %12.1f %7.2fx", name, plain, cut, cut / plain);
    if (auto found = peer.find(key); found != peer.end()) printf(" %13.2fx", found->second);
    printf("\n");
  };
  using namespace torch::optim;
  for (int64_t side : {16, 64}) {
    auto text = std::to_string(side);
    line(("AdamW " + text + "x" + text).c_str(), ("adamw" + text).c_str(), step_us<AdamW, AdamWOptions>(nullptr, side),
         step_us<AdamW, AdamWOptions>(&mesh, side));
    line(("SGD " + text + "x" + text).c_str(), ("sgd" + text).c_str(), step_us<SGD, SGDOptions>(nullptr, side),
         step_us<SGD, SGDOptions>(&mesh, side));
  }
}

at::Tensor everywhere(const at::Tensor& value, const at::Tensor& like) {
  return from_local(value, mesh_of(like), {Replicate()});
}

// These run along the cut dim, on two ranks. The names are those of peer_operators.py.
const std::vector<Case> kAlong = {
    {"softmax", {{64, 64}}, {S1}, [](auto& v) { v[0].softmax(1); }},
    {"log_softmax", {{64, 64}}, {S1}, [](auto& v) { v[0].log_softmax(1); }},
    {"logsumexp", {{64, 64}}, {S1}, [](auto& v) { v[0].logsumexp(1); }},
    {"layer_norm", {{64, 64}, {64}, {64}}, {S1, R, R}, [](auto& v) { at::layer_norm(v[0], {64}, v[1], v[2]); }},
    {"rms_norm", {{64, 64}, {64}}, {S1, R}, [](auto& v) { at::rms_norm(v[0], {64}, v[1]); }},
    {"var", {{64, 64}}, {S1}, [](auto& v) { v[0].var(1); }},
    {"std", {{64, 64}}, {S1}, [](auto& v) { v[0].std(1); }},
    {"norm", {{64, 64}}, {S1}, [](auto& v) { full_tensor(v[0].norm(2, 1)); }},
    {"mean", {{64, 65}}, {S1}, [](auto& v) { full_tensor(v[0].mean(1)); }},
    {"cumsum", {{64, 64}}, {S1}, [](auto& v) { v[0].cumsum(1); }},
    {"argmax", {{64, 64}}, {S1}, [](auto& v) { v[0].argmax(1); }},
    {"max", {{64, 64}}, {S1}, [](auto& v) { v[0].max(1); }},
    {"topk", {{64, 64}}, {S1}, [](auto& v) { v[0].topk(4, 1); }},
    {"roll", {{64, 64}}, {S1}, [](auto& v) { v[0].roll(3, 1); }},
    {"flip", {{64, 64}}, {S1}, [](auto& v) { v[0].flip({1}); }},
    {"pad", {{64, 64}}, {S1}, [](auto& v) { at::constant_pad_nd(v[0], {1, 1}); }},
    {"slice", {{64, 64}}, {S1}, [](auto& v) { v[0].slice(1, 3, 60); }},
    {"select", {{64, 64}}, {S1}, [](auto& v) { v[0].select(1, 3).clone(); }},
    {"cat", {{64, 64}, {64, 64}}, {S1, S1}, [](auto& v) { at::cat({v[0], v[1]}, 1); }},
    {"gather",
     {{64, 64}},
     {S1},
     [](auto& v) {
       auto index = everywhere(at::zeros({64, 4}, at::kLong), v[0]);
       v[0].gather(1, index);
     }},
    {"index_select", {{64, 64}}, {S0}, [](auto& v) { v[0].index_select(0, everywhere(at::arange(8), v[0])); }},
    {"tril", {{64, 64}}, {S0}, [](auto& v) { v[0].tril(); }},
    {"diagonal", {{64, 64}}, {S0}, [](auto& v) { v[0].diagonal().clone(); }},
    {"embedding, cut vocabulary",
     {{64, 64}},
     {S0},
     [](auto& v) { full_tensor(at::embedding(v[0], everywhere(at::arange(8), v[0]))); }},
    {"cross_entropy, cut classes",
     {{64, 64}},
     {S1},
     [](auto& v) { full_tensor(at::cross_entropy_loss(v[0], everywhere(at::arange(64), v[0]))); }},
    {"attention, cut heads",
     {{2, 4, 16, 8}, {2, 4, 16, 8}, {2, 4, 16, 8}},
     {S1, S1, S1},
     [](auto& v) { at::scaled_dot_product_attention(v[0], v[1], v[2]); }},
    {"linear, cut sequence", {{2, 16, 8}, {8, 8}}, {S1, R}, [](auto& v) { at::linear(v[0], v[1]); }},
    {"baddbmm", {{4, 8, 8}, {4, 8, 8}, {4, 8, 8}}, {S0, S0, S0}, [](auto& v) { at::baddbmm(v[0], v[1], v[2]); }},
    {"cdist", {{16, 8}, {16, 8}}, {S0, R}, [](auto& v) { at::cdist(v[0], v[1]); }},
    {"P + P", {{64, 64}, {64, 64}}, {P, P}, [](auto& v) { v[0] + v[1]; }},
    {"P * P", {{64, 64}, {64, 64}}, {P, P}, [](auto& v) { v[0] * v[1]; }},
    {"P * R", {{64, 64}, {64, 64}}, {P, R}, [](auto& v) { v[0] * v[1]; }},
    {"-P", {{64, 64}}, {P}, [](auto& v) { -v[0]; }},
    {"matmul S1 S0", {{64, 64}, {64, 64}}, {S1, S0}, [](auto& v) { v[0].mm(v[1]); }},
    {"group_norm, cut channels", {{4, 8, 16}}, {S1}, [](auto& v) { at::group_norm(v[0], 2); }},
    {"batch_norm, cut batch",
     {{8, 4, 8}},
     {S0},
     [](auto& v) { at::batch_norm(v[0], {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
};

// What these take once they are known, beside the plain op on the whole: the ranks of a simulation take turns.
void print_known_along() {
  torch::NoGradGuard no_grad;
  auto world = simulate(2);
  auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
  const Case image = {"conv2d, cut width", {{4, 4, 16, 16}, {4, 4, 3, 3}}, {Shard(3), R}, [](auto& v) {
                        at::conv2d(v[0], v[1], {}, 1, 1);
                      }};
  std::vector<Case> cases = {image};
  for (std::string name : {"slice", "cat", "flip", "softmax", "layer_norm", "cumsum", "pad"}) {
    auto found = std::find_if(kAlong.begin(), kAlong.end(), [&](auto& c) { return c.name == name; });
    cases.push_back(*found);
  }
  printf("\n%-28s %10s %12s   (us, known calls along the cut dim, both of 2 simulated ranks)\n", "along the cut dim",
         "plain", "distributed");
  for (auto& c : cases) {
    auto plain = make(c, nullptr), cut = make(c, &mesh);
    auto p = bench::time_us([&] { c.call(plain); }, 500, 5), d = bench::time_us([&] { c.call(cut); }, 500, 5);
    printf("%-28s %10.2f %12.2f\n", c.name, p, d);
  }
}

void print_bytes(const std::map<std::string, double>& peer) {
  torch::NoGradGuard no_grad;
  auto world = simulate(2);
  auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
  printf("\n%-28s %10s %14s   (bytes that a rank of two receives in one call)\n", "along the cut dim", "bytes",
         "PyTorch's");
  for (auto& c : kAlong) {
    auto cut = make(c, &mesh);
    CommDebugMode comms;
    c.call(cut);
    printf("%-28s %10ld", c.name, comms.total_bytes());
    std::string key = c.name;
    std::replace(key.begin(), key.end(), ' ', '_');
    if (auto found = peer.find(key); found != peer.end()) {
      if (found->second < 0)
        printf(" %14s", "an error");
      else
        printf(" %14.0f", found->second);
    }
    printf("%s\n", comms.fallbacks().empty() ? "" : "   ran on whole tensors");
  }
}

}  // namespace

int main() {
  at::set_num_threads(1);
  auto* python = std::getenv("INTARSIA_PYTHON");
  auto peer =
      bench::read_values(std::string(python ? python : "python3") + " benchmarks/peer_operators.py 2>/dev/null");
  if (peer.empty()) printf("torch.distributed.tensor could not be measured here: its columns are left out\n");
  print_hits();
  print_misses();
  print_new_shapes();
  print_optimizers(peer);
  print_known_along();
  print_bytes(peer);
}
