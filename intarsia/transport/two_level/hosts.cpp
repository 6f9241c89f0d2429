#include "intarsia/transport/two_level/hosts.h"

#include <algorithm>
#include <set>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/launch/rendezvous.h"

namespace intarsia {
namespace {

c10::intrusive_ptr<c10d::PrefixStore> part_of(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

// Empty if the members of some host are not neighbours.
std::vector<int64_t> find_begins(const std::vector<std::string>& names) {
  std::vector<int64_t> begins;
  std::set<std::string> seen;
  for (size_t j = 0; j < names.size(); ++j) {
    if (j && names[j] == names[j - 1]) continue;
    if (!seen.insert(names[j]).second) return {};
    begins.push_back(j);
  }
  begins.push_back(names.size());
  return begins;
}

}  // namespace

int64_t Hosts::of(int64_t position) const {
  return std::upper_bound(begins.begin(), begins.end(), position) - begins.begin() - 1;
}

std::optional<Hosts> find_hosts(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout) {
  auto names = exchange_texts("make_group", *part_of(store, "names"), rank, ranks, host_of(rank).text(), timeout);
  Hosts hosts{find_begins(names), 0, {}};
  auto members = static_cast<int64_t>(ranks.size());
  if (hosts.begins.size() < 3 || hosts.count() == members) return std::nullopt;
  hosts.own = hosts.of(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  std::vector<int64_t> own(ranks.begin() + hosts.begins[hosts.own], ranks.begin() + hosts.begins[hosts.own + 1]);
  if (own.size() > 1) hosts.trial = try_to_share(part_of(store, std::to_string(hosts.own)), rank, own, timeout);
  bool shares = own.size() == 1 || hosts.trial.segment;
  auto answers = exchange_texts("make_group", *part_of(store, "tried"), rank, ranks, shares ? "yes" : "no", timeout);
  if (std::find(answers.begin(), answers.end(), "no") != answers.end()) return std::nullopt;
  return hosts;
}

}  // namespace intarsia
