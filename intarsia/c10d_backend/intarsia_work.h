#pragma once
// The c10d::Work of our backend: a collective or a message in progress.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "intarsia/c10d_backend/flat_buffer.h"
#include "intarsia/c10d_backend/pending_collective.h"

namespace intarsia {

// A collective. If it is dropped, the backend's thread completes it.
class CollectiveWork final : public c10d::Work {
 public:
  struct About {
    int rank;
    c10d::OpType type;
    const char* title;                  // for PyTorch's profiler
    uint64_t number;                    // of the collectives of its group
    std::chrono::milliseconds timeout;  // of a wait that is given none
    std::chrono::milliseconds engine_timeout;
    std::string where;  // [all_reduce] on rank 0 in the group "0"
  };
  CollectiveWork(About about, const std::vector<at::Tensor>& inputs, std::shared_ptr<PendingCollective> what,
                 std::shared_ptr<PendingCollectives> all);
  ~CollectiveWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return about_.number; }

 private:
  void hand_over();
  void wait_within(std::chrono::milliseconds time);
  About about_;
  std::shared_ptr<PendingCollective> what_;
  std::shared_ptr<PendingCollectives> all_;
  std::atomic<bool> handed_over_{false};
};

// A message over gloo to or from one rank; waits can be interrupted, and errors name both sides.
class MessageWork final : public c10d::Work {
 public:
  // `to` is the tensor to receive into; none for a message that is sent.
  MessageWork(int rank, c10d::OpType type, c10::intrusive_ptr<c10d::Work> message, std::string where,
              std::chrono::milliseconds timeout, std::optional<Target> to);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override { message_->abort(); }
  int sourceRank() const override { return message_->sourceRank(); }
  uint64_t getSequencenumber() const override { return message_->getSequencenumber(); }

 private:
  void wait_for_message(std::chrono::milliseconds time);
  c10::intrusive_ptr<c10d::Work> message_;
  std::string where_;
  std::chrono::milliseconds timeout_;
  std::optional<Target> to_;
  std::mutex waiting_;  // gloo's works can be waited for only once
};

}  // namespace intarsia
