#pragma once
// A Llama-style transformer in plain LibTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU, a vocabulary
// that is tied or not. It does not know whether its tensors are distributed. The plan below cuts it over the ranks.

#include <cmath>

#include <torch/torch.h>

#include "intarsia/intarsia.h"

namespace llama {

using torch::Tensor;

struct Options {
  int64_t vocabulary = 96, width = 32, layers = 2, heads = 8, key_heads = 4, hidden = 84, longest = 64;
  bool tied = false;  // the output layer uses the table of the embedding
  int64_t head_width() const { return width / heads; }
};

inline torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct RMSNormImpl : torch::nn::Cloneable<RMSNormImpl> {
  explicit RMSNormImpl(int64_t width) : width(width) { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({width})); }
  Tensor forward(const Tensor& x) { return torch::rms_norm(x, {width}, weight, 1e-5); }
  int64_t width;
  Tensor weight;
};
INTARSIA_MODULE(RMSNorm);

// Turns each pair of features (i, i + half) of [b, heads, s, head_width] by an angle that grows with the position.
inline Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  auto halves = x.chunk(2, -1);
  return torch::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

struct AttentionImpl : torch::nn::Cloneable<AttentionImpl> {
  explicit AttentionImpl(const Options& options) : options(options) { reset(); }
  void reset() override {
    auto narrow = options.key_heads * options.head_width();
    wq = register_module("wq", linear(options.width, options.width));
    wk = register_module("wk", linear(options.width, narrow));
    wv = register_module("wv", linear(options.width, narrow));
    wo = register_module("wo", linear(options.width, options.width));
  }
  // [b, s, heads * head_width] to [b, heads, s, head_width]
  Tensor by_heads(const Tensor& x) const {
    return x.view({x.size(0), x.size(1), -1, options.head_width()}).transpose(1, 2);
  }
  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    auto q = rotate(by_heads(wq(x)), cos, sin), k = rotate(by_heads(wk(x)), cos, sin), v = by_heads(wv(x));
    auto mixed =
        torch::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true);
    return wo(mixed.transpose(1, 2).flatten(2));
  }
  Options options;
  torch::nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
};
INTARSIA_MODULE(Attention);

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  explicit MlpImpl(const Options& options) : options(options) { reset(); }
  void reset() override {
    gate = register_module("gate", linear(options.width, options.hidden));
    up = register_module("up", linear(options.width, options.hidden));
    down = register_module("down", linear(options.hidden, options.width));
  }
  Tensor forward(const Tensor& x) { return down(torch::silu(gate(x)) * up(x)); }
  Options options;
  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};
INTARSIA_MODULE(Mlp);

struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  explicit BlockImpl(const Options& options) : options(options) { reset(); }
  void reset() override {
    attention_norm = register_module("attention_norm", RMSNorm(options.width));
    attention = register_module("attention", Attention(options));
    mlp_norm = register_module("mlp_norm", RMSNorm(options.width));
    mlp = register_module("mlp", Mlp(options));
  }
  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    auto h = x + attention(attention_norm(x), cos, sin);
    return h + mlp(mlp_norm(h));
  }
  Options options;
  RMSNorm attention_norm{nullptr}, mlp_norm{nullptr};
  Attention attention{nullptr};
  Mlp mlp{nullptr};
};
INTARSIA_MODULE(Block);

// The output layer of a tied vocabulary.
struct TiedHeadImpl : torch::nn::Cloneable<TiedHeadImpl> {
  void reset() override {}
  Tensor forward(const Tensor& x, const Tensor& table) { return torch::linear(x, table); }
};
INTARSIA_MODULE(TiedHead);

