#include "tests/support/dealer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "intarsia/core/overloaded.h"

namespace intarsia {
namespace {

at::Generator& generator() {
  static auto* g = new at::Generator(at::detail::createCPUGenerator(1));
  return *g;
}

bool whole_numbers(const at::Tensor& t) { return at::isIntegralType(t.scalar_type(), true); }

// Small multiples of 1/4, so that sums of a few are exact in every floating type.
at::Tensor noise(const at::Tensor& like, int64_t low, int64_t high) {
  auto draw = at::randint(low, high, like.sizes(), generator(), at::TensorOptions(at::kDouble));
  if (like.scalar_type() == at::kBool) return draw > (low + high) / 2.0;
  if (whole_numbers(like)) return draw.to(like.scalar_type());
  return draw.div_(4).to(like.scalar_type());
}

at::Tensor coin(const at::Tensor& like) {
  return at::randint(0, 2, like.sizes(), generator(), at::TensorOptions(at::kLong)) == 0;
}

// The parts of a tensor cut as torch.chunk cuts, empty ones included.
Parts chunks(const at::Tensor& whole, int64_t n, int64_t dim) {
  auto parts = whole.chunk(n, dim);
  if (whole.size(dim) == 0) parts = {whole};
  while (static_cast<int64_t>(parts.size()) < n) parts.push_back(whole.narrow(dim, 0, 0));
  return parts;
}

Parts strided(const at::Tensor& whole, StridedShard p, int64_t n) {
  std::vector<Parts> of_rank(n);
  for (auto& block : chunks(whole, p.split, p.dim)) {
    auto parts = chunks(block, n, p.dim);
    for (int64_t i = 0; i < n; ++i) of_rank[i].push_back(parts[i]);
  }
  Parts result;
  for (auto& parts : of_rank) result.push_back(at::cat(parts, p.dim));
  return result;
}

// The others may be anything that the reduction absorbs: far away, too, so that it may lie outside an op's domain.
Parts absorbed(const at::Tensor& whole, ReduceOp op, int64_t n) {
  Parts parts(n);
  auto owner = at::randint(0, n, whole.sizes(), generator(), at::TensorOptions(at::kLong));
  bool logical = whole.scalar_type() == at::kBool;
  for (int64_t i = 0; i < n; ++i) {
    at::Tensor other;
    switch (op) {
      case ReduceOp::max: other = logical ? whole & coin(whole) : whole - noise(whole, 0, 40).abs(); break;
      case ReduceOp::min: other = logical ? whole | coin(whole) : whole + noise(whole, 0, 40).abs(); break;
      case ReduceOp::band: other = whole | noise(whole, 0, 64); break;
      default: other = whole & noise(whole, 0, 64); break;
    }
    if (at::isIntegralType(whole.scalar_type(), false) && op == ReduceOp::max) other = at::minimum(other, whole);
    if (at::isIntegralType(whole.scalar_type(), false) && op == ReduceOp::min) other = at::maximum(other, whole);
    parts[i] = at::where(owner == i, whole, other);
  }
  return parts;
}

// Terms that keep every bit of a short float: 2v on one rank, -v on the next, nothing on the others.
Parts exact_terms(const at::Tensor& whole, int64_t n) {
  auto owner = at::randint(0, n, whole.sizes(), generator(), at::TensorOptions(at::kLong));
  Parts parts;
  for (int64_t i = 0; i < n; ++i) {
    auto factor = at::where(owner == i, 2, 0) - at::where(at::remainder(owner + 1, n) == i, 1, 0);
    parts.push_back(at::where(factor == 0, at::zeros_like(whole), whole * factor.to(whole.scalar_type())));
  }
  return parts;
}

Parts terms(const at::Tensor& whole, int64_t n) {
  if (whole.scalar_type() == at::kBool) return absorbed(whole, ReduceOp::bor, n);
  if (whole.is_floating_point() && whole.element_size() == 2) return exact_terms(whole, n);
  Parts parts;
  auto rest = whole.clone();
  for (int64_t i = 1; i < n; ++i) {
    parts.push_back(noise(whole, whole.scalar_type() == at::kByte ? 0 : -20, 200 / n));
    rest = rest - parts.back();
  }
  parts.push_back(rest);
  return parts;
}

Parts factors(const at::Tensor& whole, int64_t n) {
  if (whole.scalar_type() == at::kBool) return absorbed(whole, ReduceOp::band, n);
  Parts parts;
  auto rest = whole.clone();
  for (int64_t i = 1; i < n; ++i) {
    auto sign = at::where(coin(whole), 1, -1).to(whole.scalar_type());
    auto factor = whole_numbers(whole) ? sign : at::where(coin(whole), sign * 2, sign);
    parts.push_back(whole_numbers(whole) ? factor : factor.to(whole.scalar_type()));
    rest = whole_numbers(whole) ? rest * factor : rest / factor;
  }
  parts.push_back(rest);
  return parts;
}

Parts parities(const at::Tensor& whole, int64_t n) {
  Parts parts;
  auto rest = whole.clone();
  for (int64_t i = 1; i < n; ++i) {
    parts.push_back(noise(whole, 0, 64));
    rest = rest ^ parts.back();
  }
  parts.push_back(rest);
  return parts;
}

Parts pending(const at::Tensor& whole, ReduceOp op, int64_t n) {
  switch (op) {
    case ReduceOp::sum: return terms(whole, n);
    case ReduceOp::avg: return terms(whole * n, n);
    case ReduceOp::product: return factors(whole, n);
    case ReduceOp::bxor: return parities(whole, n);
    default: return absorbed(whole, op, n);
  }
}

// Norms whose norm is `whole`, which has no negative number.
Parts norms(const at::Tensor& whole, double order, int64_t n) {
  Parts parts;
  for (int64_t i = 0; i < n; ++i)
    parts.push_back(whole * std::pow(2.0 * (i + 1) / static_cast<double>(n * (n + 1)), 1 / order));
  return parts;
}

Parts deal_axis(const at::Tensor& whole, const Placement& placement, int64_t n) {
  return std::visit(overloaded{
                        [&](Replicate) { return Parts(n, whole); },
                        [&](Shard s) { return chunks(whole, n, s.dim); },
                        [&](StridedShard s) { return strided(whole, s, n); },
                        [&](const Partial& p) { return pending(whole, p.op, n); },
                        [&](const NormPartial& p) { return norms(whole, p.order, n); },
                        [&](const MaskedPartial&) { return terms(whole, n); },
                    },
                    placement);
}

void deal_from(const at::Tensor& whole, size_t axis, const Placements& placements,
               const std::vector<int64_t>& mesh_shape, Parts& pieces) {
  if (axis == placements.size()) return pieces.push_back(whole);
  if (is_replicate(placements[axis])) {  // replicas are equal to the last bit, whatever is drawn further in
    Parts one;
    deal_from(whole, axis + 1, placements, mesh_shape, one);
    for (int64_t i = 0; i < mesh_shape[axis]; ++i) pieces.insert(pieces.end(), one.begin(), one.end());
    return;
  }
  for (auto& part : deal_axis(whole, placements[axis], mesh_shape[axis])) {
    deal_from(part, axis + 1, placements, mesh_shape, pieces);
  }
}

at::Tensor norm_of(const Parts& parts, double order) {
  auto powers = at::zeros_like(parts[0], at::kDouble);
  for (auto& part : parts) powers += at::pow(at::abs(part).to(at::kDouble), order);
  return at::pow(powers, 1 / order).to(parts[0].scalar_type());
}

at::Tensor reduced(const Parts& parts, const Placement& placement) {
  if (auto order = norm_order(placement)) return norm_of(parts, *order);
  auto op = collective_op(placement);
  auto result = parts[0];
  bool logical = result.scalar_type() == at::kBool;
  for (size_t i = 1; i < parts.size(); ++i) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result = logical ? result | parts[i] : result + parts[i]; break;
      case ReduceOp::product: result = logical ? result & parts[i] : result * parts[i]; break;
      case ReduceOp::min: result = at::minimum(result, parts[i]); break;
      case ReduceOp::max: result = at::maximum(result, parts[i]); break;
      case ReduceOp::band: result = result & parts[i]; break;
      case ReduceOp::bor: result = result | parts[i]; break;
      case ReduceOp::bxor: result = result ^ parts[i]; break;
    }
  }
  return op == ReduceOp::avg ? result / static_cast<int64_t>(parts.size()) : result;
}

