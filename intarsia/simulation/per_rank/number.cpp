#include "intarsia/simulation/per_rank/number.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <type_traits>

#include <c10/core/SymNodeImpl.h>

namespace intarsia {
namespace {

using c10::SymNode;
using Ints = std::vector<int64_t>;

// One of the three kinds of numbers that LibTorch knows.
template <class T>
using Kind =
    std::conditional_t<std::is_floating_point_v<T>, double, std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>>;

// T is int64_t, double or bool. LibTorch converts both operands to one kind before it calls an operator.
template <class T>
class PerRankNumber final : public c10::SymNodeImpl {
 public:
  explicit PerRankNumber(std::vector<T> values) : values_(std::move(values)) {}

  const std::vector<T>& values() const { return values_; }
  bool agree() const { return std::equal(values_.begin() + 1, values_.end(), values_.begin()); }

  bool is_int() override { return std::is_same_v<T, int64_t>; }
  bool is_float() override { return std::is_same_v<T, double>; }
  bool is_bool() override { return std::is_same_v<T, bool>; }

  SymNode add(const SymNode& other) override { return zip(other, std::plus<>()); }
  SymNode sub(const SymNode& other) override { return zip(other, std::minus<>()); }
  SymNode mul(const SymNode& other) override { return zip(other, std::multiplies<>()); }
  SymNode truediv(const SymNode& other) override {
    return zip(other, [](T a, T b) { return static_cast<double>(a) / static_cast<double>(b); });
  }
  SymNode pow(const SymNode& other) override {
    return zip(other, [](T a, T b) { return static_cast<T>(std::pow(a, b)); });
  }
  // Rounds towards minus infinity, as LibTorch's symbolic numbers do, which Python also uses: so (rank - 1) % 4 is a
  // rank.
  SymNode floordiv(const SymNode& other) override {
    return zip(other, [](T a, T b) { return floor_of(Quotient(a), divisor(b)); });
  }
  SymNode mod(const SymNode& other) override {
    return zip(other, [](T a, T b) { return Quotient(a) - floor_of(Quotient(a), divisor(b)) * divisor(b); });
  }
  SymNode eq(const SymNode& other) override { return zip(other, std::equal_to<>()); }
  SymNode ne(const SymNode& other) override { return zip(other, std::not_equal_to<>()); }
  SymNode gt(const SymNode& other) override { return zip(other, std::greater<>()); }
  SymNode lt(const SymNode& other) override { return zip(other, std::less<>()); }
  SymNode le(const SymNode& other) override { return zip(other, std::less_equal<>()); }
  SymNode ge(const SymNode& other) override { return zip(other, std::greater_equal<>()); }
  SymNode sym_min(const SymNode& other) override {
    return zip(other, [](T a, T b) { return std::min(a, b); });
  }
  SymNode sym_max(const SymNode& other) override {
    return zip(other, [](T a, T b) { return std::max(a, b); });
  }
  SymNode sym_or(const SymNode& other) override { return zip(other, std::logical_or<>()); }
  SymNode sym_and(const SymNode& other) override { return zip(other, std::logical_and<>()); }
  SymNode sym_not() override { return map(std::logical_not<>()); }
  SymNode neg() override { return map(std::negate<>()); }
  SymNode ceil() override {
    return map([](T a) { return static_cast<int64_t>(std::ceil(a)); });
  }
  SymNode floor() override {
    return map([](T a) { return static_cast<int64_t>(std::floor(a)); });
  }
  SymNode sym_float() override {
    return map([](T a) { return static_cast<double>(a); });
  }
  SymNode clone() override { return c10::make_intrusive<PerRankNumber>(values_); }
  SymNode sym_ite(const SymNode& then, const SymNode& otherwise) override;

  SymNode wrap_int(int64_t number) override { return same(number); }
  SymNode wrap_float(double number) override { return same(number); }
  SymNode wrap_bool(bool number) override { return same(number); }

  int64_t guard_int(const char*, int64_t) override { return static_cast<int64_t>(one()); }
  double guard_float(const char*, int64_t) override { return static_cast<double>(one()); }
  bool guard_bool(const char*, int64_t) override { return static_cast<bool>(one()); }
  bool guard_or_false(const char*, int64_t) override { return agree() && values_[0]; }
  bool guard_or_true(const char*, int64_t) override { return !agree() || values_[0]; }
  bool statically_known_true(const char*, int64_t) override { return agree() && values_[0]; }
  int64_t int_() override { return static_cast<int64_t>(one()); }
  bool bool_() override { return static_cast<bool>(one()); }
  bool has_hint() override { return true; }

  std::optional<int64_t> constant_int() override {
    return is_int() && agree() ? std::optional<int64_t>(values_[0]) : std::nullopt;
  }
  std::optional<int64_t> maybe_as_int() override { return constant_int(); }
  std::optional<bool> constant_bool() override {
    return is_bool() && agree() ? std::optional<bool>(values_[0]) : std::nullopt;
  }

