#pragma once
// Draws parts of the numbers that the plain op would draw for a whole tensor, at the cost of these parts: see Note
// [What an op draws].

#include <cstdint>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

#include "intarsia/random/mt19937.h"
#include "intarsia/random/runs.h"
#include "intarsia/random/use.h"

namespace intarsia {

class Drawer {
 public:
  // `arguments` are those of the op for the whole, of which `total` elements of `dtype` are drawn, from the present
  // state of the generator. The caller holds the generator's lock, here and in finish and undo.
  Drawer(const c10::OperatorHandle& op, Stack arguments, const StreamUse& use, int64_t total, at::ScalarType dtype,
         bool contiguous, at::CPUGeneratorImpl& generator);

  // Fills `shard` (flat and contiguous) with its part of the whole. If the op has a tensor as its second argument,
  // `beside` is the shard's part of that.
  void draw(const at::Tensor& shard, const HeldRuns& held, const at::Tensor& beside = {});

  // Leaves the generator in the state after drawing the whole.
  void finish(at::CPUGeneratorImpl& generator);

  // Leaves the generator as it was.
  void undo(at::CPUGeneratorImpl& generator);

 private:
  // Elements that are drawn in order, unit after unit, from `word` on.
  struct Stretch {
    int64_t begin, end;
    int64_t word;
  };
  struct Piece {
    int64_t from, to, count;
  };

  void add_stretches();
  void take_kept(const HeldRuns& held);
  void take(const Stretch& stretch, int64_t begin, int64_t count, int64_t to);
  void take_directly(int64_t word, int64_t count, int64_t to);
  void gather(int64_t word, int64_t from, int64_t count, int64_t to);
  void flush();
  void seek(int64_t word);
  void set(at::CPUGeneratorImpl& generator, const Mt19937State& state, std::optional<double> keeps);
  void call(const at::Tensor& target, const Mt19937State& from, int64_t place_beside);

  c10::OperatorHandle op_;
  Stack arguments_;
  StreamUse use_;
  int64_t total_;
  at::ScalarType dtype_;
  bool contiguous_;
  std::vector<Stretch> stretches_;
  int64_t words_ = 0;  // for the whole
  int64_t kept_ = 0;   // elements that the generator had kept: one, or none

  at::Generator scratch_;
  at::CPUGeneratorImpl& drawing_;  // the same
  at::mt19937 engine_;
  Mt19937State start_, now_;
  int64_t at_ = 0;  // words from start_ to now_
  std::optional<double> kept_number_;

  at::Tensor shard_, beside_;  // that are being filled, and read
  std::vector<uint32_t> gathered_;
  std::vector<Piece> pieces_;
  int64_t last_word_ = -1;  // of the unit that was gathered last
};

}  // namespace intarsia
