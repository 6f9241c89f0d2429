// Twenty steps of fully_shard in mixed precision: losses and every parameter have the bits of one process that makes
// the same casts and works through the ranks' parts of a batch one after the other.

#include "tests/data_parallel/trainees.h"

namespace intarsia::data_parallel_mixed_precision_test {
namespace {

struct Policy {
  at::ScalarType own;
  std::optional<at::ScalarType> param, reduce;
};

at::ScalarType computed_in(const Policy& policy) { return policy.param.value_or(policy.own); }

// A trainee whose statistics and tables are of the dtype that is computed in: fully_shard leaves buffers alone.
Trainee with_cast_buffers(const MakeTrainee& make, at::ScalarType dtype, const Policy& policy) {
  auto trainee = make(dtype);
  for (auto& buffer : trainee.module->buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(computed_in(policy)));
  }
  return trainee;
}

at::Tensor cast_input(const at::Tensor& batch, const Policy& policy) {
  return batch.is_floating_point() ? batch.to(computed_in(policy)) : batch;
}

using Gradients = std::vector<at::Tensor>;

// The average of what `ranks` have, added up in their order.
Gradients average(const std::vector<Gradients>& ranks) {
  Gradients sums;
  for (size_t p = 0; p < ranks[0].size(); ++p) {
    if (!ranks[0][p].defined()) {
      sums.emplace_back();  // frozen
      continue;
    }
    auto sum = ranks[0][p].clone();
    for (size_t rank = 1; rank < ranks.size(); ++rank) sum.add_(ranks[rank][p]);
    sums.push_back(sum.div_(static_cast<int64_t>(ranks.size())));
  }
  return sums;
}

// One process in the place of all ranks.
class SameCasts {
 public:
  SameCasts(const MakeTrainee& make, const Policy& policy)
      : policy_(policy),
        own_(make(policy.own)),
        cast_(with_cast_buffers(make, computed_in(policy), policy)),
        optimizer_(optimizer_for(own_)) {}

  const torch::nn::Module& parameters() const { return *own_.module; }
  const torch::nn::Module& buffers() const { return *cast_.module; }

  // The losses of all ranks, which have a batch for each pass, cut into as many parts. Statistics are those of the
  // first rank.
  std::vector<double> step(const std::vector<at::Tensor>& batches, int64_t ranks, int64_t copies) {
    std::vector<double> losses;
    std::vector<Gradients> gradients;
    Gradients before, after;
    for (auto& buffer : cast_.module->buffers()) before.push_back(buffer.clone());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (size_t b = 0; b < before.size(); ++b) cast_.module->buffers()[b].copy_(before[b]);
      losses.push_back(pass(batches, ranks, rank, gradients.emplace_back()));
      for (size_t b = 0; rank == 0 && b < before.size(); ++b) after.push_back(cast_.module->buffers()[b].clone());
    }
    for (size_t b = 0; b < before.size(); ++b) cast_.module->buffers()[b].copy_(after[b]);
    update(gradients, ranks / copies);
    return losses;
  }

 private:
  double pass(const std::vector<at::Tensor>& batches, int64_t ranks, int64_t rank, Gradients& sums) {
    double sum = 0;
    auto parameters = cast_.module->parameters(), own = own_.module->parameters();
    for (size_t p = 0; p < own.size(); ++p)
      parameters[p].set_data(own[p].detach().to(computed_in(policy_), false, true));
    for (auto& batch : batches) {
      for (auto& parameter : parameters) parameter.mutable_grad() = at::Tensor();
      auto loss = cast_.loss(cast_input(batch, policy_).chunk(ranks)[rank].clone());
      loss.backward();
      sum += loss.item<double>();
      for (size_t p = 0; p < own.size(); ++p) {
        auto grad = parameters[p].grad();
        if (sums.size() <= p) {
          sums.push_back(grad.defined() ? grad.to(policy_.reduce.value_or(computed_in(policy_))) : grad);
        } else if (grad.defined()) {
          sums[p].add_(grad);
        }
      }
    }
    return sum;
  }

  // Over the shards of a copy, and then over the copies.
  void update(const std::vector<Gradients>& of_ranks, int64_t shards) {
    std::vector<Gradients> of_copies;
    for (auto first = of_ranks.begin(); first < of_ranks.end(); first += shards)
      of_copies.push_back(average({first, first + shards}));
    auto result = average(of_copies);
    for (size_t p = 0; p < result.size(); ++p) {
      if (result[p].defined()) own_.module->parameters()[p].mutable_grad() = result[p].to(policy_.own);
    }
    optimizer_.step();
  }