void expect_shape(const at::Tensor& piece, at::IntArrayRef shape, int64_t rank) {
  TORCH_CHECK(piece.sizes() == shape, "rank ", rank, " holds ", piece.sizes(), ", not ", shape);
}

at::Tensor put_axis(const Parts& parts, const Placement& placement, at::IntArrayRef shape) {
  auto n = static_cast<int64_t>(parts.size());
  if (is_partial(placement)) {
    for (int64_t i = 0; i < n; ++i) expect_shape(parts[i], shape, i);
    return reduced(parts, placement);
  }
  if (is_replicate(placement)) {
    for (int64_t i = 0; i < n; ++i) {
      expect_shape(parts[i], shape, i);
      auto unlike = difference(parts[i], parts[0], 1e-9);
      TORCH_CHECK(unlike.empty(), "rank ", i, " holds another replica: ", unlike);
    }
    return parts[0];
  }
  // Where each rank's positions lie is found by dealing out the positions themselves.
  auto whole = at::zeros(shape, parts[0].options());
  auto dim = cut_dim(placement);
  auto positions = deal_axis(at::arange(shape[dim]), with_cut_dim(placement, 0), n);
  for (int64_t i = 0; i < n; ++i) {
    auto expected = shape.vec();
    expected[dim] = positions[i].numel();
    expect_shape(parts[i], expected, i);
    whole.index_copy_(dim, positions[i], parts[i]);
  }
  return whole;
}

}  // namespace

