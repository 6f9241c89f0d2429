// Where the gradient of a parameter of fully_shard is: the rows of gradient_transitions, one by one.

#include "intarsia/data_parallel/fully_shard/gradient_state.h"

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/fully_shard/group_hooks.h"
#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_gradient_state_test {
namespace {

using State = GradientState;
using Event = GradientEvent;

// A parameter of 4 x 6 on two copies of two shards, or on four copies.
struct Given {
  explicit Given(bool copies_alone) {
    model = torch::nn::Linear(torch::nn::LinearOptions(6, 4).bias(false));
    model->to(at::kDouble);
    if (copies_alone) {
      auto axes = ShardingAxes::replicated(init_device_mesh(at::kCPU, {4}, {"dp"}));
      group = make_param_group(model.get(), "linear", axes, {{"weight", model->weight}}, {std::nullopt}, {}, {});
    } else {
      fully_shard(model, init_device_mesh(at::kCPU, {2, 2}, {"copies", "dp"}));
      group = group_of(model->weight);
    }
  }
  ShardedParam& param() { return group->member(0); }
  at::Tensor& grad() { return model->weight.mutable_grad(); }
  Shards parts() {  // reduced ones of 1, one per rank
    auto counts = param().gradient_counts();
    Shards parts;
    for (size_t slot = 0; slot < counts.size(); ++slot)
      parts.push_back(torch::ones({counts[slot][slot % counts[slot].size()]}, at::kDouble));
    return parts;
  }
  torch::nn::Linear model{nullptr};
  std::shared_ptr<ParamGroup> group;
};

void accumulate(Given& given) {
  at::NoGradGuard no_grad;
  auto one = torch::ones({4, 6}, at::kDouble);
  auto& grad = given.grad();
  grad = grad.defined() ? grad + one : one;
}

void apply(Given& given, Event event) {
  auto& param = given.param();
  switch (event) {
    case Event::before_accumulate: return param.before_accumulate();
    case Event::after_accumulate: return accumulate(given), param.after_accumulate();
    case Event::fail: return param.fail_gradient(), param.drop_gradient();
    case Event::defer: return param.defer_gradient(std::nullopt);
    case Event::fetch: return param.fetch_pending();
    case Event::send: return (void)param.parts_of_gradient(at::kDouble), param.drop_gradient();
    case Event::write: return param.add_gradient(given.parts(), false);
    case Event::write_terms: return param.add_gradient(given.parts(), true);
    case Event::take_terms: return (void)param.take_pending_over_copies();
  }
}

// The events that lead from an unused parameter to the state.
std::vector<Event> way_to(State state) {
  switch (state) {
    case State::none: return {};
    case State::pending: return {Event::before_accumulate, Event::after_accumulate, Event::defer};
    case State::pending_over_copies: return {Event::write_terms};
    case State::accumulating: return {Event::before_accumulate};
    case State::unreduced: return {Event::before_accumulate, Event::after_accumulate};
  }
  return {};
}

TEST(GradientStates, EachRowLeadsWhereItSays) {
  for (auto& row : gradient_transitions()) {
    SCOPED_TRACE(c10::str(name_of(row.from), ", ", name_of(row.event), ": ", row.what));
    auto world = simulate(4);
    Given given(row.from == State::pending && row.event == Event::write_terms);
    for (auto event : way_to(row.from)) apply(given, event);
    ASSERT_STREQ(name_of(given.param().gradient_state()), name_of(row.from));
    apply(given, row.event);
    EXPECT_STREQ(name_of(given.param().gradient_state()), name_of(row.to));
  }
}

// Each row again, from the side of the sums: nothing is lost on the way, and nothing comes twice.
TEST(GradientStates, WhatWasThereIsAddedOnce) {
  auto world = simulate(4);
  struct Way {
    std::vector<Event> events;
    double sum;  // in every place of the gradient that leaf.grad stands for
  };
  using E = Event;
  const std::vector<Way> ways = {
      {{E::before_accumulate, E::after_accumulate, E::defer}, 1},
      {{E::before_accumulate, E::after_accumulate, E::before_accumulate, E::after_accumulate, E::defer}, 2},
      {{E::before_accumulate, E::after_accumulate, E::defer, E::before_accumulate, E::after_accumulate, E::defer}, 2},
      {{E::before_accumulate, E::after_accumulate, E::defer, E::fetch, E::defer}, 1},
      {{E::write, E::before_accumulate, E::after_accumulate, E::defer}, 2},
      {{E::write_terms, E::before_accumulate, E::after_accumulate, E::defer}, 2},
      {{E::write, E::before_accumulate, E::fail}, 1},
      {{E::write, E::before_accumulate, E::after_accumulate, E::fail}, 1},
      {{E::write, E::before_accumulate, E::before_accumulate, E::after_accumulate, E::defer}, 2},
      {{E::write, E::before_accumulate, E::after_accumulate, E::send, E::write}, 2},
      {{E::write_terms, E::write_terms}, 2},
      {{E::write_terms, E::take_terms, E::write}, 1},
  };
  for (auto& way : ways) {
    std::string names;
    for (auto event : way.events) names += std::string(name_of(event)) + " ";
    SCOPED_TRACE(names);
    Given given(false);
    for (auto event : way.events) apply(given, event);
    auto grad = full_tensor(given.grad());
    EXPECT_TRUE(grad.equal(torch::full({4, 6}, way.sum, at::kDouble))) << grad;
  }
}

TEST(GradientStates, AnEventWithoutARowIsAnInternalError) {
  auto world = simulate(4);
  Given given(false);
  EXPECT_THROW(given.param().after_accumulate(), c10::Error);
}

}  // namespace
}  // namespace intarsia::data_parallel_gradient_state_test
