#include "intarsia/c10d_backend/tensor_line.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "intarsia/c10d_backend/flat_buffer.h"
#include "intarsia/comm/reduce.h"

namespace intarsia {
namespace {

ReduceOp as_carried(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

void divide_if_avg(const at::Tensor& sum, ReduceOp op, int64_t n) {
  if (op == ReduceOp::avg) sum.div_(n);
}

// Also checks dtypes that ATen can store but not compute with, so that the error comes before anything is sent.
void check_can_be_reduced(const char* where, const at::Tensor& t, ReduceOp op) {
  check_reducible(where, t.scalar_type(), op);
  if (t.element_size() > 1 || at::isIntegralType(t.scalar_type(), true)) return;
  auto one = at::empty({1}, t.options());
  reduce(one, one, one, as_carried(op));
}

}  // namespace

Wait together(std::vector<Wait> waits) {
  return [waits = std::move(waits)] {
    for (auto& wait : waits) {
      if (wait) wait();
    }
  };
}

TensorLine::TensorLine(std::unique_ptr<const Engine> engine, Line line)
    : engine_(std::move(engine)), line_(std::move(line)) {}

void TensorLine::check(const char* where, const List& tensors) const {
  for (auto& t : tensors) {
    TORCH_CHECK_VALUE(
        t.is_cpu(), "[", where, "] the tensor is on ", t.device(),
        ", but intarsia carries tensors in CPU memory. Give each device its backend: \"cpu:intarsia,cuda:nccl\".");
    TORCH_CHECK_TYPE(t.layout() == at::kStrided, "[", where, "] the tensor's layout is ", t.layout(),
                     ". Only all_reduce takes sparse tensors.");
    TORCH_CHECK_TYPE(t.scalar_type() == tensors[0].scalar_type(), "[", where,
                     "] the tensors are of different dtypes: ", tensors[0].scalar_type(), " and ", t.scalar_type(),
                     ". Give all the same.");
  }
}

void TensorLine::check_even(const char* where, const at::Tensor& all, const at::Tensor& mine) const {
  check(where, {mine, all});
  TORCH_CHECK_VALUE(all.numel() == mine.numel() * size(), "[", where, "] the whole has ", all.numel(),
                    " elements, one part ", mine.numel(), ", and there are ", size(),
                    " ranks. The whole must be as many parts.");
}

void TensorLine::check_list(const char* where, const List& list) const {
  TORCH_CHECK_VALUE(static_cast<int64_t>(list.size()) == size(), "[", where, "] the list has ", list.size(),
                    " tensors, but there are ", size(), " ranks. Give one tensor per rank.");
}

Wait TensorLine::broadcast(const at::Tensor& tensor, int64_t root) const {
  check("broadcast", {tensor});
  if (position() == root) return engine_->broadcast(line_, {flat_values(tensor)}, root);
  Target to(tensor);
  return then(engine_->broadcast(line_, {to.flat()}, root), [to] { to.fill(); });
}

Wait TensorLine::all_reduce(const List& tensors, ReduceOp op, bool later) const {
  for (auto& t : tensors) {
    check("all_reduce", {t});
    check_can_be_reduced("all_reduce", t, op);
  }
  if (tensors.size() == 1) return reduce_one(tensors[0], op, later);
  bool alike =
      std::all_of(tensors.begin(), tensors.end(), [&](auto& t) { return t.scalar_type() == tensors[0].scalar_type(); });
  if (alike && !tensors.empty()) {
    auto whole = joined(tensors);
    return then(reduce_one(whole, op, later), [whole, tensors] { unpack(whole, tensors); });
  }
  std::vector<Wait> waits;
  for (auto& t : tensors) waits.push_back(reduce_one(t, op, later));
  return together(std::move(waits));
}

Wait TensorLine::reduce_one(const at::Tensor& tensor, ReduceOp op, bool later) const {
  Target to(tensor);
  auto n = size();
  auto mine = in_place_ && to.direct() ? to.flat() : flat_copy(tensor);
  return then(engine_->all_reduce(line_, {mine}, {to.flat()}, as_carried(op), later), [to, op, n] {
    divide_if_avg(to.flat(), op, n);
    to.fill();
  });
}

// Only one part, the root's.
Wait TensorLine::reduce(const at::Tensor& tensor, ReduceOp op, int64_t root) const {
  check("reduce", {tensor});
  check_can_be_reduced("reduce", tensor, op);
  MemberCounts counts(size(), 0);
  counts[root] = tensor.numel();
  auto sum = at::empty({counts[position()]}, tensor.options());
  auto wait = engine_->reduce_scatter(line_, {flat_values(tensor)}, {counts}, {sum}, as_carried(op));
  if (position() != root) return wait;
  return then(std::move(wait), [sum, tensor, op, n = size()] {
    divide_if_avg(sum, op, n);
    tensor.copy_(sum.view(tensor.sizes()));
  });
}

Wait TensorLine::all_gather(const at::Tensor& mine, const at::Tensor& all) const {
  check_even("all_gather_into_tensor", all, mine);
  Target to(all);
  auto from = flat_values(mine);
  // It may be its own part of the whole; any other overlap needs a copy.
  bool in_place = from.data_ptr() == to.flat().narrow(0, position() * from.numel(), from.numel()).data_ptr();
  if (!in_place && from.is_alias_of(to.flat())) from = from.clone();
  return then(engine_->all_gather(line_, {from}, {to.flat()}, {MemberCounts(size(), mine.numel())}),
              [to] { to.fill(); });
}

Wait TensorLine::all_gather(const at::Tensor& mine, const List& all) const {
  check_list("all_gather", all);
  check("all_gather", {mine});
  check("all_gather", all);
  auto counts = counts_of(all);
  TORCH_CHECK_VALUE(counts[position()] == mine.numel() && all[0].scalar_type() == mine.scalar_type(),
                    "[all_gather] this rank has ", mine.numel(), " elements of ", mine.scalar_type(),
                    ", but its place in the list ", counts[position()], " of ", all[0].scalar_type(),
                    ". Make them agree.");
  auto whole = at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, mine.options());
  return then(engine_->all_gather(line_, {flat_values(mine)}, {whole}, {counts}), [whole, all] { unpack(whole, all); });
}

Wait TensorLine::gather(const at::Tensor& mine, const List& all, int64_t root) const {
  check("gather", {mine});
  MemberCounts sends(size(), 0), receives(size(), 0);
  sends[root] = mine.numel();
  if (position() == root) {
    check_list("gather", all);
    check("gather", all);
    receives = counts_of(all);
    TORCH_CHECK_VALUE(receives[root] == mine.numel() && all[0].scalar_type() == mine.scalar_type(),
                      "[gather] the root has ", mine.numel(), " elements of ", mine.scalar_type(),
                      ", but its place in the list ", receives[root], " of ", all[0].scalar_type(),
                      ". Make them agree.");
  }
  auto whole = at::empty({std::accumulate(receives.begin(), receives.end(), int64_t{0})}, mine.options());
  return then(exchange(flat_values(mine), sends, whole, receives), [whole, all] { unpack(whole, all); });
}

Wait TensorLine::scatter(const at::Tensor& mine, const List& all, int64_t root) const {
  check("scatter", {mine});
  MemberCounts sends(size(), 0), receives(size(), 0);
  receives[root] = mine.numel();
  auto whole = at::empty({0}, mine.options());
  if (position() == root) {
    check_list("scatter", all);
    check("scatter", all);
    sends = counts_of(all);
    TORCH_CHECK_VALUE(sends[root] == mine.numel() && all[0].scalar_type() == mine.scalar_type(),
                      "[scatter] the root takes ", mine.numel(), " elements of ", mine.scalar_type(),
                      ", but its place in the list has ", sends[root], " of ", all[0].scalar_type(),
                      ". Make them agree.");
    whole = joined(all);
  }
  Target to(mine);
  return then(exchange(whole, sends, to.flat(), receives), [to] { to.fill(); });
}

Wait TensorLine::reduce_scatter(const at::Tensor& all, const at::Tensor& mine, ReduceOp op) const {
  check_even("reduce_scatter_tensor", all, mine);
  return reduce_parts_of(flat_values(all), MemberCounts(size(), mine.numel()), mine, op);
}

Wait TensorLine::reduce_scatter(const List& all, const at::Tensor& mine, ReduceOp op) const {
  check_list("reduce_scatter", all);
  check("reduce_scatter", all);
  check("reduce_scatter", {all[0], mine});
  auto counts = counts_of(all);
  TORCH_CHECK_VALUE(counts[position()] == mine.numel(), "[reduce_scatter] this rank takes ", mine.numel(),
                    " elements, but its place in the list has ", counts[position()], ". Make them agree.");
  return reduce_parts_of(joined(all), counts, mine, op);
}

Wait TensorLine::reduce_parts_of(const at::Tensor& all, const MemberCounts& counts, const at::Tensor& mine,
                                 ReduceOp op) const {
  check_can_be_reduced("reduce_scatter", mine, op);
  bool shared = mine.is_alias_of(all);  // the result may be a part of the input
  Target to(mine);
  auto send = shared ? flat_copy(all) : all;
  return then(engine_->reduce_scatter(line_, {send}, {counts}, {to.flat()}, as_carried(op)), [to, op, n = size()] {
    divide_if_avg(to.flat(), op, n);
    to.fill();
  });
}

Wait TensorLine::exchange(const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                          const MemberCounts& receive_counts) const {
  return engine_->all_to_all(line_, {send}, {send_counts}, {receive}, {receive_counts});
}

// The counts for a tensor whose rows are sent to or come from the members.
MemberCounts TensorLine::rows(const char* where, const at::Tensor& tensor, const std::vector<int64_t>& splits) const {
  auto length = tensor.dim() ? tensor.size(0) : 1, row = length ? tensor.numel() / length : 0;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(length % size() == 0, "[", where, "] ", length, " rows do not divide evenly among ", size(),
                      " ranks. Give the splits.");
    return MemberCounts(size(), length / size() * row);
  }
  auto sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  bool negative = std::any_of(splits.begin(), splits.end(), [](auto split) { return split < 0; });
  TORCH_CHECK_VALUE(static_cast<int64_t>(splits.size()) == size() && sum == length && !negative, "[", where,
                    "] the splits are ", c10::ArrayRef<int64_t>(splits), ", but there are ", size(), " ranks and ",
                    length, " rows. Give one per rank that add up to these.");
  MemberCounts counts;
  for (auto split : splits) counts.push_back(split * row);
  return counts;
}

