#include "intarsia/comm/c10d/c10d.h"

#include <stdlib.h>

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/comm/c10d/backend.h"
#include "intarsia/comm/c10d/collective_group.h"
#include "intarsia/comm/c10d/direct_group.h"
#include "intarsia/comm/c10d/gloo.h"
#include "intarsia/comm/c10d/making.h"
#include "intarsia/comm/c10d/own_backend.h"
#include "intarsia/comm/c10d/proof.h"
#include "intarsia/comm/c10d/two_level_group.h"
#include "intarsia/comm/carry.h"
#include "intarsia/comm/impatient_store.h"
#include "intarsia/comm/launch/rendezvous.h"
#include "intarsia/comm/launch/secret.h"
#include "intarsia/comm/mpi/mpi_group.h"
#include "intarsia/comm/shared_store.h"
#include "intarsia/comm/shm/hosts.h"
#include "intarsia/comm/shm/shm_group.h"
#include "intarsia/comm/trace.h"

namespace intarsia {
namespace {

std::string key_of(const std::vector<int64_t>& ranks) {
  std::string text;
  for (auto rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

template <class Number>
std::vector<Number> count_up(size_t n) {
  std::vector<Number> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

bool all_equal(const MemberCounts& counts) {
  return std::equal(counts.begin() + 1, counts.end(), counts.begin());
}

const char* name_of(Lines lines) {
  switch (lines) {
    case Lines::gloo: return "gloo";
    case Lines::shm: return "shm";
    case Lines::mpi: return "mpi";
    case Lines::either: break;
  }
  return "shm and gloo";
}

std::unique_ptr<Engine> make_engine(const Job& job, Lines lines) {
  auto* text = getenv("INTARSIA_DIRECT");
  bool direct = !text || std::string(text) != "0";
  return std::make_unique<C10dEngine>(job.rank, job.size, job.store,
                                      C10dOptions{job.interface, job.timeout, direct, lines});
}

}  // namespace

struct C10dEngine::Entry {
  std::mutex making;
  std::shared_ptr<const Group> group;
  c10::intrusive_ptr<c10d::Backend> adopted;   // given by the user; other lines may travel inside it
  c10::intrusive_ptr<c10d::Backend> fallback;  // the same, for ranks that turn out not to share memory
  std::string uid;                             // of the group in whose place the line is made; empty: none
};

C10dEngine::C10dEngine(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::Store> store, C10dOptions options)
    : Engine(size, {rank}), options_(std::move(options)) {
  if (!store) return;
  using std::chrono::seconds;
  auto patience = std::clamp<std::chrono::milliseconds>(options_.timeout / 2, seconds(2), seconds(10));
  store_ = connect_again(*store);  // the user may wait in the other
  alarm_store_ = c10::make_intrusive<ImpatientStore>(store_, patience);
}

C10dEngine::~C10dEngine() = default;

std::string C10dEngine::text() const {
  c10::intrusive_ptr<c10d::Backend> adopted;  // its name may be a call of Python: not under the lock
  {
    std::lock_guard lock(mutex_);
    auto everyone = groups_.find(count_up<int64_t>(size()));
    if (everyone != groups_.end()) adopted = everyone->second->adopted;
  }
  return c10::str("a job of ", size(), " ranks over ", adopted ? adopted->getBackendName() : name_of(options_.lines));
}

std::string C10dEngine::carrier(const Line& line) const {
  std::lock_guard lock(mutex_);
  auto known = carriers_.find(line.ranks[0]);
  return known == carriers_.end() ? name_of(options_.lines) : known->second;
}

Wait C10dEngine::all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op,
                            bool later) const {
  auto call = collective_of(Collective::all_reduce, line, mine[0], op);
  call.counts = mine[0].numel();
  return group_of(line.ranks[0])->all_reduce(std::move(call), mine[0], result[0], later);
}

Wait C10dEngine::all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const {
  auto call = collective_of(Collective::all_gather, line, mine[0]);
  call.counts = hash_of(counts[0]);
  call.all = all[0].numel();
  call.even = all_equal(counts[0]);
  return group_of(line.ranks[0])->all_gather(std::move(call), mine[0], all[0], counts[0]);
}

Wait C10dEngine::all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                            const Counts& receive_counts) const {
  auto call = collective_of(Collective::all_to_all, line, send[0]);
  call.sends.assign(send_counts[0].begin(), send_counts[0].end());
  call.receives.assign(receive_counts[0].begin(), receive_counts[0].end());
  call.all = receive[0].numel();
  return group_of(line.ranks[0])->all_to_all(std::move(call), send[0], send_counts[0], receive[0], receive_counts[0]);
}

Wait C10dEngine::reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                                ReduceOp op) const {
  auto call = collective_of(Collective::reduce_scatter, line, send[0], op);
  call.counts = hash_of(counts[0]);
  call.all = result[0].numel();
  call.even = all_equal(counts[0]);
  return group_of(line.ranks[0])->reduce_scatter(std::move(call), send[0], counts[0], result[0]);
}

Wait C10dEngine::broadcast(const Line& line, const Shards& buffers, int64_t source) const {
  auto call = collective_of(Collective::broadcast, line, buffers[0]);
  call.counts = buffers[0].numel();
  call.source = line.ranks[0][source];
  return group_of(line.ranks[0])->broadcast(std::move(call), buffers[0], source);
}

void C10dEngine::barrier() const {
  auto mine = at::zeros({1}, at::kByte), all = at::zeros({size()}, at::kByte);
  Line everyone{"world", size(), {count_up<int64_t>(size())}, {hosted()[0]}};
  CauseScope cause("barrier()", false);
  carry_unrecorded(*this, everyone, "barrier", [&] { return all_gather(everyone, {mine}, {all}, {MemberCounts(size(), 1)}); });
}

std::shared_ptr<const Group> C10dEngine::group_of(const std::vector<int64_t>& ranks) const {
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
    carriers_[ranks] = entry->group->carrier();
  }
  return entry->group;
}

