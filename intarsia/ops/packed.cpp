// Sequences of several lengths, packed and padded.
//
// LibTorch's code moves slice by slice and reads lengths from memory. Here it packs the row numbers instead, which are
// plain, and one index_select moves the rows. Lengths are numbers that decide what the program does: they may be plain,
// are the same on every rank, and come back plain, as LibTorch's recurrent layers read them.

#include <ATen/ATen.h>

#include "intarsia/ops/along/replicated.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

at::Tensor plain_numbers(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? at::tensor(numbers_in(tensor), at::kLong) : tensor;
}

at::Tensor numbered(at::IntArrayRef shape) { return at::arange(c10::multiply_integers(shape)).view(shape); }

// Selects rows by a plain index, which is replicated if the rows are distributed.
at::Tensor picked(const at::Tensor& rows, const at::Tensor& index) {
  return rows.index_select(0, is_dtensor(rows) ? replicated_like(index, rows) : index);
}

std::tuple<at::Tensor, at::Tensor> pack(const at::Tensor& input, const at::Tensor& lengths, bool batch_first) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "[_pack_padded_sequence] the sequences have ", input.dim(),
                    " dims: ", input.sizes(), ". They have two at least, steps and batch.");
  auto [index, batch_sizes] =
      at::_pack_padded_sequence(numbered(input.sizes().slice(0, 2)), plain_numbers(lengths), batch_first);
  return {picked(input.flatten(0, 1), index), batch_sizes};
}

std::tuple<at::Tensor, at::Tensor> pad(const at::Tensor& data, const at::Tensor& batch_sizes, bool batch_first,
                                       const at::Scalar& padding_value, int64_t total_length) {
  auto rows = data.size(0);
  auto [index, lengths] =
      at::_pad_packed_sequence(numbered({rows}), plain_numbers(batch_sizes), batch_first, rows, total_length);
  auto shape = data.sizes().vec();
  shape[0] = 1;
  auto padded = picked(at::cat({data, data.new_full(shape, padding_value)}), index.flatten());
  return {padded.unflatten(0, index.sizes()), lengths};
}

}  // namespace

void add_packed_sequences(RuleTable& t) {
  t.composite("aten::_pack_padded_sequence", pack);
  t.composite("aten::_pad_packed_sequence", pad);
}

}  // namespace intarsia
