#pragma once
// What one mesh axis does with a tensor: copies it, cuts it, or leaves a reduction pending.

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace intarsia {

// How the values of a Partial placement combine into the one true value.
enum class ReduceOp : uint8_t { sum, avg, product, min, max, band, bor, bxor };

// Every rank of the axis holds the whole tensor.
struct Replicate {
  auto operator<=>(const Replicate&) const = default;
};

// Tensor dim `dim` is cut over the ranks of the axis as torch.chunk cuts. A negative dim counts from the end
// and is resolved when the placement meets a tensor.
struct Shard {
  int64_t dim;
  constexpr explicit Shard(int64_t dim) : dim(dim) {}
  auto operator<=>(const Shard&) const = default;
};

// Tensor dim `dim` is first cut into `split` blocks, and each block is cut over the ranks of the axis:
// with split 2 on two ranks, rank 0 of 8 rows holds rows 0, 1, 4, 5. See Note [Strided shards].
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

using Placement = std::variant<Replicate, Shard, StridedShard, Partial>;
using Placements = std::vector<Placement>;  // one per mesh axis

// Text forms: R, S(0), SS(0, 2), P(sum), and [S(0), R] for a list. parse_* reads them back.
std::string str(ReduceOp op);
std::string str(const Placement& placement);
std::string str(const Placements& placements);
ReduceOp parse_reduce_op(std::string_view text);
Placement parse_placement(std::string_view text);
Placements parse_placements(std::string_view text);

size_t hash_value(const Placement& placement);

inline bool is_replicate(const Placement& p) { return std::holds_alternative<Replicate>(p); }
inline bool is_partial(const Placement& p) { return std::holds_alternative<Partial>(p); }
inline bool is_shard(const Placement& p) { return std::holds_alternative<Shard>(p); }

// The tensor dim that the placement cuts (plainly or strided), or -1.
int64_t cut_dim(const Placement& placement);

// The same placement with its dim moved to `dim`.
Placement with_cut_dim(const Placement& placement, int64_t dim);

// Partial becomes Replicate, everything else stays: the layout in which a gradient travels.
Placement settled(const Placement& placement);
Placements settled(const Placements& placements);

// Resolves negative dims against a tensor of `ndim` dims; an impossible dim is an error that names `where`.
Placements normalized(const Placements& placements, int64_t ndim, std::string_view where);

}  // namespace intarsia
