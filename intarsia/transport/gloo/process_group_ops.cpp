#include "intarsia/transport/gloo/process_group_ops.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/bytes.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/waiting.h"
#include "intarsia/watch/watchdog.h"

namespace intarsia {
namespace {

// The wait for one collective of the backend, which does not say for whom it waits.
class WorkWait final : public WaitingTransport {
 public:
  WorkWait(const Members& members, const Collective& call, c10d::Work& work)
      : members_(members), call_(call), work_(work) {}

  void run() {
    Watchdog dog(*members_.line, *this);
    dog.run([&] {
      if (interruptible() && members_.gloo && !work_.isCompleted()) wait_for_end(dog);
      try {
        work_.wait();
      } catch (const std::exception& error) {
        auto rank = find_interrupted(*members_.line);
        dog.fail(rank ? interrupted_text(*rank)
                      : plain_text(error) + ". See which rank has ended or is stuck, and why.");
      }
    });
  }

  // The backend matches collectives by their order alone, so nobody compares what they are.
  const Collective* current() const override { return nullptr; }
  std::vector<int64_t> awaited() override { return {}; }
  void give_up(const std::string& text, Farewell farewell, const std::string&) override {
    if (farewell == Farewell::interrupted) members_.interrupt();
    members_.line->error.set(text);
    end_entry(call_, false);
  }

 private:
  // Returns when the work has ended, well or not. Not by waits that time out: making their errors runs Python, which
  // would see the interrupt and drop it.
  void wait_for_end(Watchdog& dog) {
    struct End {
      std::mutex mutex;
      std::condition_variable comes;
      bool there = false;
    };
    auto end = std::make_shared<End>();
    work_.getFuture()->addCallback([end](auto&) {
      std::lock_guard lock(end->mutex);
      end->there = true;
      end->comes.notify_one();
    });
    std::unique_lock lock(end->mutex);
    while (!end->comes.wait_for(lock, kPause, [&] { return end->there; })) {
      Unlocked unlocked(lock);
      dog.look();
    }
  }

  static constexpr std::chrono::milliseconds kPause{100};  // between two looks
  const Members& members_;
  const Collective& call_;
  c10d::Work& work_;
};

c10d::ReduceOp::RedOpType backend_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return c10d::ReduceOp::SUM;
    case ReduceOp::product: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min: return c10d::ReduceOp::MIN;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    case ReduceOp::band: return c10d::ReduceOp::BAND;
    case ReduceOp::bor: return c10d::ReduceOp::BOR;
    case ReduceOp::bxor: return c10d::ReduceOp::BXOR;
    case ReduceOp::avg: break;
  }
  TORCH_INTERNAL_ASSERT(false, "avg reaches the engine as a sum");
}

// A reduction of the backend that has the same effect on the same memory.
struct NativeForm {
  at::Tensor buffer;
  c10d::ReduceOp::RedOpType op;
};

// Gloo supports float16 to float64, int8, uint8, int32 and int64, and takes a bool for a uint8: true + true would be a
// bool of 2. Its min and max drop a NaN or keep it, depending on the order. NCCL has no bitwise ops.
std::optional<NativeForm> native_form(const std::string& backend, const at::Tensor& t, ReduceOp op) {
  bool ordering = op == ReduceOp::min || op == ReduceOp::max;
  bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  if (bitwise && backend != "gloo") return std::nullopt;
  switch (t.scalar_type()) {
    case at::kBool:
      if (op == ReduceOp::bxor) return NativeForm{t.view(at::kByte), c10d::ReduceOp::BXOR};
      return NativeForm{t.view(at::kByte), op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band
                                               ? c10d::ReduceOp::MIN
                                               : c10d::ReduceOp::MAX};
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong: return NativeForm{t, backend_op(op)};
    case at::kUInt32:
    case at::kUInt64:
      if (ordering) return std::nullopt;
      return NativeForm{t.view(t.element_size() == 4 ? at::kInt : at::kLong), backend_op(op)};
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      if (ordering) return std::nullopt;
      return NativeForm{t, backend_op(op)};
    case at::kComplexFloat:
    case at::kComplexDouble:
      if (op != ReduceOp::sum) return std::nullopt;
      return NativeForm{at::view_as_real(t), c10d::ReduceOp::SUM};
    default: return std::nullopt;
  }
}

}  // namespace

BackendWork backend_all_reduce(const Members& members, const at::Tensor& buffer, ReduceOp op) {
  auto form = native_form(members.backend->getBackendName(), buffer, op);
  if (!form) return nullptr;
  c10d::AllreduceOptions options;
  options.reduceOp = form->op;
  options.timeout = members.line->timeout;
  std::vector<at::Tensor> buffers{form->buffer};
  return members.backend->allreduce(buffers, options);
}

BackendWork backend_broadcast(const Members& members, const at::Tensor& buffer, int64_t source) {
  c10d::BroadcastOptions options;
  options.rootRank = members.peers[source];
  options.timeout = members.line->timeout;
  std::vector<at::Tensor> buffers{as_bytes(buffer)};
  return members.backend->broadcast(buffers, options);
}

Wait wait_for_work(SharedMembers members, Collective call, BackendWork work, std::vector<at::Tensor> buffers) {
  return [members = std::move(members), call = std::move(call), work = std::move(work), buffers = std::move(buffers)] {
    wait_for_entry(call);
    WorkWait(*members, call, *work).run();
    end_entry(call);
  };
}

}  // namespace intarsia
