// Random sequences of what programs do with a model, on a wrapped one and on a plain one: after every action the two
// are the same.

#include <optional>
#include <random>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/fully_shard/group_hooks.h"
#include "tests/checkpoint/folders.h"
#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_random_actions_test {
namespace {

using torch::nn::Sequential;

class Pair {
 public:
  Pair(int64_t seed, const TestFolder& folder) : random_(seed), folder_(folder) {
    if (pick(2)) wrap();
    own_ = optimizer_of(model_), goal_ = optimizer_of(plain_);
    if (!wrapped_) wrap();
    save();
  }

  std::string act() {
    static const std::vector<std::pair<const char*, void (Pair::*)()>> actions = {
        {"step", &Pair::step},
        {"evaluate", &Pair::evaluate},
        {"infer", &Pair::infer},
        {"accumulate", &Pair::accumulate},
        {"save", &Pair::save},
        {"load", &Pair::load},
        {"load by name", &Pair::load_by_name},
        {"load the optimizer", &Pair::load_optimizer},
        {"edit", &Pair::edit},
        {"freeze", &Pair::freeze},
        {"read", &Pair::read},
        {"unshard", &Pair::unshard},
        {"clip", &Pair::clip},
        {"zero", &Pair::zero},
        {"cast", &Pair::cast},
        {"edit by a handle", &Pair::edit_by_handle},
        {"drop a graph", &Pair::drop_a_graph}};
    auto& [name, action] = actions[pick(actions.size())];
    (this->*action)();
    return name;
  }

  void expect_same() {
    expect_same_tensors(*model_, *plain_, 1e-9);
    for (size_t i = 0; i < 6; ++i) {
      auto grad = model_->parameters()[i].grad(), goal = plain_->parameters()[i].grad();
      ASSERT_EQ(grad.defined(), goal.defined()) << i;
      EXPECT_TRUE(!goal.defined() || unsynced_ || torch::allclose(whole(grad), goal, 1e-9, 1e-9)) << i;
      EXPECT_EQ(is_dtensor(model_->parameters()[i]), is_sharded(i) && !shown_) << i;
    }
  }

 private:
  size_t pick(size_t count) { return random_() % count; }

  // Some layers by themselves, and then what is left.
  void wrap() {
    bool replicates = pick(2);
    wrapped_ = true;
    for (size_t layer : {0, 2, 4}) {
      if (pick(2)) pick(4) == 0 ? replicate_part(*model_[layer]) : shard_part(*model_[layer]);
    }
    if (!replicates) return shard_part(*model_);
    bool any_left = false;
    for (auto& p : model_->parameters()) any_left = any_left || !watcher_of(p);
    if (any_left) replicate_part(*model_);
  }
  void shard_part(torch::nn::Module& module) {
    FullyShardOptions options;
    if (pick(2)) options.reshard_after_forward = pick(2);
    fully_shard(module, all_ranks(), options);
  }
  void replicate_part(torch::nn::Module& module) {
    ReplicateOptions options;
    options.gradient_as_bucket_view = pick(2);
    replicate(module, all_ranks(), options);
    averages_ = true;
  }
  bool is_sharded(size_t i) { return group_of(model_->parameters()[i]) != nullptr; }

  std::unique_ptr<torch::optim::Optimizer> optimizer_of(Sequential& model) {
    if (!kind_) kind_ = 1 + pick(3);
    if (kind_ == 1)
      return std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    if (kind_ == 2) return std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(0.01));
    return std::make_unique<torch::optim::Adagrad>(model->parameters(), 0.05);
  }

  at::Tensor batch() { return inputs(static_cast<int64_t>(pick(100)), {24, 5}); }
  void backward(bool syncs) {
    auto x = batch();
    for (auto& group : groups_in(*model_)) group.set_requires_gradient_sync(syncs);
    std::optional<NoSync> no_sync;
    if (!syncs) no_sync.emplace(*model_);
    unsynced_ = averages_ && !syncs;
    handles_.clear();
    model_->forward(mine(x, all_ranks())).square().mean().backward(), plain_->forward(x).square().mean().backward();
    for (auto& group : groups_in(*model_)) group.reshard();  // a frozen one is not reached
    shown_ = false;
  }

  void step() {
    if (pick(2)) zero();
    backward(averages_ || pick(4));  // replicas step on averages
    own_->step(), goal_->step();
  }
  void accumulate() { backward(pick(2)); }
  void drop_a_graph() { model_->forward(mine(batch(), all_ranks())); }
  void evaluate() {
    torch::NoGradGuard no_grad;
    compare_outputs();
  }
  void infer() {
    c10::InferenceMode inference;
    compare_outputs();
  }
  void compare_outputs() {
    auto x = batch();
    auto out = full_tensor(from_local(model_->forward(mine(x, all_ranks())), all_ranks(), {Shard(0)}));
    EXPECT_TRUE(torch::allclose(out, plain_->forward(x), 1e-9, 1e-9));
  }

