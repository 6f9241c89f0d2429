#pragma once
// The engine of a real job: one hosted rank, groups of ranks that share memory or talk over c10d process groups.

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/engines.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace intarsia {

class Alarm;
class GlooMaker;
class Group;
struct Hosts;
struct Members;
class MpiTraffic;
class Notes;

// What carries the lines of a job that no adopted group carries.
enum class Lines {
  gloo,
  shm,     // an error where the ranks do not share memory
  either,  // shared memory where they do
  mpi,
};

struct C10dOptions {
  std::string interface;              // see GlooMaker
  std::chrono::milliseconds timeout;  // of every wait
  bool direct = true;                 // false: the backend's own collectives also where direct messages are faster
  Lines lines = Lines::gloo;
  std::shared_ptr<MpiTraffic> mpi = nullptr;  // where that carries the lines
};

// Groups are made once per list of ranks, when a line first needs one: its members meet in the store, nobody else takes
// part. Safe to use from several threads; two collectives of one line keep the order in which they were started.
class C10dEngine final : public Engine {
 public:
  // Without a store, lines talk over an adopted group that contains them.
  C10dEngine(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::Store> store, C10dOptions options);
  ~C10dEngine() override;

  bool simulated() const override { return false; }
  std::string text() const override;  // a job of 4 ranks over gloo
  std::string carrier(const Line& line) const override;
  const C10dOptions& options() const { return options_; }

  Wait all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op, bool later) const override;
  Wait all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const override;
  Wait all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                  const Counts& receive_counts) const override;
  Wait reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                      ReduceOp op) const override;
  Wait broadcast(const Line& line, const Shards& buffers, int64_t source) const override;
  void barrier() const override;
  void close() const override;

  // Whether the result of an all_reduce along this line may be what each brings.
  bool reduces_in_place(const std::vector<int64_t>& ranks) const;

  // Uses `backend` for the line of these ranks, whose order is the backend's. Where this engine may share memory, the ranks of a
  // group over gloo try that first.
  void adopt(const std::vector<int64_t>& ranks, c10::intrusive_ptr<c10d::Backend> backend) const;

 private:
  struct Entry;
  std::shared_ptr<const Group> group_of(const std::vector<int64_t>& ranks) const;
  std::shared_ptr<const Group> make_named(const std::vector<int64_t>& ranks, const Entry& entry) const;
  std::shared_ptr<const Group> make_group(const std::vector<int64_t>& ranks, const Entry& entry) const;
  std::shared_ptr<const Group> shared_group(const c10::intrusive_ptr<c10d::Store>& meeting,
                                            const std::vector<int64_t>& ranks, const std::string& uid,
                                            std::vector<std::string>& hosts) const;
  std::shared_ptr<const Group> group_over_mpi(std::shared_ptr<MpiTraffic> mpi, c10d::Store& meeting,
                                              const std::vector<int64_t>& ranks, const std::string& uid) const;
  std::shared_ptr<const Group> group_over(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> ranks,
                                          std::vector<int> peers) const;
  Members members_over(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> ranks, std::vector<int> peers) const;
  std::optional<Hosts> hosts_of(const c10::intrusive_ptr<c10d::Store>& meeting, const std::vector<int64_t>& ranks,
                                const std::vector<std::string>& names) const;
  std::shared_ptr<const Group> group_between(c10::intrusive_ptr<c10d::Backend> backend, const std::vector<int64_t>& ranks,
                                             std::optional<Hosts> hosts) const;
  std::shared_ptr<Alarm> alarm_of(const std::string& group) const;
  std::shared_ptr<Notes> notes_of(const std::vector<int64_t>& ranks, const std::string& group) const;
  std::shared_ptr<const Group> group_inside_adopted(const std::vector<int64_t>& ranks) const;

  mutable C10dOptions options_;
  mutable std::mutex mutex_;  // guards what follows; an entry has its own lock
  mutable bool closed_ = false;
  mutable c10::intrusive_ptr<c10d::Store> store_;  // nobody waits in it
  mutable std::mutex alarm_mutex_;
  mutable c10::intrusive_ptr<c10d::Store> alarm_store_;  // the same, for alarms and notes
  mutable std::shared_ptr<GlooMaker> gloo_;
  mutable std::map<std::vector<int64_t>, std::shared_ptr<Entry>> groups_;
  mutable std::map<std::vector<int64_t>, std::string> carriers_;  // of the groups that are made
};

// The engines by name. INTARSIA_DIRECT=0 has gloo use the backend's own collectives.
std::unique_ptr<Engine> make_gloo_engine(const Job& job);
std::unique_ptr<Engine> make_shm_engine(const Job& job);
std::unique_ptr<Engine> make_auto_engine(const Job& job);

// The engine of a world whose lines can travel over process groups that exist already; an error of `where` if this one
// has none.
const C10dEngine& engine_with_groups(const char* where, const World& world);

}  // namespace intarsia