  Policy policy_;
  Trainee own_, cast_;
  torch::optim::SGD optimizer_;
};

void expect_same_bits(const torch::OrderedDict<std::string, at::Tensor>& own,
                      const torch::OrderedDict<std::string, at::Tensor>& goal) {
  for (auto& item : goal) {
    auto value = whole(own[item.key()]);
    EXPECT_TRUE(at::equal(value, item.value()))
        << item.key() << ", off by " << (value - item.value()).abs().max().item<double>();
  }
}

struct MixedWay {
  std::string name;
  bool kept, copies;
  int64_t passes;
};

void compare(const MakeTrainee& make, const Policy& policy, const MixedWay& way) {
  SCOPED_TRACE(c10::str(way.name, ", ", policy.own, " computed in ", computed_in(policy), ", reduced in ",
                        policy.reduce.value_or(computed_in(policy))));
  auto n = current_world().size();
  auto copies = !way.copies ? 1 : n % 2 ? n : 2;  // as `sharded` has them
  auto own = with_cast_buffers(make, policy.own, policy);
  auto optimizer = optimizer_for(own);
  FullyShardOptions options;
  options.mp_policy.param_dtype = policy.param, options.mp_policy.reduce_dtype = policy.reduce;
  if (way.kept) options.reshard_after_forward = false;
  sharded(options, way.copies)(own);
  SameCasts plain(make, policy);
  auto mesh = all_ranks();
  auto hosted = current_world().hosted();
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<at::Tensor> batches;
    for (int64_t pass = 0; pass < way.passes; ++pass) batches.push_back(own.batch(step * way.passes + pass, 3 * n));
    auto losses = parallel_step(own, optimizer, way.passes,
                                [&](int64_t pass) { return mine(cast_input(batches[pass], policy), mesh); });
    auto expected = plain.step(batches, n, copies);
    for (size_t slot = 0; slot < losses.size(); ++slot)
      ASSERT_EQ(losses[slot], expected[hosted[slot]]) << "in step " << step;
  }
  expect_same_bits(own.module->named_parameters(), plain.parameters().named_parameters());
  expect_same_bits(own.module->named_buffers(), plain.buffers().named_buffers());
}

const std::vector<Policy> kPolicies = {
    {at::kDouble, at::kFloat, std::nullopt},   {at::kDouble, at::kFloat, at::kDouble},
    {at::kDouble, std::nullopt, at::kFloat},   {at::kFloat, at::kBFloat16, at::kFloat},
    {at::kFloat, at::kBFloat16, std::nullopt}, {at::kFloat, std::nullopt, at::kDouble}};

const std::vector<MixedWay> kMixedWays = {{"freed after forward", false, false, 1},
                                          {"kept after forward", true, false, 1},
                                          {"three passes", false, false, 3},
                                          {"copies", false, true, 1},
                                          {"copies, three passes", false, true, 3}};

// A way for each policy, another one in a world of another size and for another test.
void compare_some(const MakeTrainee& make, int64_t turn) {
  auto first = static_cast<size_t>(current_world().size() + turn);
  for (size_t p = 0; p < kPolicies.size(); ++p)
    compare(make, kPolicies[p], kMixedWays[(first + p) % kMixedWays.size()]);
}

void compare_in_worlds(const MakeTrainee& make, int64_t turn, std::initializer_list<int64_t> sizes) {
  if (process_world()) return compare_some(make, turn);
  for (auto n : sizes) {
    SCOPED_TRACE("in a simulation of " + std::to_string(n));
    auto world = simulate(n);
    compare_some(make, turn);
  }
}

TEST(MixedPrecision, OfAnMlpHasTheBitsOfTheSameCasts) { compare_in_worlds(mlp_trainee, 0, {1, 2, 3, 4, 6, 8}); }
TEST(MixedPrecision, OfABatchNormCnnHasTheBitsOfTheSameCasts) { compare_in_worlds(cnn_trainee, 1, {2, 4}); }
TEST(MixedPrecision, OfATiedLlamaHasTheBitsOfTheSameCasts) { compare_in_worlds(tied_llama, 2, {2, 4}); }
TEST(MixedPrecision, OfFrozenPartsHasTheBitsOfTheSameCasts) {
  compare_in_worlds(partly_frozen(mlp_trainee), 3, {2, 3, 4});
}

}  // namespace
}  // namespace intarsia::data_parallel_mixed_precision_test
