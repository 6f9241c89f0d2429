#include "tests/random/program.h"

#include <numeric>
#include <random>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "intarsia/core/pending.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

const std::vector<std::vector<int64_t>> kMeshes = {{1}, {2},    {2},    {3}, {4},    {2, 2}, {2, 2},
                                                   {6}, {2, 3}, {3, 2}, {8}, {2, 4}, {4, 2}, {2, 2, 2}};

std::string name(size_t i) { return "v" + std::to_string(i); }

// Whether twice the parts are twice the value.
bool scales(const Placements& placements) {
  return std::none_of(placements.begin(), placements.end(), [](auto& p) { return pending_op(p) == ReduceOp::product; });
}

at::Tensor random_values(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  auto values = at::randn(shape, generator, at::TensorOptions(at::kDouble));
  if (dtype == at::kLong) return (values * 4).round().to(dtype);
  if (dtype == at::kBool) return values > 0;
  return values.to(dtype);
}

// A fixed weight per element, so that every element's gradient counts.
at::Tensor loss_of(const Program& program, const ProgramValues& values) {
  at::Tensor loss;
  for (auto i : program.losses) {
    auto value = is_dtensor(values[i]) ? full_tensor(values[i]) : values[i];
    auto weight = random_values(value.sizes(), at::kDouble, program.seed + i);
    auto term = (value.to(at::kDouble) * weight).sum();
    loss = loss.defined() ? loss + term : term;
  }
  return loss;
}

ProgramValues gradients(const Program& program, const ProgramValues& values) {
  auto loss = loss_of(program, values);
  ProgramValues leaves;
  for (auto i : program.leaves) leaves.push_back(values[i]);
  if (!loss.defined() || !loss.requires_grad() || leaves.empty()) return ProgramValues(leaves.size());
  return torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
}

std::string compare_gradients(const Program& program, const ProgramValues& values) {
  ProgramValues expected;
  try {
    expected = gradients(program, program.values);
  } catch (const std::exception&) {
    return "";  // autograd refuses the plain program as well: a value it needs was overwritten
  }
  auto actual = gradients(program, values);
  for (size_t i = 0; i < expected.size(); ++i) {
    auto zeros = at::zeros_like(program.values[program.leaves[i]].detach());
    auto goal = expected[i].defined() ? expected[i] : zeros;
    auto found = !actual[i].defined() ? zeros : is_dtensor(actual[i]) ? full_tensor(actual[i]) : actual[i];
    auto scale = goal.numel() ? std::max(1.0, goal.abs().max().item<double>()) : 1.0;
    auto wrong = difference(found / scale, goal / scale, program.tolerance * 10);
    if (!wrong.empty()) return "gradient of " + name(program.leaves[i]) + ": " + wrong;
  }
  return "";
}

std::string compare_values(const Program& program, const ProgramValues& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!is_dtensor(values[i])) return name(i) + " is a plain tensor";
    auto found = full_tensor(values[i].detach()), goal = program.values[i].detach();
    if (values[i].sizes() != goal.sizes()) return name(i) + c10::str(" claims shape ", values[i].sizes());
    if (goal.is_floating_point() || goal.is_complex()) {
      auto finite = goal.nan_to_num(0, 0, 0).abs();
      auto scale = goal.numel() ? std::max(1.0, finite.max().item<double>()) : 1.0;
      found = found / scale, goal = goal / scale;
    }
    auto wrong = difference(found, goal, program.tolerance);
    if (!wrong.empty()) return name(i) + ": " + wrong;
    for (auto& shard : shards_of(values[i])) {
      if (values[i].is_contiguous() && !shard.is_contiguous())
        return name(i) + c10::str(" claims strides ", values[i].strides(), ", but a local tensor of sizes ",
                                  shard.sizes(), " has ", shard.strides());
    }
  }
  return "";
}

// A copy that is not contiguous: with gaps, or with its dims in another order.
at::Tensor jumble(const at::Tensor& values, bool gaps) {
  return in_order_of(gaps ? values.strides() : values.transpose(0, -1).contiguous().transpose(0, -1).strides(), values,
                     gaps);
}

}  // namespace

Builder::Builder(uint64_t seed) : rng_(seed * 0x9E3779B97F4A7C15ull + 1) {
  program_.seed = seed;
  program_.mesh_shape = kMeshes[below(kMeshes.size())];
}

size_t Builder::any() { return chance(0.6) ? program_.values.size() - 1 : below(program_.values.size()); }

std::optional<size_t> Builder::any_of(int64_t dim) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto i = any();
    if (at(i).dim() == dim) return i;
  }
  return std::nullopt;
}

