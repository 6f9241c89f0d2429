#pragma once
// The engine of a real job: one hosted rank, and for each line the first transport that can carry it.

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/engine.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace intarsia {

class FailureBoard;
class Group;
struct LineRequest;
class Transport;

using Transports = std::vector<std::shared_ptr<const Transport>>;

constexpr auto kBackendName = "intarsia";  // of the c10d backend that is an engine: see c10d_backend/

// Makes one group per list of ranks, when a line first needs it: its members meet in the store, and no other rank takes
// part. Safe to use from several threads; two collectives of one line keep the order in which they were started.
class JobEngine final : public Engine {
 public:
  // Lines try the `transports` in order. Lines of an adopted group, and those of one rank, run over `over_groups`;
  // without a store all do. `name` and `carriers` are those of the engine: see EngineKind.
  JobEngine(int64_t rank, int64_t size, c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout,
            std::string name, std::string carriers, Transports transports,
            std::shared_ptr<const Transport> over_groups);
  ~JobEngine() override;

  bool simulated() const override { return false; }
  std::string text() const override;  // a job of 4 ranks over gloo
  std::string carrier(const Line& line) const override;

  Wait all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op, bool later) const override;
  Wait all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const override;
  Wait all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                  const Counts& receive_counts) const override;
  Wait reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                      ReduceOp op) const override;
  Wait broadcast(const Line& line, const Shards& buffers, int64_t source) const override;
  void barrier() const override;
  void close() const override;

  // Whether the result of an all_reduce along this line may be in the memory of its input.
  bool reduces_in_place(const std::vector<int64_t>& ranks) const;

  // Uses `backend` for the line of these ranks, whose order is the backend's. If this engine has faster transports than
  // gloo, the ranks of a group over gloo try those first.
  void adopt(const std::vector<int64_t>& ranks, c10::intrusive_ptr<c10d::Backend> backend) const;

 private:
  struct Entry;
  std::shared_ptr<const Group> group_of(const std::vector<int64_t>& ranks) const;
  std::shared_ptr<const Group> make_named(const std::vector<int64_t>& ranks, const Entry& entry) const;
  std::shared_ptr<const Group> make_group(const std::vector<int64_t>& ranks, const Entry& entry) const;
  std::shared_ptr<const Group> group_inside_adopted(const std::vector<int64_t>& ranks) const;
  LineRequest request_for(std::vector<int64_t> ranks, c10::intrusive_ptr<c10d::Backend> group = nullptr) const;

  std::chrono::milliseconds timeout_;
  std::string name_, carriers_;
  std::shared_ptr<const Transport> over_groups_;
  bool replaces_gloo_;
  mutable std::mutex mutex_;  // guards what follows; an entry has its own lock
  mutable bool closed_ = false;
  mutable Transports transports_;
  mutable c10::intrusive_ptr<c10d::Store> store_;        // never used for waits
  mutable c10::intrusive_ptr<c10d::Store> board_store_;  // the same, for boards
  mutable std::map<std::vector<int64_t>, std::shared_ptr<Entry>> groups_;
  mutable std::map<std::vector<int64_t>, std::string> carrier_of_;  // of the groups that are made
};

// The engine of a world whose lines can run over existing process groups; an error of `where` if this world has none.
const JobEngine& engine_with_groups(const char* where, const World& world);

}  // namespace intarsia
