#include "intarsia/tensor/printing.h"

#include <cmath>
#include <cstdio>
#include <sstream>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

constexpr int64_t kWholeUpTo = 1000;  // larger shards are summarized
constexpr int64_t kEdge = 3;          // how many entries of a long dim are shown at each end
constexpr size_t kMostRanks = 16;

using Entries = std::vector<std::string>;

std::string number(double value) {
  char text[32];
  bool plain = value == 0 || !std::isfinite(value) || (std::abs(value) < 1e6 && std::abs(value) >= 1e-4);
  std::snprintf(text, sizeof text, plain ? "%.4f" : "%.4e", value);
  return text;
}

std::string entry(const at::Tensor& scalar) {
  if (scalar.scalar_type() == at::kBool) return scalar.item<bool>() ? "true" : "false";
  if (scalar.is_complex()) {
    auto value = scalar.item<c10::complex<double>>();
    return number(value.real()) + (std::signbit(value.imag()) ? "" : "+") + number(value.imag()) + "i";
  }
  if (scalar.is_floating_point()) return number(scalar.item<double>());
  return std::to_string(scalar.item<int64_t>());
}

// The indices of a dim that are printed; a gap is -1.
std::vector<int64_t> shown(int64_t size, bool summarize) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size; ++i) {
    if (!summarize || size <= 2 * kEdge || i < kEdge || i >= size - kEdge) {
      indices.push_back(i);
    } else if (i == kEdge) {
      indices.push_back(-1);
    }
  }
  return indices;
}

// Collects all entries first, so that columns can have equal widths.
void collect(const at::Tensor& tensor, bool summarize, Entries& entries) {
  if (tensor.dim() == 0) return entries.push_back(entry(tensor));
  for (auto i : shown(tensor.size(0), summarize)) {
    if (i >= 0) collect(tensor.select(0, i), summarize, entries);
  }
}

// Nested brackets, as Python writes them; the innermost dim on one line.
void write(const std::vector<int64_t>& sizes, size_t dim, bool summarize, Entries::const_iterator& next, size_t width,
           const std::string& indent, std::string& text) {
  if (dim == sizes.size()) {
    text += std::string(width - next->size(), ' ') + *next;
    ++next;
    return;
  }
  bool innermost = dim + 1 == sizes.size();
  auto between = innermost ? ", " : ",\n" + indent + std::string(dim + 1, ' ');
  text += '[';
  bool first = true;
  for (auto i : shown(sizes[dim], summarize)) {
    if (!std::exchange(first, false)) text += between;
    if (i < 0) {
      text += "...";
    } else {
      write(sizes, dim + 1, summarize, next, width, indent, text);
    }
  }
  text += ']';
}

std::string values_text(const at::Tensor& tensor, const std::string& indent) {
  if (!tensor.defined()) return "(undefined)";
  if (tensor.is_meta()) return "(meta: no values)";
  if (tensor.numel() == 0) return "[]";
  at::NoGradGuard no_grad;
  auto here = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg();
  bool summarize = here.numel() > kWholeUpTo;
  Entries entries;
  collect(here, summarize, entries);
  size_t width = 0;
  for (auto& e : entries) width = std::max(width, e.size());
  auto next = entries.cbegin();
  std::string text;
  write(here.sizes().vec(), 0, summarize, next, width, indent, text);
  return text;
}

// Why something cannot be shown, on one line.
std::string excuse(const std::exception& error) {
  std::string text = error.what();
  return "(not available: " + text.substr(0, text.find('\n')) + ")";
}

std::string safe_values_text(const at::Tensor& tensor, const std::string& indent) {
  try {
    return values_text(tensor, indent);
  } catch (const std::exception& error) {
    return excuse(error);
  }
}

// Prints one shard per line or more, each after its heading: `rank 0 [2, 3]: `.
template <class Heading>
std::string shards_text(const Shards& shards, Heading heading) {
  std::string text;
  for (size_t slot = 0; slot < shards.size() && slot < kMostRanks; ++slot) {
    auto start = heading(slot) + " " + (shards[slot].defined() ? c10::str(shards[slot].sizes()) : "") + ": ";
    text += "\n" + start + safe_values_text(shards[slot], std::string(start.size(), ' '));
  }
  if (shards.size() > kMostRanks) text += "\n... and " + std::to_string(shards.size() - kMostRanks) + " ranks more";
  return text;
}

std::string form_text(const at::Tensor& tensor) {
  return "shape=" + c10::str(tensor.sym_sizes()) + ", dtype=" + c10::toString(tensor.scalar_type());
}

std::string dtensor_text(const at::Tensor& tensor) {
  auto& layout = *body_of(tensor).layout;
  auto text = "DTensor(" + form_text(tensor) + ", placements=" + str(layout.placements()) +
              ", mesh=" + layout.mesh().text() + (tensor.requires_grad() ? ", requires_grad=true)" : ")");
  auto& slots = layout.mesh().slots();
  if (slots.empty()) return text + "\nno rank of the mesh is hosted here";
  try {
    // Waits for a collective that has started, which may fail, but starts none: one rank may print alone.
    bool stale = body_of(tensor).is_stale();
    auto& shards = stale ? body_of(tensor).last_known_shards() : body_of(tensor).shards();
    if (stale) text += " as it was: its base has changed since, read it to refresh";
    return text + shards_text(shards, [&](size_t slot) { return "rank " + std::to_string(slots[slot].rank); });
  } catch (const std::exception& error) {
    return text + "\n" + excuse(error);
  }
}

}  // namespace

std::string str(const at::Tensor& tensor) {
  try {
    if (is_dtensor(tensor)) return dtensor_text(tensor);
    if (is_per_rank(tensor)) {
      return "one tensor per rank (" + form_text(tensor) + ")" +
             shards_text(values_of(tensor), [](size_t slot) { return "slot " + std::to_string(slot); });
    }
    std::ostringstream stream;
    stream << tensor;
    return stream.str();
  } catch (const std::exception& error) {
    return excuse(error);
  }
}

}  // namespace intarsia