Placements Builder::placements(int64_t ndim, at::ScalarType dtype, bool pending) {
  Placements result;
  for (size_t axis = 0; axis < program_.mesh_shape.size(); ++axis) {
    auto kind = below(100);
    Placement p = Replicate();
    if (kind >= 25 && ndim) p = Shard(below(ndim));
    if (kind >= 65 && ndim) p = StridedShard(below(ndim), 2 + below(2));
    if (kind >= 75 && pending)
      p = Partial(pick({ReduceOp::sum, ReduceOp::sum, ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}));
    result.push_back(can_hold(p, dtype) ? p : Replicate());
  }
  return have_one_value(result) ? result : placements(ndim, dtype, pending);
}

size_t Builder::leaf(std::vector<int64_t> shape, at::ScalarType dtype) {
  return leaf(random_values(shape, dtype, program_.seed * 31 + program_.values.size()));
}

size_t Builder::leaf(at::Tensor whole, bool may_be_jumbled) {
  auto dtype = whole.scalar_type();
  ProgramStep step;
  step.jumbled = may_be_jumbled && chance(0.2);
  // Copies: a leaf that is a view of something may lose its history when it is written to.
  whole = step.jumbled ? jumble(whole, whole.dim() < 2 || chance(0.5)) : whole.clone();
  step.leaf = in_order_of(whole.strides(), whole, !whole.is_non_overlapping_and_dense());
  step.placements = placements(whole.dim(), dtype, true);
  step.text = name(program_.values.size()) + c10::str(" = ", dtype, whole.sizes(), " as ", str(*step.placements));
  if (step.jumbled) step.text += ", not contiguous";
  if (whole.is_floating_point()) {
    whole.requires_grad_();
    program_.leaves.push_back(program_.values.size());
  }
  program_.values.push_back(whole);
  program_.steps.push_back(std::move(step));
  return program_.values.size() - 1;
}

size_t Builder::partner(size_t i) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto j = any();
    if (at::are_expandable(at(i).sizes(), at(j).sizes()) && at(i).scalar_type() == at(j).scalar_type()) return j;
  }
  auto shape = at(i).sizes().vec();
  for (auto& extent : shape) {
    if (chance(0.2)) extent = 1;
  }
  if (!shape.empty() && chance(0.2)) shape.erase(shape.begin(), shape.begin() + 1 + below(shape.size()));
  auto dtype = at(i).scalar_type();
  return leaf(shape, dtype);
}

