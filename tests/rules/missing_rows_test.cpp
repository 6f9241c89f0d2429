// Looks for rows that would be right but are not in the rules. Prints them; run it with INTARSIA_MISSING_ROWS=1.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "intarsia/rules/builders.h"
#include "tests/rules/harness.h"
#include "tests/support/dealer.h"

namespace intarsia::rules_missing_rows_test {
namespace {

std::vector<Placement> placements_for(const at::Tensor& tensor, bool output) {
  std::vector<Placement> all = {R};
  if (!tensor.defined()) return all;
  for (int64_t d = 0; d < tensor.dim(); ++d) all.push_back(S(d));
  if (!output && !tensor.is_floating_point())
    return all;  // a share of an index leads anywhere, and some kernels do not look
  for (auto& p : {P_sum, P_avg, P_max, P_min}) {
    if (can_hold(p, tensor.scalar_type())) all.push_back(p);
  }
  return all;
}

// Calls `body` with every way to pick one placement per list.
void for_each_pick(const std::vector<std::vector<Placement>>& lists,
                   const std::function<void(const Placements&)>& body) {
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

// The same call with other values: what is right only for those of the sample (all of them above zero, none of them a
// half) is no row.
at::Tensor with_other_values(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return tensor;
  return at::where(at::rand_like(tensor) < 0.2, at::randint_like(tensor, -1, 2), at::randn_like(tensor) * 2);
}

Sample with_other_values(Sample sample) {
  for (auto& arg : sample.args) {
    if (arg.isTensor()) arg = with_other_values(arg.toTensor());
    if (!arg.isTensorList()) continue;
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : arg.toTensorList()) tensors.push_back(with_other_values(tensor));
    arg = tensors;
  }
  return sample;
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

std::vector<Row> missing_rows(const Sample& sample, const SampleCall& call, const Rule& rule) {
  std::vector<Row> missing;
  std::vector<SampleCall> others;
  for (int i = 0; i < 4; ++i) {
    SampleCall other(with_other_values(sample), at::kDouble);
    if (other.runs()) others.push_back(std::move(other));
  }
  auto holds = [&](const Row& row) {
    return is_right(call, rule, row, sample.values) && std::all_of(others.begin(), others.end(), [&](auto& other) {
             return is_right(other, rule, row, sample.values);
           });
  };
  std::vector<std::vector<Placement>> inputs;
  for (auto& tensor : call.tensors()) inputs.push_back(placements_for(tensor, false));
  auto known = rule.rows(call.seen());
  for_each_pick(inputs, [&](const Placements& in) {
    if (std::all_of(in.begin(), in.end(), is_replicate)) return;
    for (auto& row : known) {
      if (row.in == in) return;
    }
    for (auto& out : placements_for(call.expected()[0], true)) {
      Row row{in, Placements(call.expected().size(), out)};
      if (!holds(row)) continue;
      missing.push_back(row);
      return;  // the first one says most: R, then cuts, then pending
    }
  });
  return missing;
}

// Kernels of backward passes trust that their tensors fit together, and these may not: what breaks is the child.
void in_a_child(const std::function<void()>& body, const std::string& name) {
  std::cout.flush();
  auto child = fork();
  if (child == 0) {
    body();
    std::cout.flush();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) std::cout << name << "  ended the search: " << strsignal(WTERMSIG(status)) << "\n";
}

void print_all() {
  for (auto& sample : samples()) {
    SampleCall call(sample, at::kDouble);
    if (!call.runs() || call.tensors().size() > 3 || call.expected().empty()) continue;
    auto print = [&] {
      for (auto& row : missing_rows(sample, call, rule_table().rules().at(sample.op)))
        std::cout << call.text() << "  " << str(row) << "\n";
    };
    in_a_child(print, call.text());
  }
}

TEST(MissingRows, OfARuleWithoutRowsAreThoseOfTheOp) {
  Sample sample{"aten::relu", {at::randn({4, 6}, at::kDouble)}};
  auto nothing = rows("nothing", [](const OpCall&) { return Rows(); });
  std::string found;
  for (auto& row : missing_rows(sample, SampleCall(sample, at::kDouble), nothing)) found += str(row) + "\n";
  EXPECT_EQ(found, "S(0) -> S(0)\nS(1) -> S(1)\nP(max) -> P(max)\nP(min) -> P(min)\n");
  if (std::getenv("INTARSIA_MISSING_ROWS")) print_all();
}

}  // namespace
}  // namespace intarsia::rules_missing_rows_test
