#include "intarsia/simulation/per_rank/per_rank.h"

#include <ATen/ATen.h>
#include <torch/csrc/utils/python_symnode.h>

#include "bindings.h"
#include "intarsia/simulation/fan_out/fan_out_write.h"
#include "intarsia/simulation/per_rank/number.h"

namespace intarsia::python {
namespace {

Shards as_shards(const GivenTensors& values) { return {values.begin(), values.end()}; }

// A symbolic number of Python. PyTorch's casts would hide our floats and bools inside another node.
c10::IValue number_from(py::handle number) {
  if (!torch::is_symint(number) && !torch::is_symfloat(number) && !torch::is_symbool(number)) return {};
  auto inside = number.attr("node");
  if (!py::isinstance<c10::SymNodeImpl>(inside)) return {};
  auto node = inside.cast<c10::SymNode>();
  if (node->is_int()) return c10::SymInt(node);
  if (node->is_float()) return c10::SymFloat(node);
  return c10::SymBool(node);
}

py::object plain_number(const c10::IValue& number) {
  if (number.isBool()) return py::bool_(number.toBool());
  if (number.isDouble()) return py::float_(number.toDouble());
  return py::int_(number.toInt());
}

py::list numbers(py::handle number) {
  py::list all;
  for (auto& one : numbers_of(number_from(number))) all.append(plain_number(one));
  return all;
}

}  // namespace

void bind_per_rank(py::module_& m) {
  m.def(
      "is_per_rank", [](const GivenTensor& tensor) { return is_per_rank(tensor); },
      "Whether a tensor stands for one per simulated rank.");
  m.def(
      "values_of",
      [](const GivenTensor& tensor) {
        auto& values = values_of(tensor);
        return std::vector<at::Tensor>(values.begin(), values.end());
      },
      "The values of a tensor that stands for one per rank.");
  m.def(
      "per_rank", [](const GivenTensors& values) { return per_rank(as_shards(values)); },
      "One tensor that stands for these, one per hosted rank.");
  m.def(
      "become_per_rank", [](const GivenTensor& tensor, size_t slots) { become_per_rank(tensor, slots); },
      py::arg("tensor"), py::arg("slots"), "Lets a plain tensor stand for one per rank, each with its value.");
  m.def(
      "become_number",
      [](const GivenTensor& tensor, const GivenTensors& values) { become_number(tensor, as_shards(values)); },
      "Lets the tensor behind a Python number stand for one per rank.");
  m.def("per_rank_int", &per_rank_int, "A number that is one per hosted rank.");
  m.def("numbers_of", &numbers, "The values of a number that is one per rank; none for any other.");
}

}  // namespace intarsia::python
