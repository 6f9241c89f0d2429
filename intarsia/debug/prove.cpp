#include "intarsia/debug/prove.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/dispatch/op.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/rules/table.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

std::vector<at::Tensor> tensors_in(const Stack& values) {
  std::vector<at::Tensor> tensors;
  for (auto& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

Stack with_tensors(const Stack& args, const std::vector<at::Tensor>& tensors) {
  auto stack = args;
  size_t next = 0;
  for (auto& value : stack) {
    if (value.isTensor()) {
      value = tensors[next++];
    } else if (value.isTensorList()) {
      auto count = value.toTensorList().size();
      value = std::vector<at::Tensor>(tensors.begin() + next, tensors.begin() + next + count);
      next += count;
    }
  }
  return stack;
}

// The shard of one rank. Terms of a sum are spread over all ranks: zeros would hide a wrong row.
at::Tensor dealt(const at::Tensor& whole, const Layout& layout, const Slot& slot) {
  auto pending = pending_op(layout.placements()[0]);
  auto n = layout.mesh().size(), rank = slot.coordinate[0];
  bool spreads = (pending == ReduceOp::sum || pending == ReduceOp::avg) && whole.is_floating_point();
  if (!spreads) return shard_of(whole, layout, slot.coordinate).clone();
  auto step = 0.75 + 0.5 * static_cast<double>(rank);
  auto total = 0.75 * static_cast<double>(n) + 0.25 * static_cast<double>(n * (n - 1));
  if (pending == ReduceOp::avg) return whole + (step - total / static_cast<double>(n));
  return rank == 0 ? whole + step - total : at::full_like(whole, step);
}

struct Proof {
  const Op& op;
  const Stack& args;
  std::vector<at::Tensor> tensors, expected;
  std::vector<TensorForm> inputs, outputs;
};

// What is wrong with a row on n ranks; empty if nothing.
std::string verdict(const Proof& proof, const Row& row, int64_t n) {
  auto world = simulate(n);
  auto mesh = init_device_mesh(at::kCPU, {n});
  std::vector<const Layout*> in, out;
  for (auto& p : row.in) in.push_back(Layout::get(mesh, {p}));
  for (auto& p : row.out) out.push_back(Layout::get(mesh, {p}));
  OpCall seen{proof.op.handle.schema(), proof.args, proof.inputs, proof.outputs};
  std::vector<Shards> results(proof.expected.size());
  for (auto& slot : mesh.slots()) {
    std::vector<at::Tensor> mine;
    for (size_t i = 0; i < proof.tensors.size(); ++i) mine.push_back(dealt(proof.tensors[i], *in[i], slot));
    auto stack = with_tensors(proof.args, mine);
    for (auto arg : proof.op.size_args) {
      stack[arg] = local_size(proof.op.handle.schema().arguments()[arg],
                              local_shape(*out[0], proof.expected[0].sizes(), slot.coordinate));
    }
    if (proof.op.rule->local.run) {
      LocalCall local{seen, in, out, slot, stack, proof.op.handle};
      proof.op.rule->local.run(local);
    } else {
      proof.op.handle.callBoxed(stack);
    }
    auto found = tensors_in(stack);
    for (size_t i = 0; i < results.size(); ++i) {
      auto shape = local_shape(*out[i], proof.expected[i].sizes(), slot.coordinate);
      if (found[i].sizes() != at::IntArrayRef(shape)) {
        return c10::str("rank ", slot.rank, " makes ", found[i].sizes(), " where the row says ",
                        at::IntArrayRef(shape));
      }
      results[i].push_back(found[i]);
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto& whole = proof.expected[i];
    auto merged =
        full_tensor(wrap(results[i], out[i], whole.sizes(), c10::contiguous_strides(whole.sizes()), whole.dtype()));
    if (!at::allclose(merged, whole, 1e-5, 1e-6, true)) return c10::str("output ", i, " differs from the plain op's");
  }
  return "";
}

}  // namespace

std::vector<std::string> prove(const std::string& name, const std::vector<c10::IValue>& args) {
  auto dot = name.find('.');
  auto overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  auto handle = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
  TORCH_CHECK_VALUE(handle, "[prove] there is no op ", name, ". Name the overload too, as in aten::add.Tensor.");
  Op op(*handle);
  TORCH_CHECK_VALUE(op.rule, "[prove] ", name, " has no rule. Add one to rule_table() first.");
  TORCH_CHECK_VALUE(args.size() == op.kinds.size(), "[prove] ", args.size(), " arguments given, but ", name, " takes ",
                    op.kinds.size(), ". Give all of them, also those that have defaults.");
  Proof proof{op, args, tensors_in(args), {}, {}, {}};
  auto stack = args;
  handle->callBoxed(stack);
  proof.expected = tensors_in(stack);
  for (auto& tensor : proof.tensors) proof.inputs.push_back(form_of(tensor));
  for (auto& tensor : proof.expected) proof.outputs.push_back(form_of(tensor));
  OpCall seen{op.handle.schema(), args, proof.inputs, proof.outputs};
  std::vector<std::string> wrong;
  for (auto& row : op.rule->rows(seen)) {
    for (int64_t n : {2, 3, 4}) {
      std::string found;
      try {
        found = verdict(proof, row, n);
      } catch (const c10::Error& error) {
        found = std::string("throws ") + error.what_without_backtrace();
      }
      if (found.empty()) continue;
      wrong.push_back(str(row) + " on " + std::to_string(n) + " ranks: " + found);
      break;
    }
  }
  return wrong;
}

}  // namespace intarsia
