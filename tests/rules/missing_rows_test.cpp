// Looks for rows that would be right but are not in the rules. Prints them; run it with INTARSIA_MISSING_ROWS=1.

#include <cstdlib>

#include <gtest/gtest.h>

#include "intarsia/rules/builders.h"
#include "tests/rules/harness.h"
#include "tests/support/dealer.h"

namespace intarsia {
namespace {

std::vector<Placement> placements_for(const at::Tensor& tensor, bool output) {
  std::vector<Placement> all = {R};
  if (!tensor.defined()) return all;
  for (int64_t d = 0; d < tensor.dim(); ++d) all.push_back(S(d));
  for (auto& p : {P_sum, P_avg, P_max, P_min}) {
    if (can_hold(p, tensor.scalar_type())) all.push_back(p);
  }
  return all;
}

// Calls `body` with every way to pick one placement per list.
void for_each_pick(const std::vector<std::vector<Placement>>& lists, const std::function<void(const Placements&)>& body) {
  std::vector<size_t> at(lists.size(), 0);
  while (true) {
    Placements picked;
    for (size_t i = 0; i < lists.size(); ++i) picked.push_back(lists[i][at[i]]);
    body(picked);
    size_t i = lists.size();
    while (i > 0 && ++at[i - 1] == lists[i - 1].size()) at[--i] = 0;
    if (i == 0) return;
  }
}

bool is_right(const SampleCall& call, const Rule& rule, const Row& row, bool values) {
  for (int64_t n : {2, 3}) {
    for (int draw = 0; draw < 3; ++draw) {
      Trial trial{{row}, {n}};
      if (!possible(call, rule, trial) || !try_rows(call, rule, trial, values).empty()) return false;
    }
  }
  return true;
}

void report(const SampleCall& call, const Rule& rule, bool values) {
  std::vector<std::vector<Placement>> inputs;
  for (auto& tensor : call.tensors()) inputs.push_back(placements_for(tensor, false));
  auto known = rule.rows(call.seen());
  auto plain_rule = rule;
  plain_rule.size_args.clear();
  for_each_pick(inputs, [&](const Placements& in) {
    if (std::all_of(in.begin(), in.end(), is_replicate)) return;
    for (auto& row : known) {
      if (row.in == in) return;
    }
    for (auto& out : placements_for(call.expected()[0], true)) {
      Row row{in, Placements(call.expected().size(), out)};
      if (!is_right(call, rule, row, values)) continue;
      std::cout << call.text() << "  " << str(row) << "\n";
      return;  // the first one says most: R, then cuts, then pending
    }
  });
}

TEST(MissingRows, ArePrintedOnDemand) {
  if (!std::getenv("INTARSIA_MISSING_ROWS")) return;
  for (auto& sample : samples()) {
    SampleCall call(sample, at::kDouble);
    if (!call.runs() || call.tensors().size() > 3 || call.expected().empty()) continue;
    report(call, rule_table().rules().at(sample.op), sample.values);
  }
}

}  // namespace
}  // namespace intarsia