void seed_dealer(uint64_t seed) { generator().set_current_seed(seed); }

Parts deal_out(const at::Tensor& whole, const Placements& placements, const std::vector<int64_t>& mesh_shape) {
  Parts pieces;
  deal_from(whole, 0, placements, mesh_shape, pieces);
  for (auto& piece : pieces) piece = piece.clone();
  return pieces;
}

at::Tensor put_together(const Parts& pieces, const Placements& placements, const std::vector<int64_t>& mesh_shape,
                        at::IntArrayRef shape) {
  auto now = pieces;
  for (size_t axis = placements.size(); axis-- > 0;) {
    // What a piece of the axes before this one must look like.
    Placements outer(placements.begin(), placements.begin() + axis);
    for (auto& p : outer) p = settled(p);
    auto goals = deal_out(at::empty(shape, at::kBool), outer, mesh_shape);
    Parts next;
    for (size_t i = 0; i < now.size(); i += mesh_shape[axis]) {
      Parts parts(now.begin() + i, now.begin() + i + mesh_shape[axis]);
      next.push_back(put_axis(parts, placements[axis], goals[next.size()].sizes()));
    }
    now = std::move(next);
  }
  return now[0];
}

bool can_hold(const Placement& placement, at::ScalarType dtype) {
  if (!is_partial(placement)) return true;
  bool whole = at::isIntegralType(dtype, true);
  if (norm_order(placement)) return at::isFloatingType(dtype);
  switch (collective_op(placement)) {
    case ReduceOp::avg: return !whole;
    case ReduceOp::min:
    case ReduceOp::max: return !at::isComplexType(dtype);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: return whole;
    default: return true;
  }
}

std::string difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (actual.sizes() != expected.sizes()) return c10::str("shape ", actual.sizes(), ", not ", expected.sizes());
  if (actual.scalar_type() != expected.scalar_type()) {
    return c10::str("dtype ", actual.scalar_type(), ", not ", expected.scalar_type());
  }
  auto dtype = expected.scalar_type();
  bool exact = at::isIntegralType(dtype, true) || tolerance == 0;
  if (exact ? at::equal(actual, expected) : false) return "";
  auto wide = at::isComplexType(dtype) ? at::kComplexDouble : at::kDouble;
  auto a = actual.to(wide), e = expected.to(wide);
  if (!exact && at::allclose(a, e, tolerance, tolerance, /*equal_nan=*/true)) return "";
  if (exact && !at::isIntegralType(dtype, true) && at::allclose(a, e, 0, 0, true)) return "";
  auto text = c10::str("values\n", actual, "\nnot\n", expected);
  return at::isComplexType(dtype) ? c10::str(text, "\nwith imaginary parts\n", at::imag(a), "\nnot\n", at::imag(e))
                                  : text;
}

}  // namespace intarsia
