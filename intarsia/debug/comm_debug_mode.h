#pragma once
// CommDebugMode: a scope that records every collective: what was sent, why and for how long.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "intarsia/comm/trace.h"

namespace intarsia {

//   CommDebugMode comms;
//   auto out = torch::mm(a, b);
//   EXPECT_EQ(comms.text(), "all_gather tp 192B\n");
//
// Records what this thread does, and what all threads do in its world: see Note [Who sees what]. Modes nest: each sees
// everything. Safe to read while others record.
class CommDebugMode final : public Recorder {
 public:
  // Starts at once, unless `entered` is false: then enter() starts it.
  explicit CommDebugMode(bool entered = true);
  ~CommDebugMode() override;
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  void enter();  // clears the record and starts anew
  void exit();   // stops; the record stays readable

  int64_t get_total_counts() const;                        // the number of collectives
  std::map<std::string, int64_t> get_comm_counts() const;  // by kind: {"all_gather": 2, "all_reduce(sum)": 1}
  int64_t total_bytes() const;                             // the sum of what text() shows
  std::vector<CommEvent> events() const;
  std::vector<FallbackEvent> fallbacks() const;    // ops without a rule, which ran on whole tensors
  std::vector<AgreementEvent> agreements() const;  // on errors, generators, the order of collectives: not in events()

  std::string text() const;   // one event per line: reduce_scatter(sum) tp 192B
  std::string table() const;  // events grouped by kind, axis and op, with counts, bytes and times

  // For chrome://tracing or ui.perfetto.dev: one lane per axis. The rank is the process, so files of several ranks can
  // be viewed together. An error if the file cannot be written.
  void write_chrome_trace(const std::string& path) const;

 private:
  void on_comm(const CommEvent& event) override;
  void on_fallback(const FallbackEvent& event) override;
  void on_agreement(const AgreementEvent& event) override;

  mutable std::mutex mutex_;
  bool recording_ = false;
  std::vector<CommEvent> events_;
  std::vector<FallbackEvent> fallbacks_;
  std::vector<AgreementEvent> agreements_;
};

}  // namespace intarsia