// Those who take no part may have ended because of another rank, and a store that does not answer is that of a rank which has ended.
std::shared_ptr<const Group> C10dEngine::make_named(const std::vector<int64_t>& ranks, const Entry& entry) const {
  try {
    return make_group(ranks, entry);
  } catch (const c10::DistError& error) {
    auto alarm = alarm_of("");
    auto gone = alarm ? alarm->gone() : std::nullopt;
    auto text = plain_text(error);
    TORCH_CHECK_WITH(DistBackendError, !gone || *gone == hosted()[0], "rank ", *gone, " is gone (and then: ", text, "). See why it ended.");
    TORCH_CHECK_WITH(DistBackendError, !alarm || alarm->answers(), "the store of the job does not answer: rank 0 is gone, if it served it, or the launcher is (",
                     text, "). See why it ended.");
    throw;
  }
}

std::shared_ptr<const Group> C10dEngine::make_group(const std::vector<int64_t>& ranks, const Entry& entry) const {
  if (ranks.size() == 1) return group_over(nullptr, ranks, {0});
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<MpiTraffic> mpi;
  {
    std::lock_guard lock(mutex_);
    store = store_;
    mpi = options_.mpi;
  }
  if (!store) return group_inside_adopted(ranks);
  auto key = c10::str("group/", name_of(options_.lines), "/", key_of(ranks), entry.uid.empty() ? "" : "/of/" + entry.uid);
  auto meeting = c10::make_intrusive<c10d::PrefixStore>(key, c10::make_intrusive<SharedStore>(store));
  meeting->setTimeout(options_.timeout);
  if (mpi) return group_over_mpi(std::move(mpi), *meeting, ranks, entry.uid);
  std::vector<std::string> names;
  if (auto shared = shared_group(meeting, ranks, entry.uid, names)) return shared;
  auto hosts = hosts_of(meeting, ranks, names);
  if (entry.fallback) return group_between(entry.fallback, ranks, std::move(hosts));
  std::shared_ptr<GlooMaker> gloo;
  {
    std::lock_guard lock(mutex_);
    if (!gloo_) gloo_ = std::make_shared<GlooMaker>(options_.interface, options_.timeout);
    gloo = gloo_;
  }
  int position = std::find(ranks.begin(), ranks.end(), hosted()[0]) - ranks.begin();
  Making making(*meeting, hosted()[0], ranks, options_.timeout);
  auto backend = making.run([=, size = ranks.size()] { return gloo->make(meeting, position, size); }, alarm_of(key).get());
  auto secret = is_loopback(options_.interface) ? "" : job_secret();  // no stranger reaches loopback
  if (!secret.empty()) check_members(*backend, secret, key, ranks, position, options_.timeout);
  return group_between(std::move(backend), ranks, std::move(hosts));
}

