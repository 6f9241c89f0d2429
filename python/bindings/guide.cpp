#include "intarsia/propagate/guide.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "calls.h"

namespace intarsia::python {
namespace {

using Given = std::vector<std::optional<Placements>>;

Given given_from(const py::handle& list, const DeviceMesh& mesh) {
  Given given;
  for (auto item : list.cast<py::sequence>()) {
    given.push_back(item.is_none() ? std::nullopt : std::optional(placements_from(item)));
    TORCH_CHECK(!given.back() || static_cast<int64_t>(given.back()->size()) == mesh.ndim(), "[set_guide] ",
                str(*given.back()), " is advised on ", mesh.text(), ". Advise one placement per axis.");
  }
  return given;
}

// The ops that the function calls are those of any program, not those inside a kernel.
c10::impl::LocalDispatchKeySet outside_of_kernels() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = c10::default_excluded_set;
  return keys;
}

auto advice_of(py::function function) {
  return [function = shared(std::move(function))](const Question& q) -> std::optional<Advice> {
    py::gil_scoped_acquire locked;
    c10::impl::ForceDispatchKeyGuard guard(outside_of_kernels());
    py::list now;  // of the defined tensors
    for (size_t i = 0; i < q.now.size(); ++i) {
      if (!q.call.inputs[i].defined) continue;
      now.append(q.now[i] ? py::object(placements_of_layout(*q.now[i])) : py::none());
    }
    py::list outputs;
    for (auto& form : q.call.outputs) outputs.append(form.defined ? py::cast(form) : py::none());
    auto& schema = q.call.schema;
    auto found = (*function)(schema.name(), schema.overload_name(), arguments_of(q.call), now, outputs, q.mesh);
    if (found.is_none()) return std::nullopt;
    auto both = found.cast<py::sequence>();
    Advice advice{{}, given_from(both[1], q.mesh)};
    auto in = given_from(both[0], q.mesh);
    size_t next = 0;
    for (size_t i = 0; i < q.now.size(); ++i) {
      advice.in.push_back(q.call.inputs[i].defined && next < in.size() ? in[next++] : std::nullopt);
    }
    return advice;
  };
}

// Words errors like PyTorch's DTensor, whose errors about sizes and dims are all of one kind.
std::string word(const std::string& op, const std::string& error) {
  return error + "\n\nSharding propagation failed for " + op;
}

// Warns as PyTorch's DTensor does.
void warn_of_number(const std::string& op) {
  TORCH_WARN("[", op,
             "] Found a non-scalar tensor with numel=1 and ndim!=0: it is taken for a number that is the same on ",
             "all ranks. Make it one of no dims, or distribute it.");
}

Guide guide_from(py::function function) { return {advice_of(std::move(function)), word, warn_of_number}; }

}  // namespace

void bind_guide(py::module_& module) {
  module.def(
      "set_guide", [](std::optional<py::function> function) { set_guide(function ? guide_from(*function) : Guide()); },
      py::arg("function"),
      "function(name, overload, arguments, placements, results, mesh) -> (placements of inputs, of results) or None.");
}

}  // namespace intarsia::python
