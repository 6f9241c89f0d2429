// What programs do to a replicated model besides training it.

#include "intarsia/data_parallel/replicate/replicate.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_replicate_changed_test {
namespace {

at::Tensor some(int64_t step) { return inputs(step, {24, 5}); }
at::Tensor mean_squared(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

std::vector<ReplicateOptions> copies_and_views() {
  ReplicateOptions views;
  views.gradient_as_bucket_view = true;
  return {{}, views};
}

// Gradients of a backward pass on the mean of all rows, and the dtypes that they have.
void expect_same_gradients(torch::nn::Sequential model, torch::nn::Sequential plain, int64_t step,
                           double tolerance = 1e-12) {
  auto dtype = plain->parameters()[0].scalar_type();
  mean_squared(model, mine(some(step).to(dtype), all_ranks())).backward();
  mean_squared(plain, some(step).to(dtype)).backward();
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    auto grad = model->parameters()[i].grad(), goal = plain->parameters()[i].grad();
    EXPECT_EQ(grad.scalar_type(), goal.scalar_type()) << i;
    EXPECT_TRUE(torch::allclose(value_at(grad, 0), goal, tolerance, tolerance)) << i << "\n" << grad << "\n" << goal;
  }
}

TEST(ChangedReplicas, ToAnotherDtypeTheirGradientsAreOfThat) {
  for (auto& options : copies_and_views()) {
    for (int64_t hidden : {7, 200}) {      // the large one lends its gradients
      for (bool zeroed : {true, false}) {  // LibTorch adds to a gradient in the dtype that it has
        in_every_world([&] {
          auto model = mlp(hidden), plain = mlp(hidden);
          model->to(at::kFloat), plain->to(at::kFloat);
          replicate(*model, all_ranks(), options);
          for (auto dtype : {at::kFloat, at::kDouble, at::kDouble, at::kFloat}) {
            model->to(dtype), plain->to(dtype);
            if (zeroed || options.gradient_as_bucket_view) model->zero_grad(), plain->zero_grad();
            expect_same_gradients(model, plain, 1, 1e-5);
          }
        });
      }
    }
  }
}

TEST(ChangedReplicas, SetDataMayBringAnotherShape) {
  for (auto& options : copies_and_views()) {
    in_every_world([&] {
      auto model = mlp(), plain = mlp();
      replicate(*model, all_ranks(), options);
      expect_same_gradients(model, plain, 0);
      for (auto net : {model, plain}) {
        net->zero_grad();
        auto wide = mlp(9)->parameters();
        for (size_t i = 0; i < wide.size(); ++i) net->parameters()[i].set_data(wide[i].detach().clone());
      }
      for (int64_t step = 0; step < 2; ++step) expect_same_gradients(model, plain, step);
    });
  }
}

TEST(ChangedReplicas, ParametersMayBeFrozenAndThawed) {
  for (auto& options : copies_and_views()) {
    in_every_world([&] {
      auto model = mlp(), plain = mlp();
      replicate(*model, all_ranks(), options);
      for (bool trains : {true, false, false, true}) {
        for (auto net : {model, plain}) net->parameters()[2].set_requires_grad(trains);
        expect_same_gradients(model, plain, 0);  // the frozen one keeps what it had
      }
    });
  }
}

TEST(ChangedReplicas, AParameterRegisteredLaterIsAnErrorUntilItIsReplicated) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = mlp(), plain = mlp();
    replicate(*model, mesh);
    torch::manual_seed(6);
    torch::nn::Linear more(3, 2);
    more->to(at::kDouble);
    plain->push_back(torch::nn::Linear(std::dynamic_pointer_cast<torch::nn::LinearImpl>(more->clone())));
    model->push_back(more);
    std::string ranks = mesh.size() == 1 ? "rank 0" : "ranks 0";
    for (int64_t rank = 1; rank < mesh.size(); ++rank) ranks += ", " + std::to_string(rank);
    EXPECT_EQ(error_text<c10::Error>([&] { mean_squared(model, mine(some(0), mesh)).backward(); }),
              "[replicate] 5.weight, 5.bias of SequentialImpl got a gradient on " + ranks +
                  " that is not averaged: the "
                  "parameter was registered after replicate was called. Register all parameters first, or call "
                  "replicate again, "
                  "which takes those that it does not have yet.");
    model->zero_grad();
    replicate(*model, mesh);
    expect_same_gradients(model, plain, 0);
  });
}

TEST(ChangedReplicas, WhatIsIgnoredMayGrow) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = std::make_shared<torch::nn::Module>("Net");
    auto net = model->register_module("net", mlp()), heads = model->register_module("heads", torch::nn::Sequential());
    ReplicateOptions options;
    options.ignored_modules = {heads.get()};
    replicate(*model, mesh, options);
    torch::nn::Linear head(3, 2);
    head->to(at::kDouble);
    heads->push_back(head);
    heads->forward(net->forward(mine(some(0), mesh))).sum().backward();
    EXPECT_FALSE(is_per_rank(net->parameters()[0].grad()));
    EXPECT_EQ(is_per_rank(head->weight.grad()), mesh.slots().size() > 1);
  });
}

TEST(ChangedReplicas, AModuleThatIsReplacedIsReplicatedAgain) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = std::make_shared<torch::nn::Module>("Net");
    auto make_norm = [] {
      torch::nn::BatchNorm1d norm(5);
      norm->to(at::kDouble);
      return norm;
    };
    auto norm = make_norm();
    torch::nn::Linear layer(5, 3);
    layer->to(at::kDouble);
    model->register_module("norm", norm.ptr());
    model->register_module("layer", layer.ptr());
    replicate(*model, mesh);
    norm = make_norm();
    model->replace_module("norm", norm.ptr());  // the parameters and buffers that were replicated are gone
    auto text = error_text<c10::Error>([&] { layer->forward(norm->forward(mine(some(0), mesh))).sum().backward(); });
    EXPECT_EQ(text.find("[replicate] norm.weight, norm.bias of Net got a gradient on rank"), 0) << text;
    model->zero_grad();
    replicate(*model, mesh);
    layer->forward(norm->forward(mine(some(0), mesh))).sum().backward();
    for (auto& p : model->parameters()) EXPECT_FALSE(is_per_rank(p.grad()));
    EXPECT_TRUE(torch::equal(value_at(norm->running_mean, 0), value_at(norm->running_mean, mesh.slots().size() - 1)));
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_replicate_changed_test
