#pragma once
// Placements: how one mesh axis distributes a tensor (Replicate, Shard, StridedShard, Partial, NormPartial,
// MaskedPartial).

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "intarsia/core/overloaded.h"

namespace intarsia {

// How the values of a Partial placement combine into the one true value.
enum class ReduceOp : uint8_t { sum, avg, product, min, max, band, bor, bxor };

// Every rank of the axis holds the whole tensor.
struct Replicate {
  auto operator<=>(const Replicate&) const = default;
};

// Tensor dim `dim` is split over the ranks of the axis as torch.chunk splits it. A negative dim counts from the end and
// is resolved when the placement meets a tensor.
struct Shard {
  int64_t dim;
  constexpr explicit Shard(int64_t dim) : dim(dim) {}
  auto operator<=>(const Shard&) const = default;
};

// Tensor dim `dim` is first split into `split` blocks, and each block is split over the ranks of the axis: with split 2
// on two ranks, rank 0 of 8 rows holds rows 0, 1, 4, 5. See Note [Strided shards].
struct StridedShard {
  int64_t dim;
  int64_t split;
  constexpr StridedShard(int64_t dim, int64_t split) : dim(dim), split(split) {}
  auto operator<=>(const StridedShard&) const = default;
};

// Every rank holds a value of full shape; the true value is their reduction by `op`.
struct Partial {
  ReduceOp op = ReduceOp::sum;
  constexpr Partial() = default;
  constexpr explicit Partial(ReduceOp op) : op(op) {}
  explicit Partial(std::string_view op);  // "sum", "avg", ...; "mul" and "prod" also mean product
  auto operator<=>(const Partial&) const = default;
};

// Every rank holds a norm of its part; the true value is the norm of these: the root of the sum of their powers.
struct NormPartial {
  double order;
  explicit NormPartial(double order);  // finite and above 0, else it is an error
  auto operator<=>(const NormPartial&) const = default;
};

// Every rank holds what it found in its part of a table of shape `table`, cut along `dim`, and 0 for the rest; the true
// value is the sum. PyTorch's DTensor distinguishes it from Partial(sum), and so does this library. Equal shapes share
// one vector, kept for good, so that placements stay trivially copyable.
class MaskedPartial {
 public:
  MaskedPartial(const std::vector<int64_t>& table, int64_t dim);
  const std::vector<int64_t>& table() const { return *table_; }
  int64_t dim() const { return dim_; }
  auto operator<=>(const MaskedPartial&) const = default;

