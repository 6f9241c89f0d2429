// More ops for random programs: norms, attention, indexing, order, rearrangement, losses, products.

#include <ATen/ATen.h>

#include "tests/random/program.h"

namespace intarsia {
namespace {

using at::Tensor;

using program_text::v;

// One value and one of its dims.
struct AlongDim {
  const char* name;
  Tensor (*call)(const Tensor& x, int64_t dim);
};

void along_dim(Builder& b, const std::vector<AlongDim>& all, size_t i) {
  auto d = b.dim_of(i);
  auto& [name, call] = all[b.below(all.size())];
  b.emit(std::string(name) + "(" + v(i) + ", " + std::to_string(d) + ")",
         [i, d, call = call](const ProgramValues& r) { return ProgramValues{call(r[i], d)}; });
}

// A value without two equal elements: which of equals counts is nobody's business.
std::optional<size_t> distinct(Builder& b) {
  auto i = b.any();
  auto j = b.leaf(b.at(i).sizes().vec(), at::kDouble);
  if (!b.emit(v(i) + " + " + v(j), [=](const ProgramValues& r) { return ProgramValues{r[i] + r[j]}; }))
    return std::nullopt;
  return j + 1;
}

void order(Builder& b) {
  static const std::vector<AlongDim> all = {
      {"sort", [](const Tensor& x, int64_t d) { return std::get<0>(at::sort(x, d)); }},
      {"argsort", [](const Tensor& x, int64_t d) { return at::argsort(x, d, true); }},
      {"topk", [](const Tensor& x, int64_t d) { return std::get<0>(at::topk(x, std::min<int64_t>(2, x.size(d)), d)); }},
      {"argmax", [](const Tensor& x, int64_t d) { return at::argmax(x, d); }},
      {"argmin of all", [](const Tensor& x, int64_t) { return at::argmin(x); }},
      {"max", [](const Tensor& x, int64_t d) { return std::get<0>(at::max(x, d)); }},
      {"min with keepdim", [](const Tensor& x, int64_t d) { return std::get<0>(at::min(x, d, true)); }},
      {"kthvalue", [](const Tensor& x, int64_t d) { return std::get<0>(at::kthvalue(x, 1, d)); }},
      {"median", [](const Tensor& x, int64_t d) { return std::get<0>(at::median(x, d)); }},
      {"cummax", [](const Tensor& x, int64_t d) { return std::get<0>(at::cummax(x, d)); }},
      {"cummin", [](const Tensor& x, int64_t d) { return std::get<0>(at::cummin(x, d)); }},
      {"aminmax", [](const Tensor& x, int64_t d) { return std::get<1>(at::aminmax(x, d)); }},
  };
  auto i = distinct(b);
  if (i && b.at(*i).numel() > 0) along_dim(b, all, *i);
}

void scans(Builder& b) {
  static const std::vector<AlongDim> all = {
      {"cumsum", [](const Tensor& x, int64_t d) { return at::cumsum(x, d); }},
      {"cumprod", [](const Tensor& x, int64_t d) { return at::cumprod(x, d); }},
      {"cumprod with zeros", [](const Tensor& x, int64_t d) { return at::cumprod(at::relu(x) * 1.5, d); }},
      {"logcumsumexp", [](const Tensor& x, int64_t d) { return without_jump(at::logcumsumexp(x, d)); }},
      {"var", [](const Tensor& x, int64_t d) { return at::var(x, d, true, false); }},
      // Of values that are all equal, as those of an expanded dim, rounding decides between a gradient of zero and a
      // large one.
      {"std",
       [](const Tensor& x, int64_t d) { return at::std(x + at::cumsum(at::ones_like(x), d), d, false, true) * 2; }},
      {"norm", [](const Tensor& x, int64_t d) { return at::norm(x + 3, 2, d, true); }},
      {"norm of all", [](const Tensor& x, int64_t) { return at::norm(x + 3); }},
      {"norm 1 of all", [](const Tensor& x, int64_t) { return at::norm(x, 1); }},
      {"prod", [](const Tensor& x, int64_t d) { return at::prod(x, d); }},
      {"nansum", [](const Tensor& x, int64_t d) { return at::nansum(x, d); }},
      {"count_nonzero", [](const Tensor& x, int64_t d) { return at::count_nonzero(x, at::IntArrayRef(&d, 1)); }},
      {"logsumexp", [](const Tensor& x, int64_t d) { return without_jump(at::logsumexp(x, d, true)); }},
  };
  along_dim(b, all, b.any());
}

void rearranging(Builder& b) {
  static const std::vector<AlongDim> all = {
      {"flip", [](const Tensor& x, int64_t d) { return at::flip(x, d); }},
      {"roll by 2", [](const Tensor& x, int64_t d) { return at::roll(x, 2, d); }},
      {"roll by -1 of all", [](const Tensor& x, int64_t) { return at::roll(x, -1); }},
      {"repeat", [](const Tensor& x, int64_t d) { return at::cat({x, x, x}, d); }},
      {"tile", [](const Tensor& x, int64_t) { return at::tile(x, {2, 1, 2}); }},
      {"repeat_interleave", [](const Tensor& x, int64_t d) { return at::repeat_interleave(x, 2, d); }},
      {"stack", [](const Tensor& x, int64_t d) { return at::stack({x, x * 2}, d); }},
      {"chunk", [](const Tensor& x, int64_t d) { return at::chunk(x, 2, d)[0]; }},
      {"last split", [](const Tensor& x, int64_t d) { return at::split(x, 2, d).back(); }},
      {"tril", [](const Tensor& x, int64_t d) { return at::tril(x, d); }},
      {"triu", [](const Tensor& x, int64_t d) { return at::triu(x, 1 - d); }},
      {"diagonal", [](const Tensor& x, int64_t d) { return at::diagonal(x, 1, d, d < 0 ? d + 1 : d - 1); }},
      {"diag_embed", [](const Tensor& x, int64_t) { return at::diag_embed(x); }},
      {"narrow", [](const Tensor& x, int64_t d) { return at::narrow(x, d, x.size(d) / 2, x.size(d) - x.size(d) / 2); }},
      {"pad", [](const Tensor& x, int64_t) { return at::constant_pad_nd(x, {1, 2}, 0.5); }},
      {"pad two dims", [](const Tensor& x, int64_t) { return at::constant_pad_nd(x, {0, 1, 2, 0}); }},
      {"slice with step", [](const Tensor& x, int64_t d) { return at::slice(x, d, 1, std::nullopt, 2); }},
      {"unfold", [](const Tensor& x, int64_t d) { return x.unfold(d, 2, 2); }},
      {"unfold with overlap", [](const Tensor& x, int64_t d) { return x.unfold(d, 2, 1).clone(); }},
      {"movedim", [](const Tensor& x, int64_t d) { return at::movedim(x, d, 0).contiguous(); }},
      {"trace", [](const Tensor& x, int64_t) { return at::trace(x); }},
  };
  along_dim(b, all, b.any());
}

// LibTorch's own gradient of a batch norm is wrong where a dim of one element makes it ambiguous whether the channels
// come last in memory. The same values, and gradients, in the usual order.
Tensor in_usual_order(const Tensor& x) {
  bool ambiguous = x.dim() > 3 && std::count(x.sizes().begin() + 2, x.sizes().end(), 1);
  return ambiguous ? x.reshape({-1}).reshape(x.sizes()) : x;
}

Tensor batch_norm(const Tensor& x) {
  return in_usual_order(at::batch_norm(in_usual_order(x), {}, {}, {}, {}, true, 0.1, 0.1, false));
}

// Away from zero: what is normalized over one element is zero up to rounding.
void normalizing(Builder& b) {
  static const std::vector<AlongDim> all = {
      {"softmax", [](const Tensor& x, int64_t d) { return at::softmax(x, d); }},
      {"log_softmax", [](const Tensor& x, int64_t d) { return at::log_softmax(x, d); }},
      {"layer_norm", [](const Tensor& x, int64_t) { return at::layer_norm(x, {x.size(-1)}) + 0.1; }},
      {"layer_norm of all", [](const Tensor& x, int64_t) { return at::layer_norm(x, x.sizes().vec()) + 0.1; }},
      {"group_norm", [](const Tensor& x, int64_t) { return at::group_norm(x, x.size(1) % 2 ? 1 : 2) + 0.1; }},
      {"rms_norm", [](const Tensor& x, int64_t) { return at::rms_norm(x, {x.size(-1)}) + 0.1; }},
      {"batch_norm", [](const Tensor& x, int64_t) { return batch_norm(x) + 0.1; }},
      {"glu", [](const Tensor& x, int64_t d) { return at::glu(x, d); }},
      {"log_sigmoid", [](const Tensor& x, int64_t) { return at::log_sigmoid(x); }},
      {"elu", [](const Tensor& x, int64_t) { return at::elu(x, 0.7); }},
      {"mish", [](const Tensor& x, int64_t) { return at::mish(x); }},
      {"hardswish", [](const Tensor& x, int64_t) { return at::hardswish(x * 1.01); }},
      {"renorm", [](const Tensor& x, int64_t d) { return at::renorm(x, 2, d, 0.7); }},
  };
  along_dim(b, all, b.any());
}

// Whole numbers below n.
std::optional<size_t> places(Builder& b, const std::vector<int64_t>& shape, int64_t n) {
  if (n == 0) return std::nullopt;
  auto j = b.leaf(shape, at::kLong);
  if (!b.emit("remainder(" + v(j) + ", " + std::to_string(n) + ")",
              [=](const ProgramValues& r) { return ProgramValues{at::remainder(r[j], n)}; })) {
    return std::nullopt;
  }
  return j + 1;
}

void indexing(Builder& b) {
  auto i = b.any();
  auto ndim = b.at(i).dim();
  if (ndim == 0) return;
  auto d = b.below(ndim);
  auto size = b.at(i).size(d), count = b.pick<int64_t>({1, 3, 4});
  auto shape = b.at(i).sizes().vec();
  auto dim = std::to_string(d);
  auto kind = b.below(9);
  if (kind < 4) {  // a vector of places
    auto k = places(b, {count}, size);
    if (!k) return;
    auto p = *k;
    if (kind == 0) {
      b.emit("index_select(" + v(i) + ", " + dim + ", " + v(p) + ")",
             [=](const ProgramValues& r) { return ProgramValues{at::index_select(r[i], d, r[p])}; });
    } else if (kind == 1) {
      b.emit(v(i) + "[" + v(p) + " in dim " + dim + "]", [=](const ProgramValues& r) {
        c10::List<std::optional<Tensor>> list;
        for (int64_t e = 0; e < d; ++e) list.push_back(std::nullopt);
        list.push_back(r[p]);
        return ProgramValues{at::index(r[i], list)};
      });
    } else if (kind == 2) {
      shape[d] = count;
      auto s = b.leaf(shape, b.at(i).scalar_type());
      b.emit("index_add(" + v(i) + ", " + dim + ", " + v(p) + ", " + v(s) + ")",
             [=](const ProgramValues& r) { return ProgramValues{at::index_add(r[i], d, r[p], r[s])}; });
    } else {
      b.emit("index_fill(" + v(i) + ", " + dim + ", " + v(p) + ")",
             [=](const ProgramValues& r) { return ProgramValues{at::index_fill(r[i], d, r[p], 0.5)}; });
    }
    return;
  }
  if (kind == 8) {
    auto words = places(b, {2, 3}, b.at(i).size(0));
    if (!words || ndim != 2) return;
    auto p = *words;
    b.emit("embedding(" + v(i) + ", " + v(p) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::embedding(r[i], r[p])}; });
    return;
  }
  shape[d] = count;
  auto k = places(b, shape, size);
  if (!k) return;
  auto p = *k;
  if (kind < 6) {
    b.emit("gather(" + v(i) + ", " + dim + ", " + v(p) + ")",
           [=](const ProgramValues& r) { return ProgramValues{at::gather(r[i], d, r[p])}; });
  } else {
    auto s = b.leaf(shape, b.at(i).scalar_type());
    if (kind == 6) {
      b.emit("scatter_add(" + v(i) + ", " + dim + ", " + v(p) + ", " + v(s) + ")",
             [=](const ProgramValues& r) { return ProgramValues{at::scatter_add(r[i], d, r[p], r[s])}; });
    } else {
      b.emit("scatter with a number(" + v(i) + ", " + dim + ", " + v(p) + ")",
             [=](const ProgramValues& r) { return ProgramValues{at::scatter(r[i], d, r[p], 0.25)}; });
    }
  }
}

