#include "intarsia/transport/gloo/process_group_ops.h"

#include <condition_variable>
#include <memory>
#include <mutex>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/bytes.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"

namespace intarsia {
namespace {

constexpr std::chrono::milliseconds kPause{100};  // between two checks for interrupts

// Returns when the work has ended, successfully or not. Can be interrupted. It does not use waits that time out:
// creating their errors runs Python, which would see the interrupt and drop it.
void wait_for_end(c10d::Work& work, const Members& members) {
  struct FutexEvent {
    std::mutex mutex;
    std::condition_variable rings;
    bool ended = false;
  };
  auto event = std::make_shared<FutexEvent>();
  work.getFuture()->addCallback([event](auto&) {
    std::lock_guard lock(event->mutex);
    event->ended = true;
    event->rings.notify_one();
  });
  std::unique_lock lock(event->mutex);
  while (!event->rings.wait_for(lock, kPause, [&] { return event->ended; })) {
    check_interrupts();
    auto interrupted = members.interrupted();
    TORCH_CHECK_WITH(DistBackendError, interrupted.empty(), interrupted);
  }
}

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

std::optional<Wait> backend_all_reduce(const Members& members, const at::Tensor& buffer, ReduceOp op) {
  auto form = native_form(members.backend->getBackendName(), buffer, op);
  if (!form) return std::nullopt;
  c10d::AllreduceOptions options;
  options.reduceOp = form->op;
  options.timeout = members.timeout;
  std::vector<at::Tensor> buffers{form->buffer};
  return wait_for_work(members, members.backend->allreduce(buffers, options), {buffer});
}

Wait backend_broadcast(const Members& members, const at::Tensor& buffer, int64_t source) {
  c10d::BroadcastOptions options;
  options.rootRank = members.peers[source];
  options.timeout = members.timeout;
  std::vector<at::Tensor> buffers{as_bytes(buffer)};
  return wait_for_work(members, members.backend->broadcast(buffers, options), {buffer});
}

Wait wait_for_work(const Members& members, c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> buffers) {
  bool steps = interruptible() && members.gloo();
  return [members, steps, work = std::move(work), buffers = std::move(buffers)] {
    try {
      if (steps && !work->isCompleted()) wait_for_end(*work, members);
      work->wait();
    } catch (const Interruption&) {
      members.give_up();
      throw;
    } catch (const std::exception& error) {
      auto text = members.interrupted();
      if (text.empty()) text = plain_text(error) + ". See which rank has ended or is stuck, and why.";
      C10_THROW_ERROR(DistBackendError, text);
    }
  };
}

}  // namespace intarsia
