#include "intarsia/job/job_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/comm/collective.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/run_collective.h"
#include "intarsia/comm/trace.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/transport/transport.h"
#include "intarsia/watch/impatient_store.h"
#include "intarsia/watch/shared_store.h"

namespace intarsia {
namespace {

std::vector<int64_t> ranks_below(int64_t n) {
  std::vector<int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool all_equal(const MemberCounts& counts) { return std::equal(counts.begin() + 1, counts.end(), counts.begin()); }

}  // namespace

struct JobEngine::Entry {
  std::mutex making;
  std::shared_ptr<const Group> group;
  c10::intrusive_ptr<c10d::Backend> adopted;   // given by the user; other lines may run inside it
  c10::intrusive_ptr<c10d::Backend> fallback;  // the same, for ranks that no faster transport can carry
  std::string uid;                             // of the group that the line replaces; empty: none
};

JobEngine::JobEngine(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::Store> store,
                     std::chrono::milliseconds timeout, std::string name, std::string carriers, Transports transports,
                     std::shared_ptr<const Transport> over_groups)
    : Engine(size, {rank}),
      timeout_(timeout),
      name_(std::move(name)),
      carriers_(std::move(carriers)),
      over_groups_(std::move(over_groups)),
      replaces_gloo_(transports.empty() || transports[0] != over_groups_),
      transports_(std::move(transports)) {
  if (!store) return;
  using std::chrono::seconds;
  auto patience = std::clamp<std::chrono::milliseconds>(timeout_ / 2, seconds(2), seconds(10));
  store_ = connect_again(*store);  // the user may wait in the other one
  board_store_ = c10::make_intrusive<ImpatientStore>(store_, patience);
}

JobEngine::~JobEngine() = default;

std::string JobEngine::text() const {
  c10::intrusive_ptr<c10d::Backend> adopted;  // its name may be a call of Python: not under the lock
  {
    std::lock_guard lock(mutex_);
    auto everyone = groups_.find(ranks_below(size()));
    if (everyone != groups_.end()) adopted = everyone->second->adopted;
  }
  return c10::str("a job of ", size(), " ranks over ", adopted ? adopted->getBackendName() : carriers_);
}

std::string JobEngine::carrier(const Line& line) const {
  std::lock_guard lock(mutex_);
  auto known = carrier_of_.find(line.ranks[0]);
  return known == carrier_of_.end() ? carriers_ : known->second;
}

Wait JobEngine::all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op, bool later) const {
  auto call = collective_of(Collective::all_reduce, line, mine[0], op);
  call.counts = mine[0].numel();
  return group_of(line.ranks[0])->all_reduce(std::move(call), mine[0], result[0], later);
}

Wait JobEngine::all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const {
  auto call = collective_of(Collective::all_gather, line, mine[0]);
  call.counts = hash_of(counts[0]);
  call.all = all[0].numel();
  call.even = all_equal(counts[0]);
  return group_of(line.ranks[0])->all_gather(std::move(call), mine[0], all[0], counts[0]);
}

Wait JobEngine::all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                           const Counts& receive_counts) const {
  auto call = collective_of(Collective::all_to_all, line, send[0]);
  call.sends.assign(send_counts[0].begin(), send_counts[0].end());
  call.receives.assign(receive_counts[0].begin(), receive_counts[0].end());
  call.all = receive[0].numel();
  return group_of(line.ranks[0])->all_to_all(std::move(call), send[0], send_counts[0], receive[0], receive_counts[0]);
}

Wait JobEngine::reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                               ReduceOp op) const {
  auto call = collective_of(Collective::reduce_scatter, line, send[0], op);
  call.counts = hash_of(counts[0]);
  call.all = result[0].numel();
  call.even = all_equal(counts[0]);
  return group_of(line.ranks[0])->reduce_scatter(std::move(call), send[0], counts[0], result[0]);
}

Wait JobEngine::broadcast(const Line& line, const Shards& buffers, int64_t source) const {
  auto call = collective_of(Collective::broadcast, line, buffers[0]);
  call.counts = buffers[0].numel();
  call.source = line.ranks[0][source];
  return group_of(line.ranks[0])->broadcast(std::move(call), buffers[0], source);
}

void JobEngine::barrier() const {
  auto mine = at::zeros({1}, at::kByte), all = at::zeros({size()}, at::kByte);
  Line everyone{"world", size(), {ranks_below(size())}, {hosted()[0]}};
  CauseScope cause("barrier()", false);
  run_barrier(*this, everyone, [&] { return all_gather(everyone, {mine}, {all}, {MemberCounts(size(), 1)}); });
}

std::shared_ptr<const Group> JobEngine::group_of(const std::vector<int64_t>& ranks) const {
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    TORCH_CHECK(!closed_, "[finalize] the world was closed, but a mesh of it is still in use. Call finalize() last.");
    auto& known = groups_[ranks];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  // Making a group waits for its members, so only this line is locked.
  std::lock_guard lock(entry->making);
  if (!entry->group) {
    entry->group = make_named(ranks, *entry);
    std::lock_guard table(mutex_);
    carrier_of_[ranks] = entry->group->carrier();
  }
  return entry->group;
}

