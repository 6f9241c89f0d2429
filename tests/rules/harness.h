#pragma once
// Proves the rows of every rule: deals inputs to n ranks as a row says, runs the plain op on each, puts the results
// together as the row says, and compares with the plain op on the whole. No dispatch and no redistribution take part.

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "intarsia/rules/table.h"

namespace intarsia {

// One call of an op: the arguments as its schema lists them. Floating tensors are also tried in other dtypes.
struct Sample {
  std::string op;
  std::vector<c10::IValue> args;
  bool values = true;         // false: only shapes are compared (empty_like)
  bool whole_numbers = true;  // false: the plain op answers differently from run to run for whole numbers
  bool gradient = true;       // false: LibTorch's formula of the gradient mixes plain tensors with distributed ones
};

// All samples, by family. A new op is one line in one of the samples*.cpp.
const std::vector<Sample>& samples();
void add_pointwise_samples(std::vector<Sample>& list);
void add_other_samples(std::vector<Sample>& list);
void add_nn_samples(std::vector<Sample>& list);
void add_convolution_samples(std::vector<Sample>& list);
void add_structure_samples(std::vector<Sample>& list);
void add_special_samples(std::vector<Sample>& list);
void add_module_samples(std::vector<Sample>& list);

// Whether only other ops call it: its kernel may take on trust that its tensors fit together and lie as those leave
// them.
bool is_inner(const std::string& op);

// Tensors of values that differ from each other: around zero, above zero, between -1 and 1; and whole numbers below n.
at::Tensor x(std::vector<int64_t> sizes);
at::Tensor pos(std::vector<int64_t> sizes);
at::Tensor unit(std::vector<int64_t> sizes);
at::Tensor below(int64_t n, std::vector<int64_t> sizes);

// A sample with its tensors cast, seen as rules see calls.
class SampleCall {
 public:
  SampleCall(const Sample& sample, at::ScalarType dtype);

  bool runs() const { return runs_; }  // whether the plain op takes this dtype
  const c10::FunctionSchema& schema() const { return handle_.schema(); }
  const c10::OperatorHandle& handle() const { return handle_; }
  OpCall seen() const { return {schema(), args_, inputs_, outputs_}; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }    // of the arguments, flattened
  const std::vector<at::Tensor>& expected() const { return expected_; }  // of the plain op
  std::vector<c10::IValue> with_tensors(const std::vector<at::Tensor>& tensors) const;
  std::string text() const;  // aten::add.Tensor([5, 3] Double, [3] Double)

 private:
  c10::OperatorHandle handle_;
  std::vector<c10::IValue> args_;
  std::vector<at::Tensor> tensors_, expected_;
  std::vector<TensorForm> inputs_, outputs_;
  bool runs_ = true;
};

std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& values);

// A row on each axis of a mesh.
struct Trial {
  std::vector<Row> rows;  // one per axis
  std::vector<int64_t> mesh_shape;
};

// Whether the values of the call can lie as the rows say, and the rule holds the whole layouts for legal.
bool possible(const SampleCall& call, const Rule& rule, const Trial& trial);

// Runs the op on every rank. One list of results per rank.
std::vector<std::vector<at::Tensor>> run_on_ranks(const SampleCall& call, const Rule& rule, const Trial& trial);

// Empty if the results make the expected whole; else what is wrong.
std::string verdict(const SampleCall& call, const std::vector<std::vector<at::Tensor>>& results, const Trial& trial,
                    bool values);

// Both in one.
std::string try_rows(const SampleCall& call, const Rule& rule, const Trial& trial, bool values = true);

std::string text_of(const Trial& trial);

}  // namespace intarsia