void products(Builder& b) {
  auto i = b.any();
  auto x = b.at(i);  // a leaf may move the values
  auto dtype = x.scalar_type();
  auto emit = [&](const std::string& name, auto call) { b.emit(name + " of " + v(i), call); };
  auto kind = b.below(7);
  if (x.dim() == 1) {
    auto w = b.leaf({3}, dtype);
    emit("outer", [=](const ProgramValues& r) { return ProgramValues{at::outer(r[i], r[w])}; });
  } else if (x.dim() == 2) {
    auto w = b.leaf({3, x.size(1)}, dtype);
    if (kind < 2)
      return emit("cdist", [=](const ProgramValues& r) { return ProgramValues{at::cdist(r[i], r[w], 1.5)}; });
    if (kind < 4)
      return emit("einsum ik,jk->ij",
                  [=](const ProgramValues& r) { return ProgramValues{at::einsum("ik,jk->ij", {r[i], r[w]})}; });
    emit("einsum ik,jk->k",
         [=](const ProgramValues& r) { return ProgramValues{at::einsum("ik,jk->k", {r[i], r[w]})}; });
  } else if (x.dim() == 3) {
    auto w = b.leaf({x.size(0), x.size(2), 2}, dtype), c = b.leaf({x.size(0), x.size(1), 2}, dtype);
    if (kind < 2)
      return emit("baddbmm",
                  [=](const ProgramValues& r) { return ProgramValues{at::baddbmm(r[c], r[i], r[w], 0.5, 2)}; });
    if (kind < 4)
      return emit("einsum bij,bjk->bik",
                  [=](const ProgramValues& r) { return ProgramValues{at::einsum("bij,bjk->bik", {r[i], r[w]})}; });
    emit("einsum bij,bjk->ik",
         [=](const ProgramValues& r) { return ProgramValues{at::einsum("bij,bjk->ik", {r[i], r[w]})}; });
  } else if (x.dim() == 4 && x.numel() > 0) {
    auto k = b.leaf({x.size(0), x.size(1), 3, x.size(3)}, dtype),
         w = b.leaf({x.size(0), x.size(1), 3, x.size(3)}, dtype);
    emit("attention",
         [=](const ProgramValues& r) { return ProgramValues{at::scaled_dot_product_attention(r[i], r[k], r[w])}; });
  }
}

