#include "intarsia/transport/shm/shm_transport.h"

#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/transport/shm/shm_group.h"

namespace intarsia {
namespace {

class ShmTransport final : public Transport {
 public:
  Connection connect(const LineRequest& line) const override {
    auto store = c10::make_intrusive<c10d::PrefixStore>("shm", line.store);
    auto trial = try_to_share(store, line.rank(), line.ranks, line.timeout);
    if (!trial.segment) return {nullptr, "do not share memory: " + trial.why_not};
    return {make_shm_group({line.watched("shm", line.instance), std::move(trial.segment), std::move(trial.processes)})};
  }
};

}  // namespace

std::shared_ptr<const Transport> make_shm_transport() { return std::make_shared<ShmTransport>(); }

}  // namespace intarsia
