// The ops that random programs are made of. A new one is one lambda.

#include <ATen/ATen.h>

#include "tests/random/program.h"

namespace intarsia {
namespace {

using at::Tensor;
using program_text::v;

std::string text(at::IntArrayRef list) { return c10::str(list); }

void unary(Builder& b) {
  using F = Tensor (*)(const Tensor&);
  static const std::vector<std::pair<const char*, F>> all = {
      {"relu", [](const Tensor& x) { return x.relu(); }},
      {"tanh", [](const Tensor& x) { return x.tanh(); }},
      {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }},
      {"neg", [](const Tensor& x) { return x.neg(); }},
      {"abs", [](const Tensor& x) { return x.abs(); }},
      {"sin", [](const Tensor& x) { return x.sin(); }},
      {"square", [](const Tensor& x) { return x.square(); }},
      {"gelu", [](const Tensor& x) { return at::gelu(x); }},
      {"silu", [](const Tensor& x) { return at::silu(x); }},
      {"x + 1", [](const Tensor& x) { return x + 1; }},
      {"x * 0.5", [](const Tensor& x) { return x * 0.5; }},
      {"1 - x", [](const Tensor& x) { return 1 - x; }},
      {"x / 2", [](const Tensor& x) { return x / 2; }},
      {"clamp", [](const Tensor& x) { return x.clamp(-1, 0.5); }},
      {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x, 0.1); }},
      {"clone", [](const Tensor& x) { return x.clone(); }},
      {"contiguous", [](const Tensor& x) { return x.contiguous(); }},
      {"x > 0.1", [](const Tensor& x) { return x > 0.1; }},
      {"detach", [](const Tensor& x) { return x.detach(); }},
      {"zeros_like", [](const Tensor& x) { return at::zeros_like(x); }},
      {"to(float)", [](const Tensor& x) { return x.to(at::kFloat); }},
      {"to(double)", [](const Tensor& x) { return x.to(at::kDouble); }},
      {"to(long)", [](const Tensor& x) { return x.to(at::kLong); }},
      {"flip", [](const Tensor& x) { return x.flip(0); }},
      {"softplus", [](const Tensor& x) { return at::softplus(x); }},
  };
  auto i = b.any();
  auto& [name, f] = all[b.below(all.size())];
  b.emit(std::string(name) + " of " + v(i), [i, f = f](const ProgramValues& r) { return ProgramValues{f(r[i])}; });
}

void binary(Builder& b) {
  using F = Tensor (*)(const Tensor&, const Tensor&);
  // Comparisons keep clear of what would be equal but for rounding.
  static const std::vector<std::pair<const char*, F>> all = {
      {"add", [](const Tensor& x, const Tensor& y) { return x + y; }},
      {"sub", [](const Tensor& x, const Tensor& y) { return x - y; }},
      {"mul", [](const Tensor& x, const Tensor& y) { return x * y; }},
      {"add with alpha -2", [](const Tensor& x, const Tensor& y) { return at::add(x, y, -2); }},
      {"x / (|y| + 1)", [](const Tensor& x, const Tensor& y) { return x / (y.abs() + 1); }},
      {"maximum", [](const Tensor& x, const Tensor& y) { return at::maximum(x, y); }},
      {"minimum", [](const Tensor& x, const Tensor& y) { return at::minimum(x, y); }},
      {"where(x > y + 0.05)", [](const Tensor& x, const Tensor& y) { return at::where(x > y + 0.05, x, y * 2); }},
      {"lerp", [](const Tensor& x, const Tensor& y) { return at::lerp(x, y, 0.3); }},
      {"addcmul", [](const Tensor& x, const Tensor& y) { return at::addcmul(x, x, y, 0.5); }},
      {"x about y", [](const Tensor& x, const Tensor& y) { return (x * 1. - y * 1.).abs() < 0.05; }},
      {"pow", [](const Tensor& x, const Tensor& y) { return at::pow(x.abs() + 0.5, y.tanh()); }},
      {"masked_fill", [](const Tensor& x, const Tensor& y) { return x.masked_fill(y > 0.1, 0.25); }},
  };
  auto i = b.any(), j = b.partner(i);
  if (b.chance(0.5)) std::swap(i, j);
  auto& [name, f] = all[b.below(all.size())];
  b.emit(std::string(name) + " of " + v(i) + ", " + v(j),
         [i, j, f = f](const ProgramValues& r) { return ProgramValues{f(r[i], r[j])}; });
}

