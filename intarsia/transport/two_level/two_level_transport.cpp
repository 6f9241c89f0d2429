#include "intarsia/transport/two_level/two_level_transport.h"

#include <optional>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/transport/two_level/hosts.h"
#include "intarsia/transport/two_level/two_level_group.h"

namespace intarsia {
namespace {

constexpr int64_t kFewestRanks = 3;  // two hosts, and one of them has two ranks

class TwoLevelTransport final : public Transport {
 public:
  explicit TwoLevelTransport(std::shared_ptr<const GlooTransport> gloo) : gloo_(std::move(gloo)) {}

  Connection connect(const LineRequest& line) const override {
    std::optional<Hosts> hosts;
    if (line.size() >= kFewestRanks) {
      hosts = find_hosts(c10::make_intrusive<c10d::PrefixStore>("hosts", line.store), line.rank(), line.ranks,
                         line.timeout);
    }
    if (!hosts) return {nullptr, "are not on several hosts, with several ranks on one of them"};
    auto members = gloo_->connect_members(line, true);
    std::shared_ptr<const HostGroup> inside;
    auto begin = hosts->begins[hosts->own], end = hosts->begins[hosts->own + 1];
    if (end - begin > 1) {
      auto watched = std::make_shared<WatchedLine>(members->line, begin, end, "shm");
      inside = make_shm_group({std::move(watched), std::move(hosts->trial.segment), std::move(hosts->trial.processes)});
    }
    return {make_two_level_group(Levels(std::move(members), *hosts, std::move(inside)))};
  }

 private:
  std::shared_ptr<const GlooTransport> gloo_;
};

}  // namespace

std::shared_ptr<const Transport> make_two_level_transport(std::shared_ptr<const GlooTransport> gloo) {
  return std::make_shared<TwoLevelTransport>(std::move(gloo));
}

}  // namespace intarsia
