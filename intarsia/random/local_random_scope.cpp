#include "intarsia/random/local_random_scope.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/dispatch/generator.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/start.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// Ops that draw nothing fall through kLocalRandomKey.
constexpr c10::DispatchKeySet kAfterLocalRandom(c10::DispatchKeySet::FULL_AFTER, kLocalRandomKey);
constexpr int64_t kMaxDims = 8;
thread_local const LocalRandomScope* innermost_ = nullptr;

using Shape = std::vector<int64_t>;

// The local shapes of all ranks of a group, row-major.
std::vector<Shape> shapes_of_all(const at::Tensor& local, const DeviceMesh& mesh) {
  if (mesh.slots().size() > 1) {
    std::vector<Shape> shapes(mesh.size());
    for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
      auto& coordinate = mesh.slots()[slot].coordinate;
      int64_t position = 0;
      for (int64_t a = 0; a < mesh.ndim(); ++a) position = position * mesh.size(a) + coordinate[a];
      shapes[position] = value_at(local, slot).sizes().vec();  // groups draw the same, so their shapes are the same
    }
    return shapes;
  }
  std::vector<int64_t> mine(1 + kMaxDims);
  mine[0] = local.dim();
  std::copy(local.sizes().begin(), local.sizes().end(), mine.begin() + 1);
  std::vector<Shape> shapes;
  for (auto& row : exchange_numbers(Axis::whole(mesh), mine))
    shapes.emplace_back(row.begin() + 1, row.begin() + 1 + row[0]);
  return shapes;
}

// The parts of all ranks as parts of one tensor.
struct Whole {
  const LocalRandomScope::Parts& parts;
  Shape sizes;
  std::vector<Shape> along;  // by axis: the extent of the part at each coordinate; empty if the axis shards nothing
  bool even = true;

  Whole(const LocalRandomScope::Parts& given, const std::vector<Shape>& shapes) : parts(given), sizes(shapes[0]) {
    auto& mesh = parts.mesh;
    for (int64_t a = 0; a < mesh.ndim(); ++a) {
      auto& extents = along.emplace_back();
      auto dim = cut_dim(parts.placements[a]);
      if (dim < 0) continue;
      for (size_t p = 0; p < shapes.size(); ++p) {
        auto at = mesh.coordinate_at(static_cast<int64_t>(p));
        bool on_first_line = true;
        for (int64_t b = 0; b < mesh.ndim(); ++b) on_first_line = on_first_line && (b == a || at[b] == 0);
        if (on_first_line && dim < static_cast<int64_t>(shapes[p].size())) extents.push_back(shapes[p][dim]);
      }
      if (extents.size() != static_cast<size_t>(mesh.size(a))) refuse(shapes);
      even = even && std::all_of(extents.begin(), extents.end(), [&](auto extent) { return extent == extents[0]; });
      sizes[dim] = std::accumulate(extents.begin(), extents.end(), int64_t{0});
    }
    for (size_t p = 0; p < shapes.size(); ++p) {
      if (shapes[p] != part_at(mesh.coordinate_at(static_cast<int64_t>(p)))) refuse(shapes);
    }
  }

  Shape part_at(const std::vector<int64_t>& coordinate) const {
    auto part = sizes;
    for (size_t a = 0; a < along.size(); ++a) {
      if (!along[a].empty()) part[cut_dim(parts.placements[a])] = along[a][coordinate[a]];
    }
    return part;
  }

  at::Tensor taken_from(at::Tensor whole, const std::vector<int64_t>& coordinate) const {
    for (size_t a = 0; a < along.size(); ++a) {
      if (along[a].empty()) continue;
      auto begin = std::accumulate(along[a].begin(), along[a].begin() + coordinate[a], int64_t{0});
      whole = whole.narrow(cut_dim(parts.placements[a]), begin, along[a][coordinate[a]]);
    }
    return whole;
  }

  void refuse(const std::vector<Shape>& shapes) const {
    std::string text;
    auto ranks = parts.mesh.ranks(parts.mesh.slots()[0].group);
    for (size_t p = 0; p < shapes.size(); ++p) {
      text += c10::str(p ? ", " : "", "rank ", ranks[p], " ", c10::IntArrayRef(shapes[p]));
    }
    TORCH_CHECK_VALUE(false, "[LocalRandomScope] the ranks of ", parts.mesh.text(),
                      " draw tensors that are not the parts ", str(parts.placements), " of one: ", text,
                      ". Draw tensors that differ along the dims that are split only.");
  }
};

