#include "intarsia/debug/rehearsed_call.h"

#include <ATen/ATen.h>

#include "intarsia/dispatch/watch.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/start.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

constexpr int64_t kSmall = 1 << 20;  // elements of all tensors together that a rehearsal may allocate

struct Moves final : Recorder {
  Moves() { add_recorder(this); }
  ~Moves() override { remove_recorder(this); }
  void on_comm(const CommEvent& event) override { events.push_back(event); }
  void on_fallback(const FallbackEvent& event) override { fallbacks.push_back(event.op); }
  std::vector<CommEvent> events;
  std::vector<std::string> fallbacks;
};

// The tensor with the same placements on the stage, which has the shape of the mesh in question.
at::Tensor on_stage(const at::Tensor& tensor, const Layout& asked, const DeviceMesh& stage, bool with_data) {
  auto* layout = Layout::get(stage, asked.placements());
  auto options = with_data ? tensor.options().device(stage.device_type()) : tensor.options();
  Shards shards;
  for (auto& slot : stage.slots()) {
    auto shape = local_shape(*layout, tensor.sizes(), slot.coordinate);
    // Integers are indices, classes or lengths: zero is a valid index or class, and may be a length.
    bool fraction = tensor.is_floating_point() || tensor.is_complex();
    auto value = [&] { return fraction ? at::ones(shape, options) : at::zeros(shape, options); };
    shards.push_back(with_data ? value() : at::empty(shape, options));
  }
  return wrap(std::move(shards), layout, tensor.sizes(), tensor.strides(), tensor.dtype());
}

void put_on_stage(std::vector<c10::IValue>& args, const std::vector<const Layout*>& layouts, const DeviceMesh& stage,
                  bool with_data) {
  size_t next = 0;
  auto take = [&](const at::Tensor& tensor) {
    while (!layouts[next]) ++next;  // a tensor that was omitted
    return on_stage(tensor, *layouts[next++], stage, with_data);
  };
  for (auto& arg : args) {
    if (arg.isTensor()) {
      arg = take(arg.toTensor());
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : arg.toTensorList()) list.push_back(take(tensor));
      arg = list;
    } else if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorList())
        list.push_back(tensor ? std::optional(take(*tensor)) : std::nullopt);
      arg = list;
    }
  }
}

RehearsedCall run_on_stage(const c10::OperatorHandle& op, std::vector<c10::IValue> args,
                           const std::vector<const Layout*>& layouts, const DeviceMesh& mesh, bool with_data) {
  auto world = simulate(mesh.size());
  auto stage = init_device_mesh(mesh.device_type(), mesh.shape().vec(), mesh.names());
  put_on_stage(args, layouts, stage, with_data);
  Moves moves;
  at::NoGradGuard no_grad;
  op.callBoxed(args);
  RehearsedCall result;
  auto note = [&](const at::Tensor& tensor) {
    result.out.push_back(is_dtensor(tensor) ? Layout::get(mesh, placements_of(tensor)) : nullptr);
    if (is_dtensor(tensor)) body_of(tensor).shards();  // waits for asynchronous results
  };
  for (auto& value : args) {
    if (value.isTensor()) note(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) note(tensor);
    }
  }
  result.with_data = with_data;
  result.moves = std::move(moves.events);
  result.fallbacks = std::move(moves.fallbacks);
  return result;
}

int64_t elements_of(const std::vector<c10::IValue>& args) {
  int64_t count = 0;
  for (auto& arg : args) {
    if (arg.isTensor()) count += arg.toTensor().numel();
    if (arg.isTensorList()) {
      for (const at::Tensor& tensor : arg.toTensorList()) count += tensor.numel();
    }
    if (arg.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorList()) count += tensor ? tensor->numel() : 0;
    }
  }
  return count;
}

}  // namespace

RehearsedCall rehearse(const c10::OperatorHandle& op, std::vector<c10::IValue> args,
                       const std::vector<const Layout*>& layouts, const DeviceMesh& mesh) {
  start();
  try {
    RehearsalScope rehearses;
    OpWatch watch([](const SeenOp&) {});
    return run_on_stage(op, args, layouts, mesh, false);
  } catch (const c10::Error&) {  // of the caller's, or for lack of data
    if (elements_of(args) > kSmall) throw;
  }
  return run_on_stage(op, args, layouts, mesh, true);
}

}  // namespace intarsia