  // `2|2|1|0`
  std::string str() override {
    std::ostringstream text;
    for (size_t slot = 0; slot < values_.size(); ++slot) text << (slot ? "|" : "") << values_[slot];
    return text.str();
  }

 private:
  using Quotient = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

  static Quotient divisor(T value) {
    TORCH_CHECK(value != T(0),
                "[per-rank number] a division by a number that is 0 on a simulated rank, such as the size of ",
                "an empty shard. Use a mesh that divides it.");
    return value;
  }

  static int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
  static double floor_of(double a, double b) { return std::floor(a / b); }

  T one() {
    TORCH_CHECK_VALUE(
        agree(), "[per-rank number] the simulated ranks hold different values, ", str(),
        ", where one is asked for. Compute with the number in tensors, take the ranks' tensors apart with ",
        "shards_of or values_of (from Python: rank_map), or cut the tensor over a mesh that divides it.");
    return values_[0];
  }

  template <class N>
  SymNode same(N number) {
    return c10::make_intrusive<PerRankNumber<N>>(std::vector<N>(values_.size(), number));
  }

  template <class F>
  SymNode map(F f) {
    std::vector<Kind<std::invoke_result_t<F, T>>> results;
    for (T value : values_) results.push_back(f(value));
    return c10::make_intrusive<PerRankNumber<typename decltype(results)::value_type>>(std::move(results));
  }

  template <class F>
  SymNode zip(const SymNode& other, F f);

  std::vector<T> values_;
};

template <class T>
const PerRankNumber<T>& as(c10::SymNodeImpl* node) {
  auto* number = dynamic_cast<PerRankNumber<T>*>(node);
  TORCH_CHECK_TYPE(number, "[per-rank number] meets a symbolic number of another kind, ", node->str(), ".");
  return *number;
}

template <class T>
template <class F>
SymNode PerRankNumber<T>::zip(const SymNode& other, F f) {
  auto& theirs = as<T>(other.get()).values();
  TORCH_CHECK_VALUE(theirs.size() == values_.size(), "[per-rank number] numbers of ", values_.size(), " and of ",
                    theirs.size(), " ranks meet, ", str(), " and ", other->str(), ". Use tensors of one mesh.");
  std::vector<Kind<std::invoke_result_t<F, T, T>>> results;
  for (size_t slot = 0; slot < values_.size(); ++slot) results.push_back(f(T(values_[slot]), T(theirs[slot])));
  return c10::make_intrusive<PerRankNumber<typename decltype(results)::value_type>>(std::move(results));
}

template <class T>
SymNode PerRankNumber<T>::sym_ite(const SymNode& then, const SymNode& otherwise) {
  auto &yes = as<int64_t>(then.get()).values(), &no = as<int64_t>(otherwise.get()).values();
  Ints results;
  for (size_t slot = 0; slot < values_.size(); ++slot) results.push_back(values_[slot] ? yes[slot] : no[slot]);
  return c10::make_intrusive<PerRankNumber<int64_t>>(std::move(results));
}

SymNode node_of(const c10::IValue& number) {
  if (number.isSymInt()) return number.toSymInt().toSymNode();
  if (number.isSymFloat()) return number.toSymFloat().toSymNodeImpl();
  if (number.isSymBool()) return number.toSymBool().toSymNodeImpl();
  return {};
}

}  // namespace

c10::SymInt per_rank_int(const std::vector<int64_t>& values) {
  auto node = c10::make_intrusive<PerRankNumber<int64_t>>(values);
  return node->agree() ? c10::SymInt(values[0]) : c10::SymInt(SymNode(std::move(node)));
}

c10::SymBool per_rank_bool(const std::vector<bool>& values) {
  auto node = c10::make_intrusive<PerRankNumber<bool>>(values);
  return node->agree() ? c10::SymBool(values[0]) : c10::SymBool(SymNode(std::move(node)));
}

std::vector<c10::IValue> numbers_of(const c10::IValue& number) {
  std::vector<c10::IValue> all;
  for (size_t slot = 0; slot < rank_count(number); ++slot) all.push_back(number_at(number, slot));
  return all;
}

size_t rank_count(const c10::IValue& number) {
  auto node = node_of(number);
  if (auto* ints = dynamic_cast<PerRankNumber<int64_t>*>(node.get())) return ints->values().size();
  if (auto* floats = dynamic_cast<PerRankNumber<double>*>(node.get())) return floats->values().size();
  if (auto* bools = dynamic_cast<PerRankNumber<bool>*>(node.get())) return bools->values().size();
  return 0;
}

c10::IValue number_at(const c10::IValue& number, size_t slot) {
  auto node = node_of(number);
  if (auto* ints = dynamic_cast<PerRankNumber<int64_t>*>(node.get())) return ints->values()[slot];
  if (auto* floats = dynamic_cast<PerRankNumber<double>*>(node.get())) return floats->values()[slot];
  if (auto* bools = dynamic_cast<PerRankNumber<bool>*>(node.get())) return bool(bools->values()[slot]);
  return number;
}

}  // namespace intarsia
