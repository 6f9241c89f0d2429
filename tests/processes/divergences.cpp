#include "tests/processes/divergences.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "intarsia/checkpoint/save.h"
#include "intarsia/intarsia.h"
#include "intarsia/job/init.h"

namespace intarsia {
namespace {

// What rank 1 does is `one`; all start with the same tensors.
struct Start {
  DeviceMesh mesh = init_device_mesh(at::kCPU, {world_size()}, {"tp"});
  at::Tensor a, b, pending, weight;

  Start() : a(cut()), b(cut()) {
    pending = from_local(at::full({4}, double(rank() + 1)), mesh, {Partial()});
    weight = distribute_tensor(at::ones({6, 6}), mesh, {Shard(0)}).detach().requires_grad_();
  }
  at::Tensor cut() const { return from_local(at::full({2, 6}, double(rank() + 1)), mesh, {Shard(0)}); }
  at::Tensor loss() const {
    return at::linear(distribute_tensor(at::ones({3, 6}), mesh, {Replicate()}), weight).square().sum();
  }
  at::Tensor sharded(size_t which) const {
    torch::nn::Sequential model(torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)),
                                torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
    fully_shard(model, mesh);
    return model->parameters()[which];
  }
  void step() const {
    loss().backward();
    torch::optim::SGD({weight}, 0.1).step();
  }
};

struct Divergence {
  const char* name;
  std::function<void(Start&)> most, one;
  bool harmless = false;  // no number is wrong: only INTARSIA_CHECK=calls tells
};

void full(const at::Tensor& x) { full_tensor(x); }

// All are asked for before one is read.
void read_norms(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> norms;
  for (auto& tensor : tensors) norms.push_back(tensor.norm());
  for (auto& norm : norms) norm.item<double>();
}
void clip_one(const at::Tensor& weight) { torch::nn::utils::clip_grad_norm_({weight}, 1e-3); }

std::vector<Divergence> divergences() {
  return {
      {"a call left out", [](auto& s) { full(s.a), full(s.b); }, [](auto& s) { full(s.b); }},
      {"a call too much", [](auto& s) { full(s.a), full(s.b); }, [](auto& s) { full(s.a), full(s.a), full(s.b); }},
      {"another order", [](auto& s) { full(s.a), full(s.b); }, [](auto& s) { full(s.b), full(s.a); }},
      {"a redistribution left out", [](auto& s) { redistribute(s.a, {Replicate()}), redistribute(s.b, {Replicate()}); },
       [](auto& s) { redistribute(s.b, {Replicate()}); }},
      {"one of a loop",
       [](auto& s) {
         for (int i = 0; i < 3; ++i) full(s.cut());
       },
       [](auto& s) { s.cut(), full(s.cut()), full(s.cut()); }},
      {"an op left out", [](auto& s) { full(s.a * 2); }, [](auto& s) { full(s.a); }},
      {"an op too much", [](auto& s) { full(s.a * 2); }, [](auto& s) { full(s.a * 2 * 2); }},
      {"another op", [](auto& s) { full(s.a.relu()); }, [](auto& s) { full(s.a.exp()); }},
      {"another branch", [](auto& s) { full((s.a + s.b).tanh()); }, [](auto& s) { full((s.a * s.b).tanh()); }},
      {"another operand", [](auto& s) { full(s.a + s.b); }, [](auto& s) { full(s.a + s.a); }},
      {"operands the other way round", [](auto& s) { full(s.a - s.b); }, [](auto& s) { full(s.b - s.a); }},
      {"another reduction", [](auto& s) { full(s.a.sum(1)); }, [](auto& s) { full(s.a.mean(1)); }},
      {"another row", [](auto& s) { full(s.a.select(1, 0)); }, [](auto& s) { full(s.a.select(1, 2)); }},
      {"another shape that reduces alike",
       [](auto& s) { full(from_local(at::ones({2, 6}), s.mesh, {Shard(0)}).sum()); },
       [](auto& s) { full(from_local(at::ones({6, 2}), s.mesh, {Shard(0)}).sum()); }},
      {"a write left out", [](auto& s) { s.a.mul_(2), full(s.a); }, [](auto& s) { full(s.a); }},
      {"a write too much", [](auto& s) { s.a.mul_(2), full(s.a); },
       [](auto& s) { s.a.mul_(2), s.a.mul_(2), full(s.a); }},
      {"a write to a view left out", [](auto& s) { s.a.select(1, 0).zero_(), full(s.a); }, [](auto& s) { full(s.a); }},
      {"a step left out", [](auto& s) { s.step(), full(s.weight.detach()); }, [](auto& s) { full(s.weight.detach()); }},
      {"a step of a list left out", [](auto& s) { at::_foreach_add_({s.a, s.b}, 1), full(s.a); },
       [](auto& s) { full(s.a); }},
      {"a gradient added up", [](auto& s) { s.loss().backward(), full(s.weight.grad()); },
       [](auto& s) { s.loss().backward(), s.loss().backward(), full(s.weight.grad()); }},
      {"another loss", [](auto& s) { full(s.loss()); }, [](auto& s) { full(s.loss() / s.loss().detach()); }},
      {"the number of another tensor",
       [](auto& s) { s.a.sum().template item<double>(), s.b.sum().template item<double>(); },
       [](auto& s) { s.b.sum().template item<double>(); }},
      {"a pending value", [](auto& s) { (s.pending + 1).relu(); }, [](auto& s) { (s.pending * s.pending + 1).relu(); }},
      {"another number", [](auto& s) { full(s.a * 2); }, [](auto& s) { full(s.a * 3); }},
      {"one of two numbers left out", [](auto& s) { full(s.a * 2.5), full(s.a * 3.5); },
       [](auto& s) { full(s.a * 3.5); }},
      {"another number in place", [](auto& s) { s.a.add_(s.b, 2), full(s.a); },
       [](auto& s) { s.a.add_(s.b, 3), full(s.a); }},
      {"another plain number", [](auto& s) { full(s.a + at::scalar_tensor(2)); },
       [](auto& s) { full(s.a + at::scalar_tensor(3)); }},
      {"another parameter of fully_shard", [](auto& s) { full(s.sharded(0)); }, [](auto& s) { full(s.sharded(1)); }},
      {"a number that one rank alone reads",
       [](auto& s) {
         auto sum = s.a.sum();
         full(s.b);
       },
       [](auto& s) {
         auto sum = s.a.sum();
         sum.template item<double>(), full(s.b);
       }},
      {"a norm that one rank alone reads",
       [](auto& s) {
         auto norm = s.a.norm();
         full(s.b);
       },
       [](auto& s) {
         auto norm = s.a.norm();
         norm.template item<double>(), full(s.b);
       }},
      {"a norm that one rank reads earlier",
       [](auto& s) {
         auto norm = s.a.norm();
         s.b.sum().template item<double>(), norm.template item<double>();
       },
       [](auto& s) {
         auto norm = s.a.norm();
         norm.template item<double>(), s.b.sum().template item<double>();
       }},
      {"the norm of another tensor", [](auto& s) { s.a.norm().template item<double>(); },
       [](auto& s) { s.b.norm().template item<double>(); }},
      {"one of two norms left out", [](auto& s) { read_norms({s.a, s.b}); }, [](auto& s) { read_norms({s.b}); }},
      {"one of two norms for another", [](auto& s) { read_norms({s.a, s.b}); },
       [](auto& s) { read_norms({s.b, s.b}); }},
      {"norms in another order", [](auto& s) { read_norms({s.a, s.b}); }, [](auto& s) { read_norms({s.b, s.a}); }},
      {"gradients clipped twice", [](auto& s) { s.loss().backward(), clip_one(s.weight), full(s.weight.grad()); },
       [](auto& s) { s.loss().backward(), clip_one(s.weight), clip_one(s.weight), full(s.weight.grad()); }},
      {"an op whose result is dropped", [](auto& s) { full(s.a); }, [](auto& s) { s.b.exp(), full(s.a); }, true},
      {"a view that is dropped", [](auto& s) { full(s.a); }, [](auto& s) { s.b.select(1, 0), full(s.a); }, true},
  };
}

int number_in_environment(const char* name, int otherwise) {
  auto* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

std::string told_of(const Divergence& divergence) {
  try {
    Start start;
    (rank() == 1 ? divergence.one : divergence.most)(start);
    barrier();
    return "nothing";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

bool checks_calls() {
  auto* text = std::getenv("INTARSIA_CHECK");
  return text && std::string(text) == "calls";
}

// On rank 0 alone. Values of distributed tensors may be used as long as nothing of it is sent.
void look_at(const Start& s, const at::Tensor& loss, std::vector<at::Tensor>& kept) {
  to_local(s.a).mean().item<double>();
  loss.item<double>();
  kept.push_back(s.weight.grad());
  kept.push_back(s.a.detach().clone());
  c10::str(s.a.sizes(), s.a.dtype());
  if (!checks_calls()) loss.exp().item<double>();
}

}  // namespace

// Each has a world of its own: a group that has failed stays so.
void play_divergences() {
  auto all = divergences();
  auto share = number_in_environment("INTARSIA_SHARE", 0), shares = number_in_environment("INTARSIA_SHARES", 1);
  for (size_t i = share; i < all.size(); i += shares) {
    if (all[i].harmless && !checks_calls()) continue;
    init();
    std::printf("%s: rank %d: %s\n", all[i].name, int(rank()), told_of(all[i]).c_str());
    std::fflush(stdout);
    finalize();
  }
}

void play_allowed_differences() {
  init();
  Start s;
  std::vector<at::Tensor> kept;
  double total = 0;
  for (int step = 0; step < 4; ++step) {
    auto loss = redistribute(s.loss(), {Replicate()});
    loss.backward();
    std::thread beside([&] {  // its own tensors, on every rank another number of them
      at::NoGradGuard no_grad;
      for (int i = 0; i < rank(); ++i) (s.cut() * 2).sum();
    });
    if (rank() == 0) look_at(s, loss, kept);
    beside.join();
    torch::optim::SGD({s.weight}, 0.1).step();
    s.weight.mutable_grad().reset();
    total += full_tensor(s.weight.detach() * 2).sum().item<double>();
  }
  auto folder = c10::str("/tmp/intarsia-allowed-", getppid());
  auto saved = checkpoint::save_async(folder, {{"weight", s.weight}});
  total += full_tensor(s.a).sum().item<double>();
  saved.wait();
  barrier();
  if (rank() == 0) std::filesystem::remove_all(folder);
  std::printf("the total is %.6f\n", total);
}

}  // namespace intarsia
