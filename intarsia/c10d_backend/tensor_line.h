#pragma once
// Collectives on tensors of any form along one line, composed of those that an engine has for flat memory.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/engine.h"
#include "intarsia/comm/group.h"

namespace intarsia {

// Every function starts a collective of all members and checks its arguments before anything is sent. Tensors are in
// CPU memory; they need not be contiguous, lists need not be even, and avg is an ordinary op. `where` is the function
// that errors name.
class TensorLine {
 public:
  using List = std::vector<at::Tensor>;
  TensorLine(std::unique_ptr<const Engine> engine, Line line);
  void reduce_in_place() { in_place_ = true; }  // the engine can do so

  const Engine& engine() const { return *engine_; }
  const Line& line() const { return line_; }
  const std::vector<int64_t>& ranks() const { return line_.ranks[0]; }
  int64_t size() const { return line_.size; }
  int64_t position() const { return line_.position[0]; }

  Wait broadcast(const at::Tensor& tensor, int64_t root) const;
  Wait all_reduce(const List& tensors, ReduceOp op, bool later) const;  // in place; as one if they have one dtype
  Wait reduce(const at::Tensor& tensor, ReduceOp op,
              int64_t root) const;  // in place at the root, nothing changes elsewhere
  Wait all_gather(const at::Tensor& mine, const at::Tensor& all) const;
  Wait all_gather(const at::Tensor& mine, const List& all) const;
  Wait gather(const at::Tensor& mine, const List& all, int64_t root) const;   // `all`: empty but at the root
  Wait scatter(const at::Tensor& mine, const List& all, int64_t root) const;  // the same
  Wait reduce_scatter(const at::Tensor& all, const at::Tensor& mine, ReduceOp op) const;
  Wait reduce_scatter(const List& all, const at::Tensor& mine, ReduceOp op) const;
  // Splits are counts of rows; empty: even.
  Wait all_to_all(const at::Tensor& send, std::vector<int64_t> send_splits, const at::Tensor& receive,
                  std::vector<int64_t> receive_splits) const;
  Wait all_to_all(const List& send, const List& receive) const;
  Wait barrier() const;

 private:
  void check(const char* where, const List& tensors) const;
  void check_even(const char* where, const at::Tensor& all, const at::Tensor& mine) const;
  void check_list(const char* where, const List& list) const;
  Wait reduce_one(const at::Tensor& tensor, ReduceOp op, bool later) const;
  Wait reduce_parts_of(const at::Tensor& all, const MemberCounts& counts, const at::Tensor& mine, ReduceOp op) const;
  Wait exchange(const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                const MemberCounts& receive_counts) const;
  MemberCounts rows(const char* where, const at::Tensor& tensor, const std::vector<int64_t>& splits) const;

  std::unique_ptr<const Engine> engine_;
  Line line_;
  bool in_place_ = false;
};

// Waits for all of them; some may be empty.
Wait together(std::vector<Wait> waits);

}  // namespace intarsia