// Tokens [b, s] to logits [b, s, vocabulary].
struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
  explicit ModelImpl(const Options& options) : options(options) { reset(); }
  void reset() override {
    embedding = register_module("embedding", torch::nn::Embedding(options.vocabulary, options.width));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < options.layers; ++i) layers->push_back(Block(options));
    norm = register_module("norm", RMSNorm(options.width));
    if (options.tied) tied_output = register_module("output", TiedHead());
    if (!options.tied) output = register_module("output", linear(options.width, options.vocabulary));
    torch::NoGradGuard no_grad;
    embedding->weight.mul_(0.1);
    auto half = options.head_width() / 2;
    auto speeds = torch::pow(10000.0, torch::arange(half) / -static_cast<double>(half));
    auto angles = torch::arange(options.longest).unsqueeze(1) * speeds;
    cos = register_buffer("cos", angles.cos());
    sin = register_buffer("sin", angles.sin());
  }
  Tensor forward(const Tensor& tokens) {
    auto c = cos.narrow(0, 0, tokens.size(1)), s = sin.narrow(0, 0, tokens.size(1));
    auto x = embedding(tokens);
    for (auto& layer : *layers) x = layer->as<Block>()->forward(x, c, s);
    x = norm(x);
    return options.tied ? tied_output(x, embedding->weight) : output(x);
  }
  Options options;
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};
  RMSNorm norm{nullptr};
  torch::nn::Linear output{nullptr};
  TiedHead tied_output{nullptr};
  Tensor cos, sin;
};
INTARSIA_MODULE(Model);

// A style of one's own: every rank has the tables of the rotary positions.
struct ReplicateTables final : intarsia::ParallelStyle {
  std::string name() const override { return "ReplicateTables"; }
  void apply(const intarsia::StyleTarget& target) const override {
    for (auto& table : target.module.buffers(false)) {
      intarsia::distribute_parameter(table, target.mesh, {intarsia::Replicate()}, target.src_data_rank);
    }
  }
};

// Tensor and sequence parallelism. Between blocks every rank has a part of the sequence, S(1); inside attention a part
// of the heads, inside the MLP a part of the hidden features. The vocabulary is cut at both ends, so logits stay S(2).
inline intarsia::ParallelPlan plan(const Options& options) {
  using namespace intarsia;
  ColwiseParallel columns({.use_local_output = false});
  RowwiseParallel rows({.output_layouts = Shard(1), .use_local_output = false});
  auto whole_sequence = [](int others) {  // of the first argument; the others are left alone
    EntryLayouts now = Shard(1), wanted = Replicate();
    for (int i = 0; i < others; ++i) now.push_back(std::nullopt), wanted.push_back(std::nullopt);
    return PrepareModuleInput({.input_layouts = now, .desired_input_layouts = wanted});
  };
  std::vector<ParallelPlan::Entry> entries = {
      {"", ReplicateTables()},
      {"embedding",
       RowwiseParallel({.input_layouts = Replicate(), .output_layouts = Shard(1), .use_local_output = false})},
      {"layers.*.*_norm", SequenceParallel()},
      {"layers.*.attention", whole_sequence(2)},
      {"layers.*.attention.w[qkv]", columns},
      {"layers.*.attention.wo", rows},
      {"layers.*.mlp", whole_sequence(0)},
      {"layers.*.mlp.gate", columns},
      {"layers.*.mlp.up", columns},
      {"layers.*.mlp.down", rows},
      {"norm", SequenceParallel()},
  };
  if (options.tied) entries.push_back({"output", whole_sequence(1)});
  if (!options.tied)
    entries.push_back({"output", ColwiseParallel({.input_layouts = Shard(1), .use_local_output = false})});
  return ParallelPlan(entries);
}

// The mean over all positions. Classes that are cut stay cut: the logits are never brought together.
inline Tensor loss(const Tensor& logits, const Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), target.flatten());
}

// Of the parameters, that one rank holds.
inline int64_t bytes_held(const Model& model) {
  using namespace intarsia;
  int64_t bytes = 0;
  for (auto& p : model->parameters())
    bytes += static_cast<int64_t>(is_dtensor(p) ? shards_of(p)[0].nbytes() : p.nbytes());
  return bytes;
}

}  // namespace llama