 private:
  const std::vector<int64_t>* table_;
  int64_t dim_;
};

using Placement = std::variant<Replicate, Shard, StridedShard, Partial, NormPartial, MaskedPartial>;
using Placements = std::vector<Placement>;  // one per mesh axis

// Text forms: R, S(0), SS(0, 2), P(sum), P(norm 2), and [S(0), R] for a list. parse_* reads them back. A MaskedPartial
// prints as P(masked sum), which has no table to read back.
std::string str(ReduceOp op);
std::string str(const Placement& placement);
std::string str(const Placements& placements);
ReduceOp parse_reduce_op(std::string_view text);
Placement parse_placement(std::string_view text);
Placements parse_placements(std::string_view text);

// The same in every process.
size_t hash_value(const Placement& placement);

// Note [Kinds of placements]
// Code that asks something about a placement asks one of the functions below, and each of them visits all kinds. A new
// kind does not compile until each function handles it; no other code tests for one alternative and assumes the rest.

// Whether every rank holds the whole value.
inline bool is_replicate(const Placement& p) {
  return std::visit(overloaded{[](const Replicate&) { return true; }, [](const Shard&) { return false; },
                               [](const StridedShard&) { return false; }, [](const Partial&) { return false; },
                               [](const NormPartial&) { return false; }, [](const MaskedPartial&) { return false; }},
                    p);
}

// The value is pending: the ranks hold terms that have to be reduced.
inline bool is_partial(const Placement& p) {
  return std::visit(overloaded{[](const Replicate&) { return false; }, [](const Shard&) { return false; },
                               [](const StridedShard&) { return false; }, [](const Partial&) { return true; },
                               [](const NormPartial&) { return true; }, [](const MaskedPartial&) { return true; }},
                    p);
}

// The reduction of the ranks' terms, as they are, that gives the true value, where it is pending. A norm has none: the
// powers of its terms are summed.
inline std::optional<ReduceOp> pending_op(const Placement& p) {
  using Op = std::optional<ReduceOp>;
  return std::visit(
      overloaded{[](const Replicate&) { return Op(); }, [](const Shard&) { return Op(); },
                 [](const StridedShard&) { return Op(); }, [](const Partial& p) { return Op(p.op); },
                 [](const NormPartial&) { return Op(); }, [](const MaskedPartial&) { return Op(ReduceOp::sum); }},
      p);
}

// The order of a pending norm.
inline std::optional<double> norm_order(const Placement& p) {
  using Order = std::optional<double>;
  return std::visit(
      overloaded{[](const Replicate&) { return Order(); }, [](const Shard&) { return Order(); },
                 [](const StridedShard&) { return Order(); }, [](const Partial&) { return Order(); },
                 [](const NormPartial& p) { return Order(p.order); }, [](const MaskedPartial&) { return Order(); }},
      p);
}

// A masked sum, for those that answer as PyTorch's DTensor does.
inline bool is_masked(const Placement& p) {
  return std::visit(overloaded{[](const Replicate&) { return false; }, [](const Shard&) { return false; },
                               [](const StridedShard&) { return false; }, [](const Partial&) { return false; },
                               [](const NormPartial&) { return false; }, [](const MaskedPartial&) { return true; }},
                    p);
}

// The reduction of the collective that reduces a pending value: for a norm the sum, of powers.
ReduceOp collective_op(const Placement& p);

// The terms add up: sums, masked sums, and averages, which are sums that are divided at the end.
bool adds_up(const Placement& p);

// The tensor dim that the placement shards (plainly or strided), or -1.
inline int64_t cut_dim(const Placement& p) {
  return std::visit(
      overloaded{[](const Replicate&) { return int64_t{-1}; }, [](const Shard& s) { return s.dim; },
                 [](const StridedShard& s) { return s.dim; }, [](const Partial&) { return int64_t{-1}; },
                 [](const NormPartial&) { return int64_t{-1}; }, [](const MaskedPartial&) { return int64_t{-1}; }},
      p);
}

// The number of blocks into which that dim is split before each block is split over the ranks: 1 for a plain Shard and
// where no dim is sharded.
inline int64_t cut_blocks(const Placement& p) {
  return std::visit(
      overloaded{[](const Replicate&) { return int64_t{1}; }, [](const Shard&) { return int64_t{1}; },
                 [](const StridedShard& s) { return s.split; }, [](const Partial&) { return int64_t{1}; },
                 [](const NormPartial&) { return int64_t{1}; }, [](const MaskedPartial&) { return int64_t{1}; }},
      p);
}

// Whether it is a plain Shard: every rank holds one run of positions.
inline bool is_shard(const Placement& p) { return cut_dim(p) >= 0 && cut_blocks(p) == 1; }

// The same shard with another number of blocks; Replicate and Partial are returned unchanged.
Placement with_cut_blocks(const Placement& placement, int64_t blocks);

// The same placement with its dim moved to `dim`.
Placement with_cut_dim(const Placement& placement, int64_t dim);

// What is pending becomes Replicate, everything else stays: the layout in which a gradient travels.
Placement settled(const Placement& placement);
Placements settled(const Placements& placements);

// Resolves negative dims against a tensor of `ndim` dims; an impossible dim is an error that names `where`.
Placements normalized(const Placements& placements, int64_t ndim, std::string_view where);

}  // namespace intarsia
