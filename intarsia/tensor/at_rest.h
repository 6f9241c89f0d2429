#pragma once
// What a tensor is while nobody uses it: for functions that read or write the memory of parameters themselves.

#include <ATen/core/Tensor.h>

namespace intarsia {

// The shards of a parameter that unshard() has made whole; any other tensor is itself. The parameter stays whole.
at::Tensor at_rest(const at::Tensor& tensor);

// To be called after the memory of at_rest(tensor) was written to, on all ranks together.
void written_at_rest(const at::Tensor& tensor);

// Who keeps the values of parameters elsewhere answers. There is one such module.
struct AtRest {
  at::Tensor (*shards)(const at::Tensor& tensor);
  void (*written)(const at::Tensor& tensor);
};
void set_at_rest(AtRest functions);

}  // namespace intarsia
