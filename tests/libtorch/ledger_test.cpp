#include "intarsia/libtorch/ledger.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/libtorch/interposition.h"
#include "intarsia/libtorch/variable_hooks.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"

namespace intarsia::libtorch_ledger_test {
namespace {

std::string nothing() { return ""; }
std::string something() { return "it has seven"; }

TEST(Ledger, EveryAssumptionHoldsInThisLibTorch) {
  for (auto& entry : ledger()) {
    if (std::string(entry.name) == "dispatch_keys") continue;  // ours are registered by now: start() has asked before
    EXPECT_EQ(entry.broken(), "") << entry.name;
  }
}

TEST(Ledger, ABrokenAssumptionIsNamedWithWhatWasFoundAndWhatItAffects) {
  std::vector<Assumption> entries = {{"keys", "has one key", "every op", "2.13", &something},
                                     {"hooks", "has hooks", "some ops", "2.13", &nothing}};
  EXPECT_EQ(error_text<c10::Error>([&] { check_ledger(entries); }),
            c10::str("[start] LibTorch ", TORCH_VERSION,
                     " works in another way inside than the versions this library was tried with:\n",
                     "  keys: we count on a LibTorch that has one key, but it has seven. Affected: every op.\n",
                     "Use one of these versions, or see docs/libtorch.md."));
}

TEST(Ledger, OurOwnKernelsAreSeenOnBorrowedKeys) {
  auto keys = std::find_if(ledger().begin(), ledger().end(),
                           [](auto& entry) { return std::string(entry.name) == "dispatch_keys"; });
  ASSERT_NE(keys, ledger().end());
  auto world = simulate(2);
  distribute_tensor(torch::ones({4}), init_device_mesh(torch::kCPU, {2}), {Shard(0)});
  EXPECT_NE(keys->broken().find("PrivateUse3"), std::string::npos);  // so it would see those of LibTorch
}

TEST(Ledger, EveryEntryStandsInThePageAboutLibTorch) {
  std::ifstream file(INTARSIA_SOURCE_DIR "/docs/libtorch.md");
  std::stringstream page;
  page << file.rdbuf();
  for (auto& entry : ledger()) {
    auto row = c10::str("| `", entry.name, "` | ", entry.assumes, " | ", entry.serves, " | ", entry.seen, " |");
    EXPECT_NE(page.str().find(row), std::string::npos) << row;
  }
}

TEST(Interposition, AFunctionThatLibTorchLacksIsAnError) {
  EXPECT_FALSE(is_first_definition("no_such_function"));
  EXPECT_ANY_THROW(next_definition("no_such_function"));
}

TEST(VariableHooks, TheProbeLeavesSetDataAsItWas) {
  EXPECT_TRUE(set_data_can_be_replaced());
  auto tensor = torch::zeros({2});
  tensor.set_data(torch::ones({3}));
  EXPECT_TRUE(torch::equal(tensor, torch::ones({3})));
}

}  // namespace
}  // namespace intarsia::libtorch_ledger_test
