// The losses of torch::nn with every reduction, on a batch that is cut.

#include "tests/ops/module_table.h"

namespace intarsia::ops_criteria_test {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

const char* kMean = "reduce";  // of numbers, by the sums of a weighted mean

Input rows(std::vector<int64_t> shape, double step = 0.7) { return {waves(std::move(shape), step)}; }
Input share(std::vector<int64_t> shape) { return {waves(std::move(shape), 1.9).sigmoid(), 0, false}; }
Input probability(std::vector<int64_t> shape) { return {waves(std::move(shape), 1.3).sigmoid()}; }
Input signs(std::vector<int64_t> shape) { return {waves(std::move(shape), 2.3).sign(), 0, false}; }
Input classes(int64_t below, std::vector<int64_t> shape) {
  return {(at::arange(c10::multiply_integers(shape)) * 3 % below).reshape(shape)};
}

// The same loss with all three reductions.
template <class Holder, class Options>
void add(std::vector<ModuleCase>& cases, const std::string& name, Options options, const std::vector<Input>& inputs,
         const std::string& mean_moves = "") {
  auto with = [](Options o, auto reduction) { return [=] { return net(Holder(Options(o).reduction(reduction))); }; };
  cases.push_back({name + " none", with(options, torch::kNone), inputs});
  cases.push_back({name + " mean", with(options, torch::kMean), inputs, mean_moves});
  cases.push_back({name + " sum", with(options, torch::kSum), inputs});
}

TEST(Criteria, OfTwoTensors) {
  auto x = rows({5, 4}), y = rows({5, 4}, 1.1);
  std::vector<ModuleCase> cases;
  add<nn::L1Loss>(cases, "L1Loss", nn::L1LossOptions(), {x, y});
  add<nn::MSELoss>(cases, "MSELoss", nn::MSELossOptions(), {x, y});
  add<nn::SmoothL1Loss>(cases, "SmoothL1Loss", nn::SmoothL1LossOptions().beta(0.6), {x, y});
  add<nn::HuberLoss>(cases, "HuberLoss", nn::HuberLossOptions().delta(0.6), {x, y});
  add<nn::KLDivLoss>(cases, "KLDivLoss", nn::KLDivLossOptions(), {x, share({5, 4})});
  add<nn::KLDivLoss>(cases, "KLDivLoss of logs", nn::KLDivLossOptions().log_target(true), {x, y});
  cases.push_back({"KLDivLoss batchmean",
                   [] { return net(nn::KLDivLoss(nn::KLDivLossOptions().reduction(torch::kBatchMean))); },
                   {x, share({5, 4})}});
  add<nn::BCELoss>(cases, "BCELoss", nn::BCELossOptions(), {probability({5, 4}), share({5, 4})});
  add<nn::BCEWithLogitsLoss>(cases, "BCEWithLogitsLoss", nn::BCEWithLogitsLossOptions(), {x, share({5, 4})});
  add<nn::PoissonNLLLoss>(cases, "PoissonNLLLoss", nn::PoissonNLLLossOptions(), {x, share({5, 4})});
  add<nn::PoissonNLLLoss>(cases, "PoissonNLLLoss full", nn::PoissonNLLLossOptions().log_input(false).full(true),
                          {probability({5, 4}), {waves({5, 4}, 1.9).abs() * 3, 0, false}});
  add<nn::SoftMarginLoss>(cases, "SoftMarginLoss", nn::SoftMarginLossOptions(), {x, signs({5, 4})});
  add<nn::HingeEmbeddingLoss>(cases, "HingeEmbeddingLoss", nn::HingeEmbeddingLossOptions().margin(0.8),
                              {x, signs({5, 4})});
  add<nn::MultiLabelSoftMarginLoss>(cases, "MultiLabelSoftMarginLoss", nn::MultiLabelSoftMarginLossOptions(),
                                    {x, share({5, 4})});
  check(cases);
}

TEST(Criteria, OfClasses) {
  auto x = rows({5, 4}), image = rows({5, 4, 2, 3});
  auto weight = at::tensor({0.3, 1.0, 0.6, 2.0}, at::kDouble);
  auto y = classes(4, {5}), pixels = classes(4, {5, 2, 3});
  std::vector<ModuleCase> cases;
  add<nn::NLLLoss>(cases, "NLLLoss", nn::NLLLossOptions().ignore_index(1), {x, y}, kMean);
  add<nn::NLLLoss>(cases, "NLLLoss 2d", nn::NLLLossOptions(), {image, pixels}, kMean);
  add<nn::CrossEntropyLoss>(cases, "CrossEntropyLoss", nn::CrossEntropyLossOptions(), {x, y}, kMean);
  add<nn::CrossEntropyLoss>(cases, "CrossEntropyLoss smoothed",
                            nn::CrossEntropyLossOptions().label_smoothing(0.2).ignore_index(1), {x, y}, kMean);
  add<nn::CrossEntropyLoss>(cases, "CrossEntropyLoss 2d", nn::CrossEntropyLossOptions().label_smoothing(0.1),
                            {image, pixels}, kMean);
  add<nn::CrossEntropyLoss>(cases, "CrossEntropyLoss of shares", nn::CrossEntropyLossOptions(), {x, share({5, 4})});
  for (int64_t reduction : {0, 1, 2}) {
    auto name = " with weights, reduction " + std::to_string(reduction);
    Input w{weight, -1, false};
    auto moves = reduction == at::Reduction::Mean ? kMean : "";
    cases.push_back({"cross_entropy" + name,
                     function([=](auto& t) { return at::cross_entropy_loss(t[0], t[1], t[2], reduction); }),
                     {x, y, w},
                     moves});
    cases.push_back({"cross_entropy smoothed" + name,
                     function([=](auto& t) { return at::cross_entropy_loss(t[0], t[1], t[2], reduction, 2, 0.3); }),
                     {x, y, w},
                     moves});
    cases.push_back({"cross_entropy 2d smoothed" + name,
                     function([=](auto& t) { return at::cross_entropy_loss(t[0], t[1], t[2], reduction, 2, 0.3); }),
                     {image, pixels, w},
                     moves});
    cases.push_back(
        {"bce_with_logits" + name,
         function([=](auto& t) { return at::binary_cross_entropy_with_logits(t[0], t[1], t[2], t[2] * 2, reduction); }),
         {x, share({5, 4}), w}});
    cases.push_back({"bce" + name,
                     function([=](auto& t) { return at::binary_cross_entropy(t[0], t[1], t[2], reduction); }),
                     {probability({5, 4}), share({5, 4}), w}});
    for (int64_t p : {1, 2}) {
      cases.push_back({"multi_margin p" + std::to_string(p) + name,
                       function([=](auto& t) { return at::multi_margin_loss(t[0], t[1], p, 0.7, t[2], reduction); }),
                       {x, y, w}});
    }
    cases.push_back({"multilabel soft margin" + name,
                     function([=](auto& t) {
                       auto loss = F::MultilabelSoftMarginLossFuncOptions().weight(t[2]);
                       if (reduction == at::Reduction::None) loss.reduction(torch::kNone);
                       if (reduction == at::Reduction::Sum) loss.reduction(torch::kSum);
                       return F::multilabel_soft_margin_loss(t[0], t[1], loss);
                     }),
                     {x, share({5, 4}), w}});
  }
  auto labels =
      at::tensor({3, 0, -1, 1, 2, -1, 0, 0, -1, 3, 2, 1, 0, 3, 2, -1, 1, -1, 0, 0}, at::kLong).reshape({5, 4});
  add<nn::MultiLabelMarginLoss>(cases, "MultiLabelMarginLoss", nn::MultiLabelMarginLossOptions(), {x, {labels}});
  add<nn::MultiMarginLoss>(cases, "MultiMarginLoss", nn::MultiMarginLossOptions(), {x, y});
  check(cases);
}

TEST(Criteria, OfDistances) {
  auto x = rows({5, 4}), y = rows({5, 4}, 1.1), z = rows({5, 4}, 1.9);
  std::vector<ModuleCase> cases;
  add<nn::CosineEmbeddingLoss>(cases, "CosineEmbeddingLoss", nn::CosineEmbeddingLossOptions().margin(0.3),
                               {x, y, signs({5})});
  add<nn::MarginRankingLoss>(cases, "MarginRankingLoss", nn::MarginRankingLossOptions().margin(0.3),
                             {rows({5}), rows({5}, 1.1), signs({5})});
  add<nn::TripletMarginLoss>(cases, "TripletMarginLoss", nn::TripletMarginLossOptions(), {x, y, z});
  add<nn::TripletMarginLoss>(cases, "TripletMarginLoss swap", nn::TripletMarginLossOptions().p(1).swap(true),
                             {x, y, z});
  add<nn::TripletMarginWithDistanceLoss>(cases, "TripletMarginWithDistanceLoss",
                                         nn::TripletMarginWithDistanceLossOptions().swap(true), {x, y, z});
  check(cases);
}

TEST(Criteria, OfAlignments) {
  std::vector<ModuleCase> cases;
  Input scores{waves({6, 5, 4}).log_softmax(2), 1},
      targets{at::tensor({1, 2, 3, 1, 1, 2, 3, 3, 2, 1}, at::kLong).reshape({5, 2})};
  Input lengths{at::tensor({6, 5, 6, 4, 6}, at::kLong), -1}, counts{at::tensor({2, 1, 2, 1, 2}, at::kLong), -1};
  add<nn::CTCLoss>(cases, "CTCLoss", nn::CTCLossOptions(), {scores, targets, lengths, counts}, "");
  add<nn::CTCLoss>(cases, "CTCLoss zero_infinity", nn::CTCLossOptions().zero_infinity(true),
                   {scores, targets, lengths, counts}, "");
  check(cases);
}

}  // namespace
}  // namespace intarsia::ops_criteria_test