Wait TensorLine::all_to_all(const at::Tensor& send, std::vector<int64_t> send_splits, const at::Tensor& receive,
                            std::vector<int64_t> receive_splits) const {
  check("all_to_all_single", {send, receive});
  auto sends = rows("all_to_all_single", send, send_splits),
       receives = rows("all_to_all_single", receive, receive_splits);
  TORCH_CHECK_VALUE(sends[position()] == receives[position()], "[all_to_all_single] this rank sends ",
                    sends[position()], " elements to itself, but takes ", receives[position()],
                    ". Make the splits agree.");
  Target to(receive);
  auto from = send.is_alias_of(receive) ? flat_copy(send) : flat_values(send);
  return then(exchange(from, sends, to.flat(), receives), [to] { to.fill(); });
}

Wait TensorLine::all_to_all(const List& send, const List& receive) const {
  check_list("all_to_all", send);
  check_list("all_to_all", receive);
  check("all_to_all", send);
  check("all_to_all", receive);
  check("all_to_all", {send[0], receive[0]});
  auto sends = counts_of(send), receives = counts_of(receive);
  TORCH_CHECK_VALUE(sends[position()] == receives[position()], "[all_to_all] this rank sends ", sends[position()],
                    " elements to itself, but takes ", receives[position()], ". Make the lists agree.");
  auto whole = at::empty({std::accumulate(receives.begin(), receives.end(), int64_t{0})}, receive[0].options());
  return then(exchange(joined(send), sends, whole, receives), [whole, receive] { unpack(whole, receive); });
}

Wait TensorLine::barrier() const {
  auto mine = at::zeros({1}, at::kByte), all = at::zeros({size()}, at::kByte);
  return engine_->all_gather(line_, {mine}, {all}, {MemberCounts(size(), 1)});
}

}  // namespace intarsia