// None: this line is not done in two levels.
std::optional<Hosts> C10dEngine::hosts_of(const c10::intrusive_ptr<c10d::Store>& meeting, const std::vector<int64_t>& ranks,
                                          const std::vector<std::string>& names) const {
  if (options_.lines != Lines::either || !options_.direct || ranks.size() < 3) return std::nullopt;
  return find_hosts(c10::make_intrusive<c10d::PrefixStore>("hosts", meeting), hosted()[0], ranks, names, options_.timeout);
}

std::shared_ptr<const Group> C10dEngine::group_between(c10::intrusive_ptr<c10d::Backend> backend, const std::vector<int64_t>& ranks,
                                                       std::optional<Hosts> hosts) const {
  auto peers = count_up<int>(ranks.size());
  if (!hosts) return group_over(std::move(backend), ranks, std::move(peers));
  auto members = members_over(std::move(backend), ranks, std::move(peers));
  auto alarm = members.alarm;
  auto line = std::make_shared<DirectLine>(std::move(members), true);
  std::shared_ptr<const HostGroup> inside;
  auto begin = hosts->begins[hosts->own], end = hosts->begins[hosts->own + 1];
  if (end - begin > 1) {
    inside = make_shm_group({{ranks.begin() + begin, ranks.begin() + end}, line->members.position - begin, std::move(hosts->trial.segment),
                             std::move(hosts->trial.processes), options_.timeout, alarm, nullptr, line});
  }
  return make_two_level_group(Levels(std::move(line), *hosts, std::move(inside)));
}

// Null: this line is for gloo, and `hosts` names those of its ranks.
std::shared_ptr<const Group> C10dEngine::shared_group(const c10::intrusive_ptr<c10d::Store>& meeting,
                                                      const std::vector<int64_t>& ranks, const std::string& uid,
                                                      std::vector<std::string>& hosts) const {
  if (options_.lines == Lines::gloo) return nullptr;
  auto own = c10::make_intrusive<c10d::PrefixStore>("shm", meeting);
  auto trial = try_to_share(own, hosted()[0], ranks, options_.timeout);
  TORCH_CHECK_WITH(DistBackendError, trial.segment || options_.lines == Lines::either, "[make_group] the ranks ",
                   c10::ArrayRef<int64_t>(ranks), " do not share memory: ", trial.why_not,
                   ". Use the engine auto or gloo.");
  if (!trial.segment) return hosts = std::move(trial.hosts), nullptr;
  int64_t position = std::find(ranks.begin(), ranks.end(), hosted()[0]) - ranks.begin();
  return make_shm_group({ranks, position, std::move(trial.segment), std::move(trial.processes), options_.timeout,
                         alarm_of(key_of(ranks) + "/" + uid), notes_of(ranks, "shm/" + uid)});
}

// Who makes a line of MPI's waits without end, so all meet before.
std::shared_ptr<const Group> C10dEngine::group_over_mpi(std::shared_ptr<MpiTraffic> mpi, c10d::Store& meeting,
                                                        const std::vector<int64_t>& ranks, const std::string& uid) const {
  arrive("make_group", meeting, hosted()[0], ranks, options_.timeout);
  int64_t position = std::find(ranks.begin(), ranks.end(), hosted()[0]) - ranks.begin();
  auto side = std::make_shared<MpiSide>(ranks, position, options_.timeout, alarm_of(key_of(ranks) + "/" + uid),
                                        notes_of(ranks, "mpi/" + uid));
  return make_mpi_group(std::move(mpi), std::move(side));
}

Members C10dEngine::members_over(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> ranks, std::vector<int> peers) const {
  int64_t position = std::find(ranks.begin(), ranks.end(), hosted()[0]) - ranks.begin();
  auto alarm = backend ? alarm_of(key_of(ranks) + "/" + backend->getGroupUid()) : nullptr;
  auto notes = backend ? notes_of(ranks, backend->getGroupUid()) : nullptr;
  return {std::move(backend), std::move(ranks), std::move(peers), position, options_.timeout, std::move(alarm), std::move(notes)};
}

