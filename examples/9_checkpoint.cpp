// Loads Llama weights in Hugging Face's layout into a model that is cut over the ranks, trains it a little, saves a
// checkpoint, and goes on from it in a new model. Each rank reads and writes only its own part.
//
// Run it by itself, and this process plays 1, 2 and 4 ranks in turn:
//   build/examples/9_checkpoint
// or as four processes:
//   intarsia run -n 4 build/examples/9_checkpoint
//
// The weights are made by the example itself, by export_full: a folder with model.safetensors.index.json and several
// files. It prints how far the logits of the cut model are from those of the plain one, and the loss of a step after
// loading beside that of the run that was not interrupted. It ends with an error if the first is above 1e-5, or if the
// losses differ at all.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "examples/llama.h"

using namespace intarsia;

namespace {

// From a name of llama.h to Hugging Face's.
std::string hugging_face_name(std::string name) {
  const std::pair<const char*, const char*> kWords[] = {
      {"embedding.", "model.embed_tokens."},   {"output.", "lm_head."},
      {"attention_norm.", "input_layernorm."}, {"mlp_norm.", "post_attention_layernorm."},
      {"attention.wq", "self_attn.q_proj"},    {"attention.wk", "self_attn.k_proj"},
      {"attention.wv", "self_attn.v_proj"},    {"attention.wo", "self_attn.o_proj"},
      {"mlp.gate", "mlp.gate_proj"},           {"mlp.up", "mlp.up_proj"},
      {"mlp.down", "mlp.down_proj"},
  };
  for (auto& [ours, theirs] : kWords) {
    if (auto at = name.find(ours); at != name.npos) {
      name.replace(at, std::string(ours).size(), theirs);
      break;
    }
  }
  return name.starts_with("layers.") || name.starts_with("norm.") ? "model." + name : name;
}

// The tables of rotary positions are buffers, which such files do not hold.
checkpoint::NamedState weights_of(const llama::Model& model) {
  checkpoint::NamedState state;
  for (auto& item : model->named_parameters()) state.tensors.emplace_back(item.key(), item.value());
  return state;
}

llama::Model cut_model(const DeviceMesh& mesh, int seed) {
  torch::manual_seed(seed);
  llama::Options options;
  llama::Model model(options);
  parallelize_module(*model, mesh, llama::plan(options));
  return model;
}

double train_step(llama::Model& model, torch::optim::Optimizer& optimizer, const torch::Tensor& text,
                  const DeviceMesh& mesh) {
  optimizer.zero_grad();
  auto last = text.size(1) - 1;
  auto target =
      distribute_tensor(text.narrow(1, 1, last), mesh, {Replicate()}, std::nullopt);  // the same on every rank
  auto loss = llama::loss(model(text.narrow(1, 0, last)), target);
  loss.backward();
  optimizer.step();
  return full_tensor(loss.detach()).item<double>();
}

bool run(const std::string& folder) {
  auto ranks = current_world().size();
  bool speaks = current_world().hosted()[0] == 0;
  auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
  torch::manual_seed(1);
  llama::Options options;
  llama::Model plain(options);
  checkpoint::export_full(folder + "/llama", {{"", weights_of(plain)}},
                          {.file_bytes = 100'000, .rename = hugging_face_name});

  auto model = cut_model(mesh, 2);
  checkpoint::load(folder + "/llama", {{"", weights_of(model)}}, {.rename = hugging_face_name});
  torch::manual_seed(3);
  auto text = torch::randint(options.vocabulary, {2, 17});
  auto logits = full_tensor(model(text.narrow(1, 0, 16))), goal = plain(text.narrow(1, 0, 16));
  auto distance = (logits - goal).abs().max().item<double>();

  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  for (int step = 0; step < 3; ++step) train_step(model, optimizer, text, mesh);
  checkpoint::save(folder + "/runs/step-3", {{"model", model}, {"optimizer", optimizer}, {"step", 3}}, {.keep = 2});

  auto again = cut_model(mesh, 4);
  torch::optim::AdamW optimizer_again(again->parameters(), 0.5);
  auto step = checkpoint::load(checkpoint::latest(folder + "/runs"), {{"model", again}, {"optimizer", optimizer_again}})
                  .integer("step");
  auto loss = train_step(model, optimizer, text, mesh), loss_again = train_step(again, optimizer_again, text, mesh);
  if (speaks) {
    std::printf("%ld ranks: logits differ by %.1e; after step %ld the loss is %.9f, and %.9f where it was loaded\n",
                static_cast<long>(ranks), distance, static_cast<long>(step), loss, loss_again);
  }
  return distance < 1e-5 && loss == loss_again;
}

}  // namespace

int main() {
  init();  // joins the ranks that a launcher started; alone, a world of one
  auto folder = std::filesystem::temp_directory_path() /
                ("intarsia-example-8-" + std::to_string(world_size() > 1 ? getppid() : getpid()));
  bool good = true;
  if (world_size() > 1) {
    good = run(folder);
  } else {
    for (int64_t ranks : {1, 2, 4}) {
      auto world = simulate(ranks);
      good = run(folder) && good;
    }
  }
  barrier();
  if (current_world().hosted()[0] == 0) std::filesystem::remove_all(folder);
  return good ? 0 : 1;
}