  checkpoint::Items named(Sequential& model) {
    checkpoint::Items items;
    for (auto& item : model->named_parameters()) items.emplace_back("model." + item.key(), item.value());
    return items;
  }
  void save() {
    checkpoint::save(folder_ / "own", {{"model", model_}, {"optimizer", *own_}});
    checkpoint::save(folder_ / "plain", {{"model", plain_}, {"optimizer", *goal_}});
  }
  void load() {
    checkpoint::load(folder_ / "own", {{"model", model_}, {"optimizer", *own_}});
    checkpoint::load(folder_ / "plain", {{"model", plain_}, {"optimizer", *goal_}});
  }
  void load_by_name() {  // each from what the other one has written
    checkpoint::load(folder_ / "plain", named(model_), {.strict = false});
    checkpoint::load(folder_ / "own", named(plain_), {.strict = false});
  }
  void load_optimizer() {
    checkpoint::load(folder_ / "plain", {{"model", plain_}, {"optimizer", *goal_}});
    checkpoint::load(folder_ / "own", {{"optimizer", *own_}, {"model", model_}});
  }

  void edit() {
    torch::NoGradGuard no_grad;
    auto i = pick(6), how = pick(5);
    for (auto& model : {model_, plain_}) {
      auto p = model->parameters()[i];
      auto value = inputs(static_cast<int64_t>(i), p.sizes().vec());
      if (how == 0) p.mul_(0.9);
      if (how == 1) p.copy_(value);
      if (how == 2) p.detach().add_(p * 0.1);
      if (how == 3) p.set_data(value.clone()), handles_.clear();
      if (how == 4) p.data().mul_(0.5).add_(value);
    }
  }
  void freeze() {
    auto i = pick(6);
    bool frozen = pick(3) == 0;
    for (auto& model : {model_, plain_}) model->parameters()[i].set_requires_grad(!frozen);
    for (auto& model : {model_, plain_}) model->parameters()[4].set_requires_grad(true);  // a loss needs one
  }
  void read() {
    torch::AutoGradMode mode(pick(2));
    auto i = pick(6);
    auto p = model_->parameters()[i], q = plain_->parameters()[i];
    EXPECT_NEAR(p.norm().item<double>(), q.norm().item<double>(), 1e-9);
    EXPECT_TRUE(torch::allclose(p.sin() + p.detach(), q.sin() + q, 1e-9, 1e-9));
    EXPECT_TRUE(torch::allclose(torch::nn::utils::parameters_to_vector(model_->parameters()),
                                torch::nn::utils::parameters_to_vector(plain_->parameters()), 1e-9, 1e-9));
    EXPECT_TRUE(!is_dtensor(p) || torch::allclose(full_tensor(p), q, 1e-9, 1e-9));
  }
  void unshard() {
    for (auto& group : groups_in(*model_)) group.unshard();
    shown_ = true;
    if (pick(2)) return;
    for (auto& group : groups_in(*model_)) group.reshard();
    shown_ = false;
  }
  void clip() {
    if (!plain_->parameters()[4].grad().defined() || unsynced_) return;
    auto own = torch::nn::utils::clip_grad_norm_(model_->parameters(), 0.05);
    EXPECT_NEAR(own, torch::nn::utils::clip_grad_norm_(plain_->parameters(), 0.05), 1e-9);
  }

  void zero() {
    bool to_none = pick(2);
    own_->zero_grad(to_none), goal_->zero_grad(to_none);
    if (to_none) unsynced_ = false;
  }
  void cast() {
    own_->zero_grad(), goal_->zero_grad();
    unsynced_ = false;
    handles_.clear();
    for (auto net : {model_, plain_}) net->to(at::kFloat), net->to(at::kDouble);
  }
  // Handles of what a parameter is now, whole or not, that are used some actions later.
  void edit_by_handle() {
    torch::NoGradGuard no_grad;
    if (handles_.empty()) {
      auto i = pick(6);
      for (auto& net : {model_, plain_}) handles_.push_back(net->parameters()[i].detach());
      return;
    }
    for (auto& handle : handles_) handle.mul_(0.7), handle[0].add_(0.1);
    handles_.clear();
  }

  std::mt19937 random_;
  const TestFolder& folder_;
  size_t kind_ = 0;
  bool shown_ = false;  // as the whole
  bool wrapped_ = false;
  bool averages_ = false;  // some parameters are replicated
  bool unsynced_ = false;  // and have gradients of each rank
  std::vector<at::Tensor> handles_;
  Sequential model_ = mlp(), plain_ = mlp();
  std::unique_ptr<torch::optim::Optimizer> own_, goal_;
};

TEST(RandomActions, LeaveAWrappedModelWhatAPlainOneIs) {
  TestFolder folder("random-actions");
  in_every_world([&] {
    for (int64_t seed = 0; seed < (current_world().size() > 3 ? 4 : 16); ++seed) {
      Pair pair(seed, folder);
      std::string story = "seed " + std::to_string(seed) + ":";
      for (int64_t i = 0; i < 15; ++i) {
        try {
          story += " " + pair.act() + ",";
        } catch (const std::exception& error) {
          story += " an error";
          FAIL() << story << "\n" << error.what();
        }
        SCOPED_TRACE(story);
        pair.expect_same();
        if (testing::Test::HasFailure()) return;
      }
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_random_actions_test
