#include "intarsia/debug/rehearsed_call.h"

#include <ATen/ATen.h>

#include "intarsia/comm/simulation.h"
#include "intarsia/dispatch/watch.h"
#include "intarsia/start.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

struct Moves final : Recorder {
  Moves() { add_recorder(this); }
  ~Moves() override { remove_recorder(this); }
  void on_comm(const CommEvent& event) override { events.push_back(event); }
  void on_fallback(const FallbackEvent&) override {}
  std::vector<CommEvent> events;
};

// The tensor as it would lie on the stage, which has the shape of the mesh that is asked about.
at::Tensor on_stage(const at::Tensor& tensor, const Layout& asked, const DeviceMesh& stage) {
  auto* layout = Layout::get(stage, asked.placements());
  Shards shards;
  for (auto& slot : stage.slots()) {
    shards.push_back(at::empty(local_shape(*layout, tensor.sizes(), slot.coordinate), tensor.options()));
  }
  return wrap(std::move(shards), layout, tensor.sizes(), tensor.strides(), tensor.dtype());
}

}  // namespace

RehearsedCall rehearse(const c10::OperatorHandle& op, std::vector<c10::IValue> args, const std::vector<const Layout*>& layouts,
                       const DeviceMesh& mesh) {
  start();
  RehearsalScope rehearses;
  auto world = simulate(mesh.size());
  auto stage = init_device_mesh(mesh.device_type(), mesh.shape().vec(), mesh.names());
  size_t next = 0;
  auto take = [&](const at::Tensor& tensor) {
    while (!layouts[next]) ++next;  // a tensor that was left out
    return on_stage(tensor, *layouts[next++], stage);
  };
  for (auto& arg : args) {
    if (arg.isTensor()) {
      arg = take(arg.toTensor());
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : arg.toTensorList()) list.push_back(take(tensor));
      arg = list;
    }
  }
  Moves moves;
  OpWatch watch([](const SeenOp&) {});
  at::NoGradGuard no_grad;
  op.callBoxed(args);
  RehearsedCall result;
  auto note = [&](const at::Tensor& tensor) {
    result.out.push_back(is_dtensor(tensor) ? Layout::get(mesh, placements_of(tensor)) : nullptr);
  };
  for (auto& value : args) {
    if (value.isTensor()) note(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) note(tensor);
    }
  }
  result.moves = std::move(moves.events);
  return result;
}

}  // namespace intarsia