// Ranks that take no part may have ended because of another rank, and a store that does not answer belongs to a rank
// that has ended.
std::shared_ptr<const Group> JobEngine::make_named(const std::vector<int64_t>& ranks, const Entry& entry) const {
  try {
    return make_group(ranks, entry);
  } catch (const c10::DistError& error) {
    auto request = request_for(ranks);
    auto board = request.failure_board("");
    auto gone = board.gone();
    auto text = plain_text(error);
    TORCH_CHECK_WITH(DistBackendError, !gone || *gone == hosted()[0], "rank ", *gone, " is gone (and then: ", text,
                     "). See why it ended.");
    TORCH_CHECK_WITH(DistBackendError, !request.board_store || board.answers(),
                     "the store of the job does not answer: rank 0 is gone, if it served it, or the launcher is (",
                     text, "). See why it ended.");
    throw;
  }
}

LineRequest JobEngine::request_for(std::vector<int64_t> ranks, c10::intrusive_ptr<c10d::Backend> group) const {
  std::lock_guard lock(mutex_);
  int64_t position = std::find(ranks.begin(), ranks.end(), hosted()[0]) - ranks.begin();
  return {std::move(ranks), position, timeout_, "", store_, board_store_, std::move(group)};
}

std::shared_ptr<const Group> JobEngine::make_group(const std::vector<int64_t>& ranks, const Entry& entry) const {
  auto line = request_for(ranks, entry.fallback);
  if (line.size() == 1) return over_groups_->connect(line).group;
  if (!line.store) return group_inside_adopted(ranks);
  line.instance = entry.uid;
  line.name = c10::str("group/", name_, "/", name_of_ranks(ranks), entry.uid.empty() ? "" : "/of/" + entry.uid);
  line.store = c10::make_intrusive<c10d::PrefixStore>(line.name, c10::make_intrusive<SharedStore>(line.store));
  line.store->setTimeout(timeout_);
  Transports transports;
  {
    std::lock_guard lock(mutex_);
    transports = transports_;
  }
  std::string why_not;
  for (auto& transport : transports) {
    auto connection = transport->connect(line);
    if (connection.group) return connection.group;
    why_not = connection.why_not;
  }
  TORCH_CHECK_WITH(DistBackendError, false, "[make_group] the ranks ", c10::ArrayRef<int64_t>(ranks), " ", why_not,
                   ". Use the engine auto or gloo.");
}

std::shared_ptr<const Group> JobEngine::group_inside_adopted(const std::vector<int64_t>& ranks) const {
  auto line = request_for(ranks);
  std::unique_lock lock(mutex_);
  for (auto& [outer, entry] : groups_) {
    line.peers.clear();
    for (auto rank : ranks) {
      auto found = std::find(outer.begin(), outer.end(), rank);
      if (found != outer.end()) line.peers.push_back(found - outer.begin());
    }
    if (!entry->adopted || line.peers.size() != ranks.size()) continue;
    line.group = entry->adopted;
    lock.unlock();
    return over_groups_->connect(line).group;
  }
  TORCH_CHECK(false, "[mesh] no process group connects the ranks ", c10::ArrayRef<int64_t>(ranks),
              ", and without a store none can be made. Call init_from with a store, or pass a group of these ranks to "
              "mesh_from_group.");
}

bool JobEngine::reduces_in_place(const std::vector<int64_t>& ranks) const {
  return group_of(ranks)->reduces_in_place();
}

void JobEngine::adopt(const std::vector<int64_t>& ranks, c10::intrusive_ptr<c10d::Backend> backend) const {
  auto entry = std::make_shared<Entry>();
  auto name = backend->getBackendName();
  // For lines of CPU tensors: other transports are faster than a group over gloo, and our own backend is an engine, as
  // this one is. Another group of the same ranks is another line: the previous one may have failed.
  bool ours = ranks.size() > 1 && (name == kBackendName || (name == "gloo" && replaces_gloo_));
  {
    std::lock_guard lock(mutex_);
    ours = ours && store_;
    auto known = groups_.find(ranks);
    if (ours && known != groups_.end() && known->second->uid == backend->getGroupUid()) return;
  }
  if (ours) {
    entry->uid = backend->getGroupUid();
    if (name == "gloo") entry->fallback = std::move(backend);
  } else {
    entry->adopted = backend;
    auto line = request_for(ranks, std::move(backend));
    entry->group = over_groups_->connect(line).group;
  }
  std::lock_guard lock(mutex_);
  if (entry->group) carrier_of_[ranks] = entry->group->carrier();
  groups_[ranks] = std::move(entry);
}

void JobEngine::close() const {
  std::map<std::vector<int64_t>, std::shared_ptr<Entry>> groups;
  Transports transports;
  std::lock_guard lock(mutex_);
  closed_ = true;
  groups.swap(groups_);
  transports.swap(transports_);
  store_.reset();
  board_store_.reset();
}

const JobEngine& engine_with_groups(const char* where, const World& world) {
  auto* engine = dynamic_cast<const JobEngine*>(&world);
  TORCH_CHECK(engine, "[", where, "] the world is ", world.text(),
              ", which has no process groups. Use init_device_mesh.");
  return *engine;
}

}  // namespace intarsia
