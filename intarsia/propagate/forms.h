#pragma once
// Infers what the plain op would return. Dispatch and explain both ask here, and nothing else knows.

#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/rules/rule.h"

namespace intarsia {

struct FormQuestion {
  const c10::OperatorHandle& op;          // the op that is called; for out=, the functional one
  const c10::OperatorHandle& functional;  // the op that the rule is written for
  const Rule* rule;                       // null if there is none
  c10::ArrayRef<c10::IValue>
      args;  // of the functional op: of tensors only the form matters, and of plain numbers the value
  const std::vector<TensorForm>& inputs;
};

// The forms of the results; none if they depend on data. The plain op runs on tensors without data, so that its own
// checks reject bad input, on every rank, before anything is sent; where it cannot, its rule gives the forms.
std::optional<std::vector<TensorForm>> forms_of_results(const FormQuestion& question);

// The form of a dense tensor.
TensorForm dense_form(c10::ArrayRef<int64_t> shape, c10::ScalarType dtype,
                      c10::MemoryFormat format = c10::MemoryFormat::Contiguous);

// A tensor of that form on the meta device.
at::Tensor meta_tensor(const TensorForm& form);

// Raises the error of expand unless a tensor of this form expands to the shape.
void check_expands(const TensorForm& form, c10::ArrayRef<int64_t> shape);

// Raises the plain op's own error if it rejects the call: it checks before it computes. For calls that look wrong.
void ask_plain(const OpCall& call);
[[noreturn]] void refuse_as_plain(const OpCall& call);  // for calls that are wrong

}  // namespace intarsia
