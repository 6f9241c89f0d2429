// The samples with dims made empty or shorter, through dispatch: where the plain op answers, so do we, with its values
// and gradients; where it refuses, so do we, on every rank.

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/rules/compare_calls.h"
#include "tests/support/dealer.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::rules_sizes_test {
namespace {

// A dim of one of a sample's tensors.
struct Spot {
  size_t tensor;
  int64_t dim;
  auto operator<=>(const Spot&) const = default;
};
using Spots = std::set<Spot>;

// All dims of one size; unless `together`, also each by itself and every two of them.
std::vector<Spots> spots_by_size(const SampleCall& sample, bool together) {
  std::map<int64_t, Spots> of_size;
  for (size_t i = 0; i < sample.tensors().size(); ++i) {
    auto& tensor = sample.tensors()[i];
    for (int64_t d = 0; tensor.defined() && d < tensor.dim(); ++d) of_size[tensor.size(d)].insert({i, d});
  }
  of_size.erase(0);
  std::set<Spots> found;
  for (auto& [size, spots] : of_size) {
    found.insert(spots);
    for (auto& one : spots) {
      for (auto& other : spots) {
        if (!together) found.insert(Spots{one, other});
      }
    }
  }
  return {found.begin(), found.end()};
}

// Numbers among the arguments that name the size which has changed (view, expand, the shape that layer_norm is over).
c10::IValue with_size(const c10::IValue& value, int64_t size, int64_t other) {
  if (!value.isIntList()) return value;
  auto numbers = value.toIntVector();
  std::replace(numbers.begin(), numbers.end(), size, other);
  return numbers;
}

// Each dim of each tensor alone, two of equal size, and all of one size, made empty or shorter by one; the numbers
// among the arguments as they were, or changed alike. Of ops that take on trust that their tensors fit together only
// the last.
std::vector<Sample> resized(const Sample& sample, const SampleCall& plain, bool empty) {
  std::vector<Sample> found;
  for (auto& spots : spots_by_size(plain, is_inner(sample.op))) {
    auto size = plain.tensors()[spots.begin()->tensor].size(spots.begin()->dim), other = empty ? 0 : size - 1;
    auto tensors = plain.tensors();
    for (auto& spot : spots) tensors[spot.tensor] = tensors[spot.tensor].narrow(spot.dim, 0, other).clone();
    auto one = sample;
    one.args = plain.with_tensors(tensors);
    found.push_back(one);
    bool named = false;
    for (auto& value : one.args) {
      auto fitted = with_size(value, size, other);
      named = named || (value.isIntList() && value.toIntVector() != fitted.toIntVector());
      value = fitted;
    }
    if (named) found.push_back(one);
  }
  return found;
}

// All tensors cut alike, where they have that dim.
Placements alike(const SampleCall& sample, const Placement& placement) {
  Placements placements;
  for (auto& tensor : sample.tensors()) {
    placements.push_back(tensor.defined() && cut_dim(placement) < tensor.dim() ? placement : Placement(Replicate()));
  }
  return placements;
}

std::vector<Placement> cuts_for(const SampleCall& sample) {
  std::vector<Placement> cuts = {Replicate()};
  int64_t ndim = 0;
  for (auto& tensor : sample.tensors()) ndim = std::max(ndim, tensor.defined() ? tensor.dim() : 0);
  for (int64_t d = 0; d < ndim; ++d) cuts.push_back(Shard(d));
  return cuts;
}

void try_answered(const Sample& sample, const SampleCall& plain, int64_t& tried) {
  auto& rule = rule_table().rules().at(sample.op);
  auto attempt = [&](const Placements& in, int64_t n) {
    SCOPED_TRACE(plain.text() + "  " + str(in) + " on " + std::to_string(n));
    EXPECT_NO_THROW(compare(plain, init_device_mesh(at::kCPU, {n}), in, sample.values, sample.gradient));
    ++tried;
  };
  for_each_world({2, 3, 4}, [&](int64_t n) {
    if (n == 3 && !process_world()) return;
    for (auto& cut : cuts_for(plain)) attempt(alike(plain, cut), n);
    for (auto& row : all_rows(plain, rule)) {
      if (possible(plain, rule, {{row}, {n}})) attempt(row.in, n);
    }
  });
}

void try_refused(const SampleCall& plain, int64_t& tried) {
  auto error_of = [&](const std::vector<at::Tensor>& tensors) {
    return error_text<c10::Error>([&] { call(plain, tensors); });
  };
  auto expected = error_of(plain.tensors());
  for_each_world({2, 3, 4}, [&](int64_t n) {
    if (n == 3 && !process_world()) return;
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& cut : cuts_for(plain)) {
      auto actual = error_of(laid_out(plain, mesh, alike(plain, cut)));
      auto where = plain.text() + " " + str(cut) + " on " + std::to_string(n);
      EXPECT_NE(actual, "no error") << where << "\n" << expected;
      EXPECT_EQ(actual.find("(Only"), std::string::npos) << where << "\n" << actual;
      ++tried;
    }
  });
}

// Fresh memory is NaN, or the largest integer; ops that cannot be deterministic do not warn.
struct MemoryIsMarked : c10::WarningHandler {
  c10::WarningUtils::WarningHandlerGuard silence{this};
  void process(const c10::Warning&) override {}
  MemoryIsMarked() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~MemoryIsMarked() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

// Whether the plain op leaves some of its result as the memory was, as multilabel_margin_loss does for no rows.
bool leaves_memory_unset(const SampleCall& plain) {
  [[maybe_unused]] MemoryIsMarked marked;
  auto outputs = call(plain, plain.tensors());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!difference(outputs[i].detach(), plain.expected()[i]).empty()) return true;
  }
  return false;
}

// Kernels that read memory which is not there if what they get does not fit together. (Backward ops are called for
// gradients.)
bool reads_on_trust(const std::string& op) {
  static const char* const kParts[] = {"backward",     "_unsafe", "_reshape_alias", "flash_attention",    "lu_unpack",
                                       "_weight_norm", "_pdist",  "_ctc_loss",      "fractional_max_pool"};
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](auto* part) { return op.find(part) != std::string::npos; });
}

void try_resized(bool empty) {
  int64_t answered = 0, refused = 0;
  std::set<std::string> unset;
  for (auto& sample : samples()) {
    if (reads_on_trust(sample.op)) continue;
    for (auto dtype : {at::kDouble, at::kLong}) {
      SampleCall whole(sample, dtype);
      if (!whole.runs()) continue;
      for (auto& one : resized(sample, whole, empty)) {
        SampleCall plain(one, dtype);
        if (plain.runs() && one.values && leaves_memory_unset(plain)) {
          one.values = false;
          unset.insert(one.op);
        }
        if (plain.runs()) try_answered(one, plain, answered);
        if (!plain.runs() && !is_inner(one.op)) try_refused(plain, refused);
      }
      break;
    }
  }
  std::cout << answered << " calls compared, " << refused << " refused, results left unset by " << c10::Join(" ", unset)
            << "\n";
}

TEST(Sizes, EmptyDimsAreAnsweredOrRefusedAsByThePlainOp) { try_resized(true); }
TEST(Sizes, DimsThatDoNotFitAreAnsweredOrRefusedAsByThePlainOp) { try_resized(false); }

}  // namespace
}  // namespace intarsia::rules_sizes_test