bool Builder::emit(std::string text, std::function<ProgramValues(const ProgramValues&)> run) {
  try {
    auto fresh = run(program_.values);
    std::string names;
    for (auto& value : fresh) {
      names += (names.empty() ? "" : ", ") + name(program_.values.size());
      program_.values.push_back(value);
    }
    ProgramStep step;
    step.text = (names.empty() ? "" : names + " = ") + text;
    step.run = std::move(run);
    program_.steps.push_back(std::move(step));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Builder::write_locally(size_t i) {
  if (!at(i).is_non_overlapping_and_dense() || !at(i).is_floating_point()) return;
  writes_locally_ = true;
  emit("to_local(" + name(i) + ").mul_(2)", [i](const ProgramValues& values) {
    at::NoGradGuard no_grad;
    auto target = values[i].detach();
    (is_dtensor(target) && scales(placements_of(target)) ? to_local(target) : target).mul_(2);
    return ProgramValues();
  });
}

void Builder::redistribute(size_t source) {
  ProgramStep step;
  step.placements = placements(at(source).dim(), at(source).scalar_type(), false);
  step.source = source;
  step.async = chance(0.5);
  step.text = name(program_.values.size()) + " = redistribute(" + name(source) + ", " + str(*step.placements) +
              (step.async ? ", async)" : ")");
  program_.values.push_back(at(source).clone(at::MemoryFormat::Contiguous));
  program_.steps.push_back(std::move(step));
}

Program Builder::finish() {
  for (size_t i = 0; i < program_.values.size(); ++i) {
    auto& value = program_.values[i];
    // Infinity times a sum is not the sum of infinity times its terms, which may have both signs.
    if (at::isinf(value).any().item<bool>()) throw std::runtime_error("not finite");
    bool last = i + 1 == program_.values.size();
    // What a formula has saved is not known to be written through local memory: see docs/concepts.md.
    bool drawn = !writes_locally_ && value.requires_grad() && value.is_floating_point() && (last || chance(0.4));
    // Whether no number times zero is no number or zero is a matter of the formula.
    if (drawn && !at::isnan(value).any().item<bool>()) program_.losses.push_back(i);
    if (value.scalar_type() == at::kFloat) program_.tolerance = std::max(program_.tolerance, 1e-4);
    if (at::isReducedFloatingType(value.scalar_type())) program_.tolerance = 2e-2;
  }
  return std::move(program_);
}

Program draw_program(uint64_t seed) {
  for (uint64_t salt = 0;; ++salt) {
    Builder builder(seed + (salt << 40));
    auto extent = [&] { return builder.pick<int64_t>({0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 8}); };
    std::vector<int64_t> shape(builder.pick({0, 1, 1, 2, 2, 2, 3, 3, 4}));
    for (auto& e : shape) e = extent();
    try {
      builder.leaf(shape, builder.chance(0.1) ? at::kLong : builder.chance(0.05) ? at::kBool : at::kDouble);
      auto steps = 1 + builder.below(6);
      for (int64_t i = 0; i < steps; ++i) {
        if (builder.chance(0.15)) {
          builder.redistribute(builder.any());
        } else if (builder.chance(0.1)) {
          builder.write_locally(builder.any());
        } else if (builder.chance(0.25)) {
          draw_sample(builder);
        } else {
          auto& list = builder.chance(0.5) ? ops() : more_ops();
          list[builder.below(list.size())](builder);
        }
      }
      auto program = builder.finish();
      program.seed = seed;
      return program;
    } catch (const std::exception&) {
      continue;  // a step wrote to a base of many views: draw another program
    }
  }
}

std::string str(const Program& program) {
  std::string text = c10::str("program ", program.seed, " on a mesh of shape ", at::IntArrayRef(program.mesh_shape),
                              " (run it alone: INTARSIA_SEED=", program.seed, ")\n");
  for (auto& step : program.steps) text += "  " + step.text + "\n";
  text += "  loss over";
  for (auto i : program.losses) text += " " + name(i);
  return text;
}

static std::string compare_on(const DeviceMesh& mesh, const Program& program, bool* refused) {
  ProgramValues values;
  seed_dealer(program.seed);
  const ProgramStep* now = nullptr;
  try {
    for (auto& step : program.steps) {
      now = &step;
      if (step.leaf.defined()) {
        auto value = lay_out(step.leaf, mesh, *step.placements);
        values.push_back(step.leaf.is_floating_point() ? value.requires_grad_() : value);
      } else if (step.placements) {
        auto& source = values[step.source];
        bool stays = placements_of(source) == *step.placements;  // then the result would be the tensor itself
        values.push_back(stays ? source.clone(at::MemoryFormat::Contiguous)
                               : intarsia::redistribute(source, *step.placements, step.async));
      } else {
        for (auto& value : step.run(values)) values.push_back(value);
      }
    }
    now = nullptr;
    auto wrong = compare_values(program, values);
    return wrong.empty() ? compare_gradients(program, values) : wrong;
  } catch (const c10::Error& error) {
    std::string what = error.what_without_backtrace();
    // What is written twice, in an order that nobody knows; and what a formula
    // has saved, which differs where an op stays whole.
    auto says = [&](const char* text) { return what.find(text) != std::string::npos; };
    *refused = says("more than one element of the written-to tensor refers to a single memory") ||
               says("needed for gradient computation has been modified by an inplace operation");
    return *refused ? "" : (now ? "throws at \"" + now->text + "\": " : "throws: ") + what;
  }
}

// Of every fourth program, the ranks stand in another order; of simulated ones, some are not on the mesh at all.
static DeviceMesh mesh_of(const Program& program) {
  if (program.seed % 4) return init_device_mesh(at::kCPU, program.mesh_shape);
  std::vector<int64_t> ranks(current_world().size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), std::mt19937(program.seed));
  ranks.resize(c10::multiply_integers(program.mesh_shape));
  return DeviceMesh(at::kCPU, program.mesh_shape, ranks);
}

std::string compare(const Program& program, bool* refused) {
  std::optional<Simulation> world;
  constexpr Arrival kArrivals[] = {Arrival::at_once, Arrival::late, Arrival::at_random};
  auto others = program.seed % 8 ? 0 : 2;
  if (!process_world()) world.emplace(c10::multiply_integers(program.mesh_shape) + others, kArrivals[program.seed % 3]);
  auto mesh = mesh_of(program);
  auto wrong = compare_on(mesh, program, refused);
  // A rank of its own that has seen the calls before goes another way: see Note [The direct path].
  if (wrong.empty() && process_world()) wrong = compare_on(mesh, program, refused);
  return wrong;
}

}  // namespace intarsia
