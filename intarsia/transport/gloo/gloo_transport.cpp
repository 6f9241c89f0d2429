#include "intarsia/transport/gloo/gloo_transport.h"

#include <numeric>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/launch/rendezvous.h"
#include "intarsia/launch/secret.h"
#include "intarsia/transport/gloo/collective_group.h"
#include "intarsia/transport/gloo/direct_group.h"
#include "intarsia/transport/gloo/gloo_connector.h"
#include "intarsia/transport/gloo/gloo_process_groups.h"
#include "intarsia/transport/gloo/peer_auth.h"

namespace intarsia {

GlooTransport::GlooTransport(std::string interface, bool direct) : interface_(std::move(interface)), direct_(direct) {}

GlooTransport::~GlooTransport() = default;

Connection GlooTransport::connect(const LineRequest& line) const {
  auto members = connect_members(line);
  bool direct = !members->backend || (direct_ && members->gloo);
  // Other backends carry part of their ranks only by messages, too.
  if (!direct && members->whole()) return {make_collective_group(std::move(members))};
  return {make_direct_group(std::move(members))};
}

SharedMembers GlooTransport::connect_members(const LineRequest& line, bool levels) const {
  auto peers = line.peers;
  if (peers.empty()) peers.resize(line.size()), std::iota(peers.begin(), peers.end(), 0);
  bool alone = line.size() == 1 && !line.group;
  auto backend = alone ? nullptr : line.group ? line.group : make_group(line);
  auto carrier = levels ? kTwoLevels : backend ? backend->getBackendName() : "gloo";
  auto watched = line.watched(carrier, backend ? backend->getGroupUid() : "", levels);
  return std::make_shared<const Members>(std::move(backend), std::move(peers), std::move(watched));
}

c10::intrusive_ptr<c10d::Backend> GlooTransport::make_group(const LineRequest& line) const {
  GlooConnector connector(*line.store, line.rank(), line.ranks, line.timeout);
  auto connect = [maker = maker(line.timeout), store = line.store, position = static_cast<int>(line.position),
                  size = static_cast<int>(line.size())] { return maker->make(store, position, size); };
  auto failures = line.failure_board(line.name);
  auto backend = connector.run(std::move(connect), failures);
  auto secret = is_loopback(interface_) ? "" : job_secret();  // no stranger reaches loopback
  if (!secret.empty()) check_members(*backend, secret, line.name, line.ranks, line.position, line.timeout);
  return backend;
}

std::shared_ptr<GlooMaker> GlooTransport::maker(std::chrono::milliseconds timeout) const {
  std::lock_guard lock(mutex_);
  if (!maker_) maker_ = std::make_shared<GlooMaker>(interface_, timeout);
  return maker_;
}

}  // namespace intarsia