// Draws the parts as shards of a distributed tensor, of which each rank draws its own.
void draw_even(const c10::OperatorHandle& op, torch::jit::Stack args, const at::Tensor& target,
               const LocalRandomScope::Parts& parts) {
  auto distributed = from_local(target.detach(), parts.mesh, parts.placements);
  if (args[1].isTensor()) {
    auto others = args[1].toTensor().detach().expand_symint(target.sym_sizes()).contiguous();
    args[1] = from_local(others, parts.mesh, parts.placements);
  }
  args[0] = distributed;
  op.callBoxed(args);
  auto drawn = to_local(distributed);
  bool shares = !is_per_rank(drawn) && drawn.const_data_ptr() == target.const_data_ptr();
  bool in_values = is_per_rank(drawn) && is_per_rank(target) &&
                   value_at(drawn, 0).const_data_ptr() == value_at(target, 0).const_data_ptr();
  if (!shares && !in_values) {
    target.copy_(drawn);
  } else if (!target.is_inference()) {
    target.unsafeGetTensorImpl()->bump_version();
  }
}

// Parts of any sizes: every rank draws the whole.
void draw_uneven(const c10::OperatorHandle& op, torch::jit::Stack args, const at::Tensor& target, const Whole& whole) {
  TORCH_CHECK_NOT_IMPLEMENTED(!args[1].isTensor(), "[LocalRandomScope] ", op.operator_name().name, " of a tensor of ",
                              "probabilities whose parts have different sizes: ", str(whole.parts.placements), " of ",
                              c10::IntArrayRef(whole.sizes),
                              ". Give parts of one size, or draw rand_like and compare.");
  AgreedDraw agreed(c10::toString(op.operator_name()), whole.parts.mesh, args);
  auto& slots = whole.parts.mesh.slots();
  auto all = at::empty(whole.sizes, value_at(target, 0).options());
  args[0] = all;
  op.callBoxed(args);
  Shards values;
  for (auto& slot : slots) values.push_back(whole.taken_from(all, slot.coordinate).contiguous());
  target.copy_(values.size() == 1 ? values[0] : per_rank(std::move(values)));
}

// The parts of a tensor of that many dims: along an axis whose dim it lacks, all ranks draw the same.
LocalRandomScope::Parts parts_of(const LocalRandomScope::Parts& given, int64_t dims) {
  auto parts = given;
  for (auto& placement : parts.placements) {
    if (is_replicate(placement)) continue;
    auto dim = cut_dim(placement);
    if (dim >= dims || dim < -dims) {
      placement = Replicate();
    } else {
      placement = Shard(dim < 0 ? dim + dims : dim);
    }
  }
  return parts;
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

bool is_split_by(const DeviceMesh& mesh, const at::Tensor& tensor) {
  if (mesh.size() == 1 || mesh.slots().empty() || is_dtensor(tensor) || tensor.dim() > kMaxDims) return false;
  return is_per_rank(tensor) || tensor.device().type() == mesh.device_type();
}

void draw_part(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kLocalRandomKey);
  auto count = op.schema().arguments().size();
  auto target = stack->at(stack->size() - count).toTensor();
  auto scope = LocalRandomScope::current();
  bool splits = scope && is_split_by(scope->mesh, target);
  auto parts = splits ? parts_of(*scope, target.dim()) : LocalRandomScope::Parts();
  splits = splits && !std::all_of(parts.placements.begin(), parts.placements.end(), is_replicate);
  if (!splits) return op.redispatchBoxed(keys & kAfterLocalRandom, stack);
  TORCH_CHECK_NOT_IMPLEMENTED(!target.requires_grad() || !at::GradMode::is_enabled(), "[LocalRandomScope] ",
                              op.operator_name().name,
                              " on a tensor that requires grad. Draw into a new tensor, or in a ", "NoGradGuard.");
  torch::jit::Stack args(stack->end() - static_cast<int64_t>(count), stack->end());
  stack->resize(stack->size() - count);
  {
    at::NoGradGuard no_grad;
    Whole whole(parts, shapes_of_all(target, parts.mesh));
    whole.even ? draw_even(op, std::move(args), target, parts) : draw_uneven(op, std::move(args), target, whole);
  }
  stack->push_back(target);
}

// The noise that a dropout would draw if LibTorch did not return early for a tensor without elements; undefined if it
// would draw none. Only a rank without rows draws it: if the whole is empty, no rank draws.
at::Tensor noise_left_out(const c10::OperatorHandle& op, const c10::IValue* args) {
  static const std::set<std::string> per_element = {"aten::dropout", "aten::dropout_", "aten::alpha_dropout",
                                                    "aten::alpha_dropout_"};
  static const std::set<std::string> per_channel = {"aten::feature_dropout", "aten::feature_dropout_",
                                                    "aten::feature_alpha_dropout", "aten::feature_alpha_dropout_"};
  auto scope = LocalRandomScope::current();
  bool channels = per_channel.count(op.operator_name().name);
  if (!scope || (!channels && !per_element.count(op.operator_name().name))) return {};
  auto& input = args[0].toTensor();
  auto p = args[1].toDouble();
  if (!args[2].toBool() || p <= 0 || p >= 1 || is_per_rank(input) || !is_split_by(scope->mesh, input) || input.numel())
    return {};
  auto own = input.sizes().vec(), others = own;
  for (auto& placement : parts_of(*scope, input.dim()).placements) {
    if (!is_replicate(placement)) others[cut_dim(placement)] = 1;
  }
  if (c10::multiply_integers(others) == 0 || (channels && input.dim() < 2)) return {};
  if (channels) std::fill(own.begin() + 2, own.end(), 1);
  return at::empty(own, input.options());
}