std::shared_ptr<const Group> C10dEngine::group_over(c10::intrusive_ptr<c10d::Backend> backend,
                                                    std::vector<int64_t> ranks, std::vector<int> peers) const {
  bool direct = !backend || (options_.direct && backend->getBackendName() == "gloo");
  auto members = members_over(std::move(backend), std::move(ranks), std::move(peers));
  // Other backends carry part of their ranks only by messages, too.
  if (!direct && members.whole()) return make_collective_group(std::move(members));
  return make_direct_group(std::make_shared<DirectLine>(std::move(members)));
}

std::shared_ptr<Alarm> C10dEngine::alarm_of(const std::string& group) const {
  std::lock_guard lock(alarm_mutex_);
  return alarm_store_ ? std::make_shared<Alarm>(alarm_store_, "interrupted/" + group) : nullptr;
}

std::shared_ptr<Notes> C10dEngine::notes_of(const std::vector<int64_t>& ranks, const std::string& group) const {
  std::lock_guard lock(alarm_mutex_);
  int64_t position = std::find(ranks.begin(), ranks.end(), hosted()[0]) - ranks.begin();
  return std::make_shared<Notes>(alarm_store_, key_of(ranks) + "/" + group, ranks, position);
}

std::shared_ptr<const Group> C10dEngine::group_inside_adopted(const std::vector<int64_t>& ranks) const {
  std::lock_guard lock(mutex_);
  for (auto& [outer, entry] : groups_) {
    std::vector<int> peers;
    for (auto rank : ranks) {
      auto found = std::find(outer.begin(), outer.end(), rank);
      if (found != outer.end()) peers.push_back(found - outer.begin());
    }
    if (entry->adopted && peers.size() == ranks.size()) return group_over(entry->adopted, ranks, peers);
  }
  TORCH_CHECK(false, "[mesh] no process group connects the ranks ", c10::ArrayRef<int64_t>(ranks),
              ", and without a store none can be made. Call init_from with a store, or pass a group of these ranks to "
              "mesh_from_group.");
}

bool C10dEngine::reduces_in_place(const std::vector<int64_t>& ranks) const { return group_of(ranks)->reduces_in_place(); }

void C10dEngine::adopt(const std::vector<int64_t>& ranks, c10::intrusive_ptr<c10d::Backend> backend) const {
  auto entry = std::make_shared<Entry>();
  auto name = backend->getBackendName();
  // Lines of CPU tensors: memory is faster than a group over gloo, and our own backend is an engine as this one is.
  // Another group of the same ranks is another line: the one before may have failed.
  bool ours = ranks.size() > 1 && (name == kOwnBackend || (name == "gloo" && options_.lines != Lines::gloo));
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
    entry->group = group_over(std::move(backend), ranks, count_up<int>(ranks.size()));
  }
  std::lock_guard lock(mutex_);
  if (entry->group) carriers_[ranks] = entry->group->carrier();
  groups_[ranks] = std::move(entry);
}

void C10dEngine::close() const {
  std::map<std::vector<int64_t>, std::shared_ptr<Entry>> groups;
  std::lock_guard lock(mutex_);
  closed_ = true;
  groups.swap(groups_);
  store_.reset();
  gloo_.reset();
  options_.mpi.reset();
  std::lock_guard alarms(alarm_mutex_);
  alarm_store_.reset();
}

std::unique_ptr<Engine> make_gloo_engine(const Job& job) { return make_engine(job, Lines::gloo); }
std::unique_ptr<Engine> make_shm_engine(const Job& job) { return make_engine(job, Lines::shm); }
std::unique_ptr<Engine> make_auto_engine(const Job& job) { return make_engine(job, Lines::either); }

const C10dEngine& engine_with_groups(const char* where, const World& world) {
  auto* engine = dynamic_cast<const C10dEngine*>(&world);
  TORCH_CHECK(engine, "[", where, "] the world is ", world.text(),
              ", which has no process groups. Use init_device_mesh.");
  return *engine;
}

}  // namespace intarsia