void matmul(Builder& b) {
  auto i = b.any();
  auto& x = b.at(i);
  if (x.dim() == 0) return;
  auto k = x.size(-1), n = b.pick<int64_t>({1, 2, 3, 5});
  auto kind = b.below(7);
  auto dtype = x.scalar_type();
  if (kind == 0 && dtype != at::kBool) {  // which takes booleans in some orders of memory only
    auto w = b.leaf({n, k}, dtype), c = b.leaf({n}, dtype);
    b.emit("linear(" + v(i) + ", " + v(w) + ", " + v(c) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::linear(r[i], r[w], r[c])}; });
  } else if (kind == 1) {
    auto w = b.leaf({k, n}, dtype);
    b.emit("matmul(" + v(i) + ", " + v(w) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::matmul(r[i], r[w])}; });
  } else if (kind == 2) {
    auto w = b.leaf({k}, dtype);
    b.emit("matmul(" + v(i) + ", " + v(w) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::matmul(r[i], r[w])}; });
  } else if (kind == 3 && x.dim() == 2) {
    auto w = b.leaf({n, x.size(0)}, dtype);
    b.emit("mm(" + v(w) + ", " + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{at::mm(r[w], r[i])}; });
  } else if (kind == 4 && x.dim() == 2) {
    auto c = b.leaf(b.pick<std::vector<int64_t>>({{n}, {x.size(0), n}, {x.size(0), 1}, {1}}), dtype),
         w = b.leaf({k, n}, dtype);
    b.emit("addmm(" + v(c) + ", " + v(i) + ", " + v(w) + ", 2, -1)",
           [=](const ProgramValues& r) { return ProgramValues{at::addmm(r[c], r[i], r[w], 2, -1)}; });
  } else if (kind == 5 && x.dim() == 3) {
    auto w = b.leaf({x.size(0), k, n}, dtype);
    b.emit("bmm(" + v(i) + ", " + v(w) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::bmm(r[i], r[w])}; });
  } else {
    auto w = b.leaf({b.pick<int64_t>({1, 2}), k, n}, dtype);
    b.emit("matmul(" + v(i) + ", " + v(w) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::matmul(r[i], r[w])}; });
  }
}