// Simulated ranks run a composite op one after the other, where a fill does not know about the other ranks. In the
// scope the op is decomposed instead, and its fills see all ranks.
void take_apart(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto count = static_cast<int64_t>(op.schema().arguments().size());
  auto noise = noise_left_out(op, &*(stack->end() - count));
  if (noise.defined())
    noise.bernoulli_(1 - (stack->end() - count + 1)->toDouble());  // the other ranks wait for this one's part
  auto is_by_rank = [](const c10::IValue& arg) { return arg.isTensor() && is_per_rank(arg.toTensor()); };
  bool by_rank = std::any_of(stack->end() - count, stack->end(), is_by_rank);
  if (!by_rank || !LocalRandomScope::current()) return op.redispatchBoxed(keys & kAfterLocalRandom, stack);
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_composite(op), "[LocalRandomScope] ", op.operator_name().name, " draws inside of a kernel, ",
      "which simulated ranks run one after the other. Use an op that is made of others, such as dropout.");
  op.redispatchBoxed(kComposite, stack);
}

void set_key(bool included, bool excluded) {
  c10::impl::tls_set_dispatch_key_included(kLocalRandomKey, included);
  c10::impl::tls_set_dispatch_key_excluded(kLocalRandomKey, excluded);
}

void register_local_random() {
  static const std::set<std::string> fills = {"aten::uniform_", "aten::normal_",      "aten::log_normal_",
                                              "aten::cauchy_",  "aten::exponential_", "aten::geometric_",
                                              "aten::random_",  "aten::bernoulli_"};
  static auto* others = new torch::Library(torch::Library::IMPL, "_", kLocalRandomKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFallthrough());
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kLocalRandomKey, __FILE__, __LINE__);
  static const std::set<std::string> call_fills = {"aten::native_dropout", "aten::multinomial"};  // in a kernel
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !op->hasTag(at::Tag::nondeterministic_seeded)) continue;
    auto text = c10::toString(name).substr(6);
    if (fills.count(name.name)) {
      aten->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw_part>());
    } else if (is_composite(*op) || call_fills.count(name.name)) {
      aten->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&take_apart>());
    }
  }
}

}  // namespace

LocalRandomScope::LocalRandomScope(const DeviceMesh& mesh, Placements placements) {
  if (placements.empty()) placements = Placements(mesh.ndim(), Shard(0));
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh.ndim(), "[LocalRandomScope] ", placements.size(),
                    " placements given, but ", mesh.text(), " has ", mesh.ndim(),
                    " axes. Give one placement per axis.");
  std::set<int64_t> dims;
  for (auto& placement : normalized(placements, kMaxDims, "LocalRandomScope")) {
    TORCH_CHECK_VALUE(
        is_replicate(placement) || (is_shard(placement) && dims.insert(cut_dim(placement)).second),
        "[LocalRandomScope] the parts ", str(placements), " are not split by axes that cut different dims. ",
        "Give a Replicate or a Shard for each axis, each of another dim; or flatten axes that cut one dim.");
  }
  parts_ = {mesh, std::move(placements)};
  open();
}

LocalRandomScope::LocalRandomScope(std::optional<Parts> parts) : parts_(std::move(parts)) { open(); }

void LocalRandomScope::open() {
  static std::once_flag once;
  std::call_once(once, [] {
    start();  // it looks for other kernels on our keys, and would find these
    register_local_random();
  });
  outer_ = innermost_;
  innermost_ = this;
  was_included_ = c10::impl::tls_is_dispatch_key_included(kLocalRandomKey);
  was_excluded_ = c10::impl::tls_is_dispatch_key_excluded(kLocalRandomKey);
  set_key(parts_.has_value(), !parts_);
}

LocalRandomScope::~LocalRandomScope() {
  innermost_ = outer_;
  set_key(was_included_, was_excluded_);
}

std::optional<LocalRandomScope::Parts> LocalRandomScope::current() {
  return innermost_ ? innermost_->parts_ : std::nullopt;
}

}  // namespace intarsia
