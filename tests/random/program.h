#pragma once
// A random program: a list of steps over numbered values, drawn while it runs on plain tensors, so that every step is
// one that the plain op accepts. The same steps then run on distributed tensors.

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/placement.h"

namespace intarsia {

// The name of a value in the text of a program.
namespace program_text {
inline std::string v(size_t i) { return "v" + std::to_string(i); }
}  // namespace program_text

using ProgramValues = std::vector<at::Tensor>;

struct ProgramStep {
  std::string text;
  std::function<ProgramValues(const ProgramValues&)> run;  // new values; an in-place step has none
  at::Tensor leaf;                                         // defined: this step is an input
  std::optional<Placements> placements;                    // of the input, or what to redistribute to
  size_t source = 0;                                       // of a redistribution
  bool async = false;                                      // which is only begun
  bool jumbled = false;                                    // the input's local tensors are not contiguous
};

struct Program {
  uint64_t seed;
  std::vector<int64_t> mesh_shape;
  std::vector<ProgramStep> steps;
  ProgramValues values;        // of the plain run
  std::vector<size_t> losses;  // values whose weighted sum is differentiated
  std::vector<size_t> leaves;  // values that are inputs and require grad
  double tolerance = 1e-8;
};

Program draw_program(uint64_t seed);
std::string str(const Program& program);

// Empty if the distributed run agrees with the plain one, in values and gradients; else what is wrong.
// `refused` is set where an in-place step rightly refuses to change a placement.
std::string compare(const Program& program, bool* refused);

// Draws steps. Every op below `ops()` adds one step (or none, if the plain op throws).
class Builder {
 public:
  explicit Builder(uint64_t seed);

  int64_t below(int64_t n) { return n <= 0 ? 0 : static_cast<int64_t>(rng_() % n); }
  bool chance(double p) { return (rng_() % 1000) < p * 1000; }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return *(list.begin() + below(list.size()));
  }

  size_t any();                               // some value
  std::optional<size_t> any_of(int64_t dim);  // some value of that many dims
  const at::Tensor& at(size_t i) const { return program_.values[i]; }
  size_t leaf(std::vector<int64_t> shape, at::ScalarType dtype);
  size_t leaf(at::Tensor whole, bool may_be_jumbled = true);  // of these values
  size_t partner(size_t i);                                   // a value that broadcasts with value i
  int64_t dim_of(size_t i) { return below(at(i).dim()) - (chance(0.3) && at(i).dim() ? at(i).dim() : 0); }

  bool emit(std::string text, std::function<ProgramValues(const ProgramValues&)> run);
  void redistribute(size_t source);
  void write_locally(size_t i);  // to the local tensors of value i
  Placements placements(int64_t ndim, at::ScalarType dtype, bool pending);
  Program finish();

 private:
  std::mt19937_64 rng_;
  Program program_;
  bool writes_locally_ = false;
};

using DrawOp = void (*)(Builder&);
const std::vector<DrawOp>& ops();
const std::vector<DrawOp>& more_ops();  // of more families
void draw_sample(Builder& builder);     // any op that has a rule, as the samples of the rules call it

// The logarithm of complex numbers without its jump: beside the negative numbers rounding decides between pi and -pi.
inline at::Tensor without_jump(const at::Tensor& logarithm) {
  return logarithm.is_complex() ? at::exp(logarithm) : logarithm;
}

}  // namespace intarsia