void reduction(Builder& b) {
  auto i = b.any();
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < b.at(i).dim(); ++d) {
    if (b.chance(0.5)) dims.push_back(b.chance(0.3) ? d - b.at(i).dim() : d);
  }
  bool keep = b.chance(0.5);
  auto args = "(" + v(i) + ", " + text(dims) + (keep ? ", keepdim)" : ")");
  switch (b.below(11)) {
    case 0:
    case 1: b.emit("sum" + args, [=](const ProgramValues& r) { return ProgramValues{r[i].sum(dims, keep)}; }); break;
    case 2: b.emit("mean" + args, [=](const ProgramValues& r) { return ProgramValues{r[i].mean(dims, keep)}; }); break;
    case 3: b.emit("amax" + args, [=](const ProgramValues& r) { return ProgramValues{r[i].amax(dims, keep)}; }); break;
    case 4: b.emit("amin" + args, [=](const ProgramValues& r) { return ProgramValues{r[i].amin(dims, keep)}; }); break;
    case 5: b.emit("sum(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].sum()}; }); break;
    case 6: b.emit("max(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].max()}; }); break;
    case 7: b.emit("mean(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].mean()}; }); break;
    case 8:
      b.emit("any" + args,
             [=](const ProgramValues& r) { return ProgramValues{dims.empty() ? r[i].any() : r[i].any(dims, keep)}; });
      break;
    case 9: b.emit("all(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].all()}; }); break;
    default:
      b.emit("logsumexp" + args,
             [=](const ProgramValues& r) { return ProgramValues{without_jump(r[i].logsumexp(dims, keep))}; });
      break;
  }
}

// A shape with the same number of elements: dims merged or split.
std::vector<int64_t> other_shape(Builder& b, at::IntArrayRef sizes) {
  auto shape = sizes.vec();
  for (int change = 0; change < 2; ++change) {
    if (shape.size() > 1 && b.chance(0.5)) {
      auto d = b.below(shape.size() - 1);
      shape[d] *= shape[d + 1];
      shape.erase(shape.begin() + d + 1);
    } else if (!shape.empty()) {
      auto d = b.below(shape.size());
      auto factor = b.pick<int64_t>({1, 2, 3, 4});
      if (shape[d] % factor != 0) continue;
      shape[d] /= factor;
      shape.insert(shape.begin() + d + b.below(2), factor);
    }
  }
  if (b.chance(0.15)) shape = {c10::multiply_integers(sizes)};
  return shape;
}

void reshaping(Builder& b) {
  auto i = b.any();
  auto shape = other_shape(b, b.at(i).sizes());
  if (b.chance(0.6)) {
    b.emit("view(" + v(i) + ", " + text(shape) + ")",
           [=](const ProgramValues& r) { return ProgramValues{r[i].view(shape)}; });
  } else {
    b.emit("reshape(" + v(i) + ", " + text(shape) + ")",
           [=](const ProgramValues& r) { return ProgramValues{r[i].reshape(shape)}; });
  }
}

void view(Builder& b) {
  auto i = b.any();
  auto ndim = b.at(i).dim();
  auto d = b.dim_of(i), e = b.dim_of(i);
  auto size = ndim ? b.at(i).size(d) : 1;
  auto dim = std::to_string(d);
  switch (b.below(13)) {
    case 0:
      b.emit("transpose(" + v(i) + ", " + dim + ", " + std::to_string(e) + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].transpose(d, e)}; });
      break;
    case 1: {
      std::vector<int64_t> order(ndim);
      for (int64_t k = 0; k < ndim; ++k) order[k] = k;
      for (int64_t k = ndim; k > 1; --k) std::swap(order[k - 1], order[b.below(k)]);
      b.emit("permute(" + v(i) + ", " + text(order) + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].permute(order)}; });
      break;
    }
    case 2: {
      auto at = b.below(size);
      b.emit("select(" + v(i) + ", " + dim + ", " + std::to_string(at) + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].select(d, at)}; });
      break;
    }
    case 3:
    case 4: {
      auto begin = b.below(size + 1) - (b.chance(0.2) ? size : 0), end = b.below(size + 2),
           step = b.pick<int64_t>({1, 1, 2, 3});
      b.emit("slice(" + v(i) + ", " + dim + ", " + text({begin, end, step}) + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].slice(d, begin, end, step)}; });
      break;
    }
    case 5:
      b.emit("squeeze(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].squeeze()}; });
      break;
    case 6:
      b.emit("squeeze(" + v(i) + ", " + dim + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].squeeze(d)}; });
      break;
    case 7: {
      auto at = b.below(ndim + 1);
      b.emit("unsqueeze(" + v(i) + ", " + std::to_string(at) + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].unsqueeze(at)}; });
      break;
    }
    case 8: {
      auto shape = b.at(i).sizes().vec();
      for (auto& extent : shape) extent = extent == 1 ? b.pick<int64_t>({1, 2, 3}) : b.chance(0.5) ? -1 : extent;
      if (b.chance(0.5)) shape.insert(shape.begin(), b.pick<int64_t>({1, 2, 3}));
      b.emit("expand(" + v(i) + ", " + text(shape) + ")",
             [=](const ProgramValues& r) { return ProgramValues{r[i].expand(shape)}; });
      break;
    }
    case 9: {
      auto part = 1 + b.below(3);
      if (size / part <= 4)
        b.emit("split(" + v(i) + ", " + std::to_string(part) + ", " + dim + ")",
               [=](const ProgramValues& r) { return r[i].split(part, d); });
      break;
    }
    case 10:
      if (size <= 3)
        b.emit("unbind(" + v(i) + ", " + dim + ")", [=](const ProgramValues& r) { return r[i].unbind(d); });
      break;
    case 11:
      b.emit("diagonal(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].diagonal()}; });
      break;
    default: b.emit("t(" + v(i) + ")", [=](const ProgramValues& r) { return ProgramValues{r[i].t()}; }); break;
  }
}

void in_place(Builder& b) {
  auto i = b.any();
  // Reading a tensor while writing another view of its memory has no defined result.
  auto apart = [&](size_t j) { return i == j || !b.at(i).is_alias_of(b.at(j)); };
  switch (b.below(9)) {
    case 0:
      b.emit("add_(" + v(i) + ", 1)", [=](const ProgramValues& r) {
        r[i].add_(1);
        return ProgramValues();
      });
      break;
    case 1:
      b.emit("mul_(" + v(i) + ", 0.5)", [=](const ProgramValues& r) {
        r[i].mul_(0.5);
        return ProgramValues();
      });
      break;
    case 2:
      b.emit("relu_(" + v(i) + ")", [=](const ProgramValues& r) {
        at::relu_(const_cast<Tensor&>(r[i]));
        return ProgramValues();
      });
      break;
    case 3:
      b.emit("zero_(" + v(i) + ")", [=](const ProgramValues& r) {
        r[i].zero_();
        return ProgramValues();
      });
      break;
    case 4:
      b.emit("fill_(" + v(i) + ", 2)", [=](const ProgramValues& r) {
        r[i].fill_(2);
        return ProgramValues();
      });
      break;
    case 5:
      b.emit("sigmoid_(" + v(i) + ")", [=](const ProgramValues& r) {
        r[i].sigmoid_();
        return ProgramValues();
      });
      break;
    case 6: {
      auto j = b.partner(i);
      if (apart(j))
        b.emit("add_(" + v(i) + ", " + v(j) + ")", [=](const ProgramValues& r) {
          r[i].add_(r[j]);
          return ProgramValues();
        });
      break;
    }
    case 7: {
      auto j = b.partner(i);
      if (apart(j))
        b.emit("copy_(" + v(i) + ", " + v(j) + ")", [=](const ProgramValues& r) {
          r[i].copy_(r[j]);
          return ProgramValues();
        });
      break;
    }
    default: {
      auto j = b.partner(i);
      if (apart(j))
        b.emit("mul_(" + v(i) + ", " + v(j) + ")", [=](const ProgramValues& r) {
          r[i].mul_(r[j]);
          return ProgramValues();
        });
    }
  }
}