void losses(Builder& b) {
  using F = Tensor (*)(const Tensor&, const Tensor&, int64_t);
  static const std::vector<std::pair<const char*, F>> all = {
      {"l1_loss", [](const Tensor& x, const Tensor& y, int64_t r) { return at::l1_loss(x, y, r); }},
      {"huber_loss", [](const Tensor& x, const Tensor& y, int64_t r) { return at::huber_loss(x, y, r, 0.7); }},
      {"kl_div", [](const Tensor& x, const Tensor& y, int64_t r) { return at::kl_div(x, y.sigmoid(), r); }},
      {"bce_with_logits", [](const Tensor& x, const Tensor& y,
                             int64_t r) { return at::binary_cross_entropy_with_logits(x, y.sigmoid(), {}, {}, r); }},
      {"bce", [](const Tensor& x, const Tensor& y,
                 int64_t r) { return at::binary_cross_entropy(x.sigmoid(), y.sigmoid(), {}, r); }},
      {"soft_margin_loss",
       [](const Tensor& x, const Tensor& y, int64_t r) { return at::soft_margin_loss(x, y.detach().sign(), r); }},
      {"cosine_similarity",
       [](const Tensor& x, const Tensor& y, int64_t r) { return at::cosine_similarity(x + 2, y, r ? -1 : 0); }},
      {"pairwise_distance", [](const Tensor& x, const Tensor& y, int64_t) { return at::pairwise_distance(x, y); }},
      {"cross_entropy of shares",
       [](const Tensor& x, const Tensor& y, int64_t r) { return at::cross_entropy_loss(x, y.sigmoid(), {}, r); }},
  };
  auto i = b.any();
  if (b.at(i).numel() == 0) return;  // a mean of nothing
  auto j = b.leaf(b.at(i).sizes().vec(), b.at(i).scalar_type());
  auto reduction = b.below(3);
  auto& [name, f] = all[b.below(all.size())];
  b.emit(std::string(name) + "(" + v(i) + ", " + v(j) + ", reduction " + std::to_string(reduction) + ")",
         [=, f = f](const ProgramValues& r) { return ProgramValues{f(r[i], r[j], reduction)}; });
}

}  // namespace

const std::vector<DrawOp>& more_ops() {
  static const std::vector<DrawOp> all = {order,    scans,    rearranging, rearranging, normalizing,
                                          indexing, indexing, products,    losses};
  return all;
}

}  // namespace intarsia
