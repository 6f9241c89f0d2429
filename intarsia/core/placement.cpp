#include "intarsia/core/placement.h"

#include <array>
#include <charconv>

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include "intarsia/core/more_reductions.h"
#include "intarsia/core/overloaded.h"

namespace intarsia {
namespace {

constexpr std::array<std::string_view, 8> kReduceNames = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};

std::string_view trim(std::string_view text) {
  auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

[[noreturn]] void refuse(std::string_view text) {
  TORCH_CHECK_VALUE(false, "[parse_placement] \"", text,
                    "\" is not a placement. Write R, S(dim), SS(dim, split) or P(op).");
}

int64_t parse_int(std::string_view text, std::string_view whole) {
  text = trim(text);
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(whole);
  return value;
}

double parse_number(std::string_view text, std::string_view whole) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(error == std::errc{} && end == text.data() + text.size(), "[Partial] \"", whole,
                    "\" has no order. Write a number behind it: \"norm 2\".");
  return value;
}

// The same in every process: processes may have registered the reductions without a name in different orders.
size_t hash_of(ReduceOp op) {
  if (auto order = norm_order(op)) return c10::get_hash(-1, *order);
  if (auto* sum = masked_sum_of(op)) return c10::get_hash(-2, sum->table, sum->dim);
  return c10::get_hash(static_cast<int>(op));
}

}  // namespace

Partial::Partial(std::string_view name) : op(parse_reduce_op(name)) {}

std::string str(ReduceOp op) {
  if (auto order = norm_order(op)) return c10::str("norm ", *order);
  if (masked_sum_of(op)) return "masked sum";
  return std::string(kReduceNames[static_cast<size_t>(op)]);
}

std::string str(const Placement& placement) {
  return std::visit(
      overloaded{
          [](Replicate) { return std::string("R"); },
          [](Shard s) { return "S(" + std::to_string(s.dim) + ")"; },
          [](StridedShard s) { return "SS(" + std::to_string(s.dim) + ", " + std::to_string(s.split) + ")"; },
          [](Partial p) { return "P(" + str(p.op) + ")"; },
      },
      placement);
}

std::string str(const Placements& placements) {
  std::string text = "[";
  for (size_t i = 0; i < placements.size(); ++i) text += (i ? ", " : "") + str(placements[i]);
  return text + "]";
}

ReduceOp parse_reduce_op(std::string_view text) {
  if (text == "mul" || text == "prod") return ReduceOp::product;
  for (size_t i = 0; i < kReduceNames.size(); ++i) {
    if (kReduceNames[i] == text) return static_cast<ReduceOp>(i);
  }
  if (text.starts_with("norm ")) return norm_op(parse_number(text.substr(5), text));
  TORCH_CHECK_VALUE(
      false, "[Partial] \"", text,
      "\" is not a reduction. Use sum, avg, product, min, max, band, bor, bxor or a norm, such as \"norm 2\".");
}

Placement parse_placement(std::string_view whole) {
  auto text = trim(whole);
  if (text == "R") return Replicate();
  auto open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') refuse(whole);
  auto name = text.substr(0, open), inside = text.substr(open + 1, text.size() - open - 2);
  if (name == "S") return Shard(parse_int(inside, whole));
  if (name == "P") return Partial(trim(inside));
  auto comma = inside.find(',');
  if (name != "SS" || comma == std::string_view::npos) refuse(whole);
  return StridedShard(parse_int(inside.substr(0, comma), whole), parse_int(inside.substr(comma + 1), whole));
}

Placements parse_placements(std::string_view whole) {
  auto text = trim(whole);
  TORCH_CHECK_VALUE(text.size() >= 2 && text.front() == '[' && text.back() == ']', "[parse_placements] \"", whole,
                    "\" is not a list of placements. Write them in brackets: [S(0), R].");
  text = trim(text.substr(1, text.size() - 2));
  if (text.empty()) return {};
  Placements result;
  size_t depth = 0, start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    result.push_back(parse_placement(text.substr(start, i - start)));
    start = i + 1;
  }
  return result;
}

size_t hash_value(const Placement& placement) {
  auto content = std::visit(overloaded{
                                [](Replicate) { return size_t{0}; },
                                [](Shard s) { return c10::get_hash(s.dim); },
                                [](StridedShard s) { return c10::get_hash(s.dim, s.split); },
                                [](Partial p) { return hash_of(p.op); },
                            },
                            placement);
  return c10::hash_combine(placement.index(), content);
}

Placement with_cut_dim(const Placement& placement, int64_t dim) {
  return std::visit(
      overloaded{[](Replicate r) -> Placement { return r; }, [&](Shard) -> Placement { return Shard(dim); },
                 [&](StridedShard s) -> Placement { return StridedShard(dim, s.split); },
                 [](Partial p) -> Placement { return p; }},
      placement);
}

Placement with_cut_blocks(const Placement& placement, int64_t blocks) {
  auto cut = [&](int64_t dim) { return blocks == 1 ? Placement(Shard(dim)) : Placement(StridedShard(dim, blocks)); };
  return std::visit(overloaded{[](Replicate r) -> Placement { return r; }, [&](Shard s) { return cut(s.dim); },
                               [&](StridedShard s) { return cut(s.dim); }, [](Partial p) -> Placement { return p; }},
                    placement);
}

Placement settled(const Placement& placement) {
  return std::visit(
      overloaded{[](Replicate r) -> Placement { return r; }, [](Shard s) -> Placement { return s; },
                 [](StridedShard s) -> Placement { return s; }, [](Partial) -> Placement { return Replicate(); }},
      placement);
}

Placements settled(const Placements& placements) {
  Placements result;
  for (auto& p : placements) result.push_back(settled(p));
  return result;
}

Placements normalized(const Placements& placements, int64_t ndim, std::string_view where) {
  auto resolve = [&](int64_t dim) {
    TORCH_CHECK_INDEX(-ndim <= dim && dim < ndim, "[", where, "] ", str(placements), " cuts dim ", dim,
                      ", but the tensor has ", ndim, " dims. Shard one of its dims.");
    return dim < 0 ? dim + ndim : dim;
  };
  auto strided = [&](StridedShard s) {
    TORCH_CHECK_VALUE(s.split >= 1, "[", where, "] ", str(Placement(s)), " has split ", s.split,
                      ". The number of blocks must be at least 1.");
    return with_cut_blocks(Shard(resolve(s.dim)), s.split);
  };
  Placements result;
  for (auto& p : placements) {
    result.push_back(std::visit(overloaded{[](Replicate r) -> Placement { return r; },
                                           [&](Shard s) -> Placement { return Shard(resolve(s.dim)); }, strided,
                                           [](Partial p) -> Placement { return p; }},
                                p));
  }
  return result;
}

}  // namespace intarsia
