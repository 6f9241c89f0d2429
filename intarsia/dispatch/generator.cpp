#include "intarsia/dispatch/generator.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/dispatch/one_generator.h"
#include "intarsia/dispatch/random_scope.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {

at::Generator generator_of(const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args) {
  for (auto& arg : args) {
    if (arg.isGenerator() && arg.toGenerator().defined()) return arg.toGenerator();
  }
  return at::globalContext().defaultGenerator(c10::Device(mesh.device_type()));
}

AgreedDraw::AgreedDraw(const std::string& op, const DeviceMesh& mesh, c10::ArrayRef<c10::IValue> args) {
  if (!have_several_generators(mesh)) return;
  auto generator = generator_of(mesh, args);
  if (auto* scope = RandomScope::around(mesh)) {
    scope->check(generator, mesh);
  } else if (generators() == Generators::follow) {
    agree_on_generator(mesh, generator);
  } else {
    compare_generators(op.c_str(), mesh, generator);
  }
  mesh_ = mesh;
  generator_ = generator;
}

AgreedDraw::~AgreedDraw() {
  if (mesh_.defined()) RandomScope::follow(generator_, mesh_);
}

bool only_written(const Call& call, const Decision& decision, size_t i) {
  auto& copied = decision.copied;
  return call.op.is_random && call.op.traits->overwrites_at_random && call.operands[i].arg == 0 &&
         std::find(copied.begin(), copied.end(), i) != copied.end();
}

void share_random_results(const Call& call, const Decision& decision, c10::SmallVector<Shards, 4>& inputs,
                          std::vector<std::vector<c10::IValue>>& results) {
  for (auto i : decision.copied) {
    for (size_t slot = 1; slot < inputs[i].size(); ++slot) inputs[i][slot] = twin_of(inputs[i][0]);
  }
  auto tensors_at = [&](size_t slot) {
    std::vector<at::Tensor> tensors;
    for (auto& shards : inputs) tensors.push_back(shards.empty() ? at::Tensor() : shards[slot]);
    return tensors;
  };
  auto from = tensors_at(0);
  for (size_t slot = 1; slot < results.size(); ++slot) {
    auto to = tensors_at(slot);
    results[slot].resize(results[0].size());
    for (size_t r = 0; r < results[0].size(); ++r) {
      auto& drawn = results[0][r];
      if (drawn.isTensor() && call.op.returns_arg[r] < 0) results[slot][r] = made_from(drawn.toTensor(), from, to);
    }
  }
}

}  // namespace intarsia
