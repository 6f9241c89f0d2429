// What LibTorch's own code makes on its way, and plain tensors of the caller's.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::dispatch_factory_scope_test {
namespace {

namespace rnn = torch::nn::utils::rnn;

// Of three steps, four samples and two features.
const std::vector<const char*> kCuts = {"[R]", "[S(0)]", "[S(1)]", "[S(2)]", "[P(sum)]"};

TEST(FactoryScope, SequencesArePackedAndPaddedAgain) {
  for_each_world({2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto lengths = at::tensor({2, 3, 1, 2}, at::kLong);
    for (auto* cut : kCuts) {
      for (bool batch_first : {false, true}) {
        auto there_and_back = [&](const std::vector<at::Tensor>& t) {
          auto packed =
              rnn::pack_padded_sequence(batch_first ? t[0].transpose(0, 1) : t[0], lengths, batch_first, false);
          return std::get<0>(rnn::pad_packed_sequence(packed, batch_first, 0.5, 4));
        };
        EXPECT_EQ(compare(there_and_back, {waves({3, 4, 2})}, mesh, {cut}), "") << cut;
      }
      auto sorted = [](const std::vector<at::Tensor>& t) {
        return rnn::pack_padded_sequence(t[0], at::tensor({3, 3, 2, 1}, at::kLong)).data();
      };
      EXPECT_EQ(compare(sorted, {waves({3, 4, 2})}, mesh, {cut}), "") << cut;
    }
  });
}

TEST(FactoryScope, RecurrentLayersTakePackedSequences) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    torch::manual_seed(2);
    torch::nn::LSTM lstm(2, 3);
    lstm->to(at::kDouble);
    auto values = lstm->parameters();
    for (auto& value : values) value = value.detach().clone();
    auto run = [&](const std::vector<at::Tensor>& t) {
      for (size_t i = 0; i < values.size(); ++i) lstm->parameters()[i].set_data(t[i + 1].detach());
      auto packed = rnn::pack_padded_sequence(t[0], at::tensor({3, 3, 2, 1}, at::kLong));
      auto [out, state] = lstm->forward_with_packed_input(packed);
      return out.data();
    };
    auto inputs = values;
    inputs.insert(inputs.begin(), waves({3, 4, 2}));
    for (auto* cut : kCuts) EXPECT_EQ(compare(run, inputs, mesh, {cut, "[R]", "[R]", "[R]", "[R]"}), "") << cut;
  });
}

TEST(FactoryScope, AnIndexOfNothingPicksNothing) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (bool answer : {false, true}) {
      for (auto* cut : {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]"}) {
        auto pick = [=](const std::vector<at::Tensor>& t) { return t[0].index({answer}); };
        EXPECT_EQ(compare(pick, {waves({5, 3})}, mesh, {cut}), "") << cut << answer;
      }
    }
  });
}

TEST(FactoryScope, APlainNumberAddsUpDistributedLosses) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto add_up = [](const std::vector<at::Tensor>& t) {
      auto total = torch::zeros({}, at::kDouble);
      for (int i = 0; i < 3; ++i) total += t[0].pow(i).mean();
      return total;
    };
    for (auto* cut : {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]"}) {
      EXPECT_EQ(compare(add_up, {waves({5, 3})}, mesh, {cut}), "") << cut;
    }
  });
}

// It stays plain, so that who else sees its memory sees the write. A graph would be lost there.
TEST(FactoryScope, ANumberThatOthersSeeIsWrittenWhereItIs) {
  for_each_world({2}, [](int64_t n) {
    auto whole = waves({5, 3});
    auto loss = lay_out(whole, init_device_mesh(at::kCPU, {n}), {Shard(0)}).requires_grad_().sum();
    auto totals = torch::zeros({2}, at::kDouble), total = totals[0];
    auto text = error_text<c10::Error>([&] { total += loss; });
    EXPECT_EQ(text,
              "[aten::add_.Tensor] argument \"self\" is a plain tensor of shape [], and a distributed result cannot be "
              "written into "
              "it. Distribute it first, or call full_tensor on the others.");
    EXPECT_EQ(totals.sum().item<double>(), 0);
    total += loss.detach();
    EXPECT_NEAR(totals.sum().item<double>(), whole.sum().item<double>(), 1e-12);
  });
}

TEST(FactoryScope, PlainTensorsOfTheCallersStayErrors) {
  for_each_world({2}, [](int64_t n) {
    auto x = lay_out(waves({5, 3}), init_device_mesh(at::kCPU, {n}), {Shard(0)});
    auto plain = waves({5, 3});
    torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(3, 1).add_zero_attn(true));
    for (auto& p : attention->parameters()) p.set_data(lay_out(p.detach(), mesh_of(x), {Replicate()}));
    auto y = x.unsqueeze(1).to(at::kFloat), mask = at::zeros({5, 5}) > 1;
    for (auto& call : std::vector<std::function<void()>>{
             [&] { x + at::ones({5, 3}); },
             [&] { at::pad_sequence({x, plain}); },
             [&] { at::cosine_similarity(x, plain); },
             [&] { at::quantile(x, at::tensor({0.5, 0.25}, at::kDouble)); },
             [&] { attention->forward(y, y, y, {}, true, mask); },
         }) {
      auto text = error_text<c10::Error>(call);
      EXPECT_NE(text.find("got mixed torch.Tensor and DTensor"), text.npos) << text;
    }
  });
}

TEST(FactoryScope, TheScopeEndsWithTheCall) {
  for_each_world({2}, [](int64_t n) {
    auto x = lay_out(waves({5}), init_device_mesh(at::kCPU, {n}), {Shard(0)});
    EXPECT_TRUE(is_dtensor(at::vander(x, 3)));
    EXPECT_FALSE(is_dtensor(torch::zeros({3})));
    EXPECT_THROW(at::vander(x.reshape({5, 1}), 3), c10::Error);
    EXPECT_FALSE(is_dtensor(torch::rand({3})));
    EXPECT_FALSE(is_dtensor(at::vander(waves({5}), 3)));
  });
}

// Rows to pick by a plain list are compared between the ranks; a simulation has one list for all.
TEST(FactoryScope, RowsToPickAreTheSameOnAllRanks) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = lay_out(waves({5, 3}), init_device_mesh(at::kCPU, {n}), {Shard(0)});
    auto order = at::tensor({4, 0, 2}, at::kLong);
    EXPECT_EQ(difference(full_tensor(x.index_select(0, order)), waves({5, 3}).index_select(0, order)), "");
  });
}

TEST(FromNothing, DifferentRowsToPickAreAnErrorOnAllRanks) {
  if (!process_world()) GTEST_SKIP() << "a simulation has one list for all ranks";
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto x = lay_out(waves({5, 3}), mesh, {Shard(0)});
    auto order = at::tensor({process_world()->hosted()[0], int64_t(0), int64_t(2)}, at::kLong);
    EXPECT_EQ(error_text<c10::ValueError>([&] { x.index_select(0, order); }),
              "[aten::index_select] a plain tensor of shape [3] differs between the ranks of " + mesh.text() +
                  ". Distribute it with distribute_tensor or from_local.");
  });
}

}  // namespace
}  // namespace intarsia::dispatch_factory_scope_test
