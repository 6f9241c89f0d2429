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
  bool direct = !members.backend || (direct_ && members.gloo());
  // Other backends can also carry a part of their ranks, but only by messages.
  if (!direct && members.whole()) return {make_collective_group(std::move(members))};
  return {make_direct_group(std::make_shared<DirectLine>(std::move(members)))};
}

Members GlooTransport::connect_members(const LineRequest& line) const {
  auto peers = line.peers;
  if (peers.empty()) peers.resize(line.size()), std::iota(peers.begin(), peers.end(), 0);
  if (line.size() == 1 && !line.group) return {nullptr, line.ranks, std::move(peers), 0, line.timeout};
  auto backend = line.group ? line.group : make_group(line);
  auto uid = backend->getGroupUid();
  return {std::move(backend),        line.ranks, std::move(peers), line.position, line.timeout, line.failure_board(uid),
          line.collective_board(uid)};
}

c10::intrusive_ptr<c10d::Backend> GlooTransport::make_group(const LineRequest& line) const {
  GlooConnector connector(*line.store, line.rank(), line.ranks, line.timeout);
  auto connect = [maker = maker(line.timeout), store = line.store, position = static_cast<int>(line.position),
                  size = static_cast<int>(line.size())] { return maker->make(store, position, size); };
  auto backend = connector.run(std::move(connect), line.failure_board(line.name).get());
  auto secret = is_loopback(interface_) ? "" : job_secret();  // strangers cannot reach loopback
  if (!secret.empty()) check_members(*backend, secret, line.name, line.ranks, line.position, line.timeout);
  return backend;
}

std::shared_ptr<GlooMaker> GlooTransport::maker(std::chrono::milliseconds timeout) const {
  std::lock_guard lock(mutex_);
  if (!maker_) maker_ = std::make_shared<GlooMaker>(interface_, timeout);
  return maker_;
}

}  // namespace intarsia
