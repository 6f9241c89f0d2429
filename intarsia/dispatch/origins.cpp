#include "intarsia/dispatch/origins.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "intarsia/comm/mix_hash.h"
#include "intarsia/dispatch/cache.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

uint64_t bits_of(const c10::Scalar& number) {
  if (number.isSymbolic()) return 0;
  if (number.isIntegral(true)) return static_cast<uint64_t>(number.toLong());
  if (!number.isComplex()) return std::bit_cast<uint64_t>(number.toDouble());
  auto value = number.toComplexDouble();
  return mix_hash(std::bit_cast<uint64_t>(value.real()), std::bit_cast<uint64_t>(value.imag()));
}

uint64_t bits_of_number(const at::Tensor& plain) {
  bool is_read =
      plain.defined() && plain.numel() == 1 && plain.is_cpu() && plain.has_storage() && plain.element_size() <= 8;
  uint64_t bits = 0;
  if (is_read && plain.const_data_ptr()) std::memcpy(&bits, plain.const_data_ptr(), plain.element_size());
  return bits;
}

uint64_t bits_of_numbers(const Op& op, c10::ArrayRef<c10::IValue> args) {
  uint64_t bits = 0;
  for (size_t i = 0; i < op.kinds.size(); ++i) {
    if (op.kinds[i] == ArgKind::number && args[i].isScalar()) bits = mix_hash(bits, bits_of(args[i].toScalar()));
  }
  return bits;
}

Origin origin_of_operands(const Call& call) {
  Origin all;
  for (auto& operand : call.operands) {
    if (operand.body) {
      all.add(operand.body->origin);
    } else if (operand.tensor.defined()) {
      all.hash = mix_hash(all.hash, bits_of_number(operand.tensor));
    }
  }
  return all;
}

Origin noted(const Call& call, const Decision& decision, const Origin& operands) {
  if (!decision.what) return {};
  if (call.op.keeps_value) return call.operands.back().body ? call.operands.back().body->origin : Origin();
  bool only_reads = decision.outputs.empty() && call.op.written.empty();  // like item(), which one rank alone may call
  auto what = mix_hash(decision.what, bits_of_numbers(call.op, call.args));
  if (only_reads) return {mix_hash(what, operands.hash), 0};
  auto seen = std::find_if(call.operands.begin(), call.operands.end(), [](auto& operand) { return operand.body; });
  auto* layout = seen == call.operands.end() ? Layout::replicated(call.mesh) : seen->body->layout;
  return calls_on(call.mesh).add(call.op.name.c_str(), layout, what, operands);
}

void mark_results(const Op& op, const std::vector<c10::IValue>& stack, const Origin& made) {
  uint64_t place = 0;
  auto mark = [&](const at::Tensor& result) {
    if (is_dtensor(result)) body_of(result).origin = {made.hash + place, made.call};
    ++place;
  };
  for (auto value = stack.end() - static_cast<int64_t>(op.returns_arg.size()); value != stack.end(); ++value) {
    if (value->isTensor()) mark(value->toTensor());
    if (!value->isTensorList()) continue;
    for (const at::Tensor& result : value->toTensorList()) mark(result);
  }
}

}  // namespace intarsia
