// A training job with all that surrounds one: data parallelism and tensor parallelism by options, a schedule, a scaler,
// a sampler, checkpoints, and a start that goes on from the newest of them. docs/a_training_job.md goes through it.
//
// Run it by itself, and this process plays 1, 2 and 4 ranks in turn, each going on where the one before stopped:
//   build/examples/10_a_training_job
// or as four processes, two of which share each layer, and one of which dies in step 7:
//   intarsia run -n 4 --max-restarts 1 build/examples/10_a_training_job --tp 2 --fail-at 7
//
// It prints the loss of every step. By itself it ends with an error if one differs by more than 1e-5 from that of a job
// which was not interrupted.
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include <ATen/CPUGeneratorImpl.h>

#include "examples/llama.h"

using namespace intarsia;

namespace {

constexpr int64_t kTexts = 24, kLength = 16, kBatch = 8;

struct Job {
  int64_t tp = 1;                    // ranks that share each layer; the others are data-parallel
  std::string data = "fully_shard";  // or replicate
  int64_t steps = 12, save_every = 4;
  int64_t fail_at = -1;  // the last rank dies in this step, unless the job was restarted
  std::string folder;    // of the checkpoints
};

using Losses = std::map<int64_t, double>;  // by step

void make_parallel(llama::Model& model, const Job& job, const DeviceMesh& mesh) {
  if (job.tp > 1) parallelize_module(model, mesh["tp"], llama::plan(model->options));
  if (job.data == "replicate") return replicate(*model, mesh["dp"]), void();
  for (auto& layer : *model->layers) fully_shard(*layer, mesh["dp"]);
  fully_shard(*model, mesh["dp"]);  // the parameters that are left
}

// The texts of the next step, the same on all ranks: their samplers are in one state. A new epoch has a new order.
torch::Tensor next_batch(torch::data::samplers::RandomSampler& sampler, const torch::Tensor& texts) {
  auto chosen = sampler.next(kBatch);
  if (!chosen) {
    sampler.reset();
    chosen = sampler.next(kBatch);
  }
  std::vector<int64_t> rows(chosen->begin(), chosen->end());
  return texts.index_select(0, torch::tensor(rows));
}

torch::Tensor loss_of(llama::Model& model, const torch::Tensor& batch, const Job& job, const DeviceMesh& mesh) {
  // Every rank takes its rows of what all have.
  auto mine = to_local(distribute_tensor(batch, mesh["dp"], {Shard(0)}, std::nullopt));
  auto tokens = mine.narrow(1, 0, kLength), target = mine.narrow(1, 1, kLength);
  // Where layers are shared, so are the logits, and the target has to say that all ranks of "tp" have the same.
  if (job.tp > 1) target = from_local(target, mesh["tp"], {Replicate()});
  return llama::loss(model(tokens), target);
}

Losses train(const Job& job) {
  auto mesh = init_device_mesh(torch::kCPU, {world_size() / job.tp, job.tp}, {"dp", "tp"});
  torch::manual_seed(1);  // all ranks alike: first weights, the order of texts
  llama::Options options;
  llama::Model model(options);
  make_parallel(model, job, mesh);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  LambdaLR schedule(optimizer, [&](int64_t step) { return warmup_cosine(step + 1, 3, 24); });
  GradScaler scaler({.init_scale = 1024, .growth_interval = 5});
  auto texts = torch::randint(options.vocabulary, {kTexts, kLength + 1});
  torch::data::samplers::RandomSampler sampler(kTexts);
  sampler.reset();

  auto items = [&](int64_t step) -> checkpoint::Items {
    return {{"model", model},   {"optimizer", optimizer}, {"schedule", schedule},
            {"scaler", scaler}, {"sampler", sampler},     {"generator", at::detail::getDefaultCPUGenerator()},
            {"step", step}};
  };
  int64_t step = 0;
  if (auto loaded = checkpoint::resume(job.folder, items(0))) {
    step = loaded->integer("step");
    print_once("goes on from step ", step, " on ", world_size(), " ranks");
  }

  Losses losses;
  while (step < job.steps) {
    bool is_last_rank = current_world().hosted().back() == world_size() - 1;
    if (step == job.fail_at && is_last_rank && restart_count() == 0) raise(SIGKILL);
    optimizer.zero_grad();
    auto loss = loss_of(model, next_batch(sampler, texts), job, mesh);
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    schedule.step();
    losses[step] = mean_over_ranks(loss);
    char text[32];
    std::snprintf(text, sizeof text, "%.9f", losses[step]);
    print_once("step ", step, ": loss ", text);
    if (++step % job.save_every == 0) {
      checkpoint::save_async(job.folder + "/step-" + std::to_string(step), items(step), {.keep = 2});
    }
  }
  checkpoint::wait_for_saves();
  return losses;
}

// Every part on other ranks, cut in another way, from the checkpoint of the one before.
bool train_in_parts(const Job& given) {
  struct Part {
    int64_t ranks, tp, until;
    const char* data;
  };
  const Part kParts[] = {
      {1, 1, 4, "replicate"}, {4, 2, 8, "fully_shard"}, {2, 1, 12, "replicate"}, {4, 1, 16, "fully_shard"}};
  Losses losses, expected;
  for (auto& part : kParts) {
    auto world = simulate(part.ranks);
    auto job = given;
    job.tp = part.tp, job.data = part.data, job.steps = part.until;
    losses.merge(train(job));
  }
  {
    auto world = simulate(1);
    auto job = given;
    job.data = "replicate", job.steps = 16, job.folder += "-alone";
    expected = train(job);
    std::filesystem::remove_all(job.folder);
  }
  bool same = losses.size() == expected.size();
  for (auto& [step, loss] : losses) same = same && std::abs(loss - expected[step]) <= 1e-5;
  print_once(same ? "every loss is that of one rank to 1e-5" : "A LOSS DIFFERS");
  return same;
}

Job parse(int argc, char** argv) {
  Job job;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string option = argv[i], value = argv[i + 1];
    if (option == "--tp")
      job.tp = std::stoll(value);
    else if (option == "--data")
      job.data = value;
    else if (option == "--steps")
      job.steps = std::stoll(value);
    else if (option == "--save-every")
      job.save_every = std::stoll(value);
    else if (option == "--fail-at")
      job.fail_at = std::stoll(value);
    else if (option == "--folder")
      job.folder = value;
    else
      TORCH_CHECK(false, "there is no option ", option);
  }
  TORCH_CHECK(argc % 2, "every option needs a value");
  return job;
}

}  // namespace

int main(int argc, char** argv) {
  init();  // joins the ranks that a launcher started; alone, a world of one
  auto job = parse(argc, argv);
  bool ours = job.folder.empty();
  if (ours) {
    // The launcher's: the same on all ranks, and after a restart.
    auto id = std::to_string(world_size() > 1 ? getppid() : getpid());
    job.folder = std::filesystem::temp_directory_path() / ("intarsia-example-10-" + id);
  }
  bool good = true;
  if (world_size() > 1) {
    train(job);
  } else {
    good = train_in_parts(job);
  }
  barrier();
  if (ours && is_first_rank()) std::filesystem::remove_all(job.folder);
  return good ? 0 : 1;
}