// A view and a write through it: row, column or block of a value that is no input.
void write_through(Builder& b) {
  auto i = b.any();
  if (b.at(i).dim() == 0 || b.at(i).is_leaf()) {
    if (!b.emit("clone of " + v(i), [i](const ProgramValues& r) { return ProgramValues{r[i].clone()}; })) return;
    i = b.any();
  }
  auto before = v(i);
  view(b);
  in_place(b);
}

void loss(Builder& b) {
  auto i = b.any();
  auto& x = b.at(i);
  auto reduction = b.pick<int64_t>({0, 1, 2});
  auto kind = b.below(5);
  auto how = ", reduction " + std::to_string(reduction) + ")";
  if (kind == 0) {
    auto j = b.leaf(x.sizes().vec(), x.scalar_type());
    b.emit("mse_loss(" + v(i) + ", " + v(j) + how,
           [=](const ProgramValues& r) { return ProgramValues{at::mse_loss(r[i], r[j], reduction)}; });
  } else if (kind == 1 && x.dim() >= 2 && x.dim() != 3) {
    auto shape = x.sizes().vec();
    auto classes = shape[1];
    shape.erase(shape.begin() + 1);
    auto j = b.leaf(shape, at::kLong);
    if (classes == 0 || !b.emit("remainder(" + v(j) + ", classes)",
                                [=](const ProgramValues& r) { return ProgramValues{at::remainder(r[j], classes)}; }))
      return;
    auto t = j + 1;
    b.emit("cross_entropy(" + v(i) + ", " + v(t) + how,
           [=](const ProgramValues& r) { return ProgramValues{at::cross_entropy_loss(r[i], r[t], {}, reduction)}; });
  } else if (kind == 2) {
    auto d = b.dim_of(i);
    b.emit("log_softmax(" + v(i) + ", " + std::to_string(d) + ")",
           [=](const ProgramValues& r) { return ProgramValues{r[i].log_softmax(d)}; });
  } else if (kind == 3) {
    auto d = b.dim_of(i);
    b.emit("softmax(" + v(i) + ", " + std::to_string(d) + ")",
           [=](const ProgramValues& r) { return ProgramValues{r[i].softmax(d)}; });
  } else {
    auto j = b.leaf(x.sizes().vec(), x.scalar_type());
    b.emit("smooth_l1_loss(" + v(i) + ", " + v(j) + how,
           [=](const ProgramValues& r) { return ProgramValues{at::smooth_l1_loss(r[i], r[j], reduction)}; });
  }
}

void joining(Builder& b) {
  auto i = b.any(), j = b.partner(i);
  auto d = b.dim_of(i);
  if (b.at(i).numel() == 0) return;  // cat skips empty vectors of any shape, by an old rule
  if (b.chance(0.5)) {
    b.emit("cat(" + v(i) + ", " + v(j) + ", " + std::to_string(d) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::cat({r[i], r[j]}, d)}; });
  } else if (b.chance(0.5)) {
    b.emit("stack(" + v(i) + ", " + v(j) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::stack({r[i], r[j]}, 0)}; });
  } else {
    b.emit("cumsum(" + v(i) + ", " + std::to_string(d) + ")",
           [=](const ProgramValues& r) { return ProgramValues{r[i].cumsum(d)}; });
  }
}

}  // namespace

const std::vector<DrawOp>& ops() {
  static const std::vector<DrawOp> all = {unary,     unary,     binary,        binary,        matmul, reduction,
                                          reduction, reshaping, reshaping,     view,          view,   view,
                                          in_place,  in_place,  write_through, write_through, loss,   joining};
  return all;
}

}  // namespace intarsia
