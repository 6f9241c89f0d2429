// gather, scatter, index_add and the like. Along an indexed dim that is sharded, every rank handles the positions that
// it holds: what is read elsewhere is zero, so results add up; what is written elsewhere is left out.

#include <ATen/ATen.h>

#include "intarsia/ops/indexing/held.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// An index that is out of range for the whole must raise the plain op's error, on every rank: so the plain op runs on a
// tensor that is as long as the whole along `dim`.
void check_range(LocalCall& local, const at::Tensor& index, int64_t dim) {
  auto size = local.call.inputs[0].sizes[dim];
  if (index.numel() == 0 || (index.min().item<int64_t>() >= 0 && index.max().item<int64_t>() < size)) return;
  auto self = local.stack[0].toTensor();
  auto sizes = self.sizes().vec();
  sizes[dim] = size;
  auto stack = local.stack;
  stack[0] = at::zeros(sizes, self.options());
  std::swap(stack, local.stack);
  local.call_plain();
  TORCH_CHECK_INDEX(false, local.call.schema.name(), ": index out of range for dim ", dim, " of size ", size);
}

// gather(self, dim, index) where self is sharded along dim: positions held elsewhere give zero.
void gather_held(LocalCall& local) {
  auto dim = indexed_dim(local.call);
  if (!cuts_dim(*local.in[0], dim)) return local.call_plain();
  auto self = local.stack[0].toTensor(), index = local.stack[2].toTensor();
  check_range(local, index, dim);
  auto mine = held_places(local, dim);
  if (mine.size() == 0) {
    local.stack = {at::zeros(index.sizes(), self.options())};
    return;
  }
  auto outside = index.lt(mine.begin).logical_or_(index.ge(mine.end));
  auto result = at::gather(self, dim, (index - mine.begin).masked_fill_(outside, 0)).masked_fill_(outside, 0);
  local.stack = {std::move(result)};
}

Rule gather_rule() {
  return rows("gather",
              [](const OpCall& call) {
                Rows rows;
                auto &self = call.inputs[0], &index = call.inputs[1];
                auto dim = indexed_dim(call);
                if (self.dim() == 0 || index.dim() == 0) return rows;
                for (int64_t d = 0; d < self.dim(); ++d) {
                  if (d != dim && self.sizes[d] == index.sizes[d]) rows.push_back({{S(d), S(d)}, {S(d)}});
                }
                rows.push_back({{R, S(dim)}, {S(dim)}});
                if (self.dtype != at::kBool) rows.push_back({{S(dim), R}, {P_sum}});
                add_for_any_reduction(rows, {{P_sum, R}, {P_sum}});
                return rows;
              })
      .with_local(gather_held)
      .refusing({1});
}

// scatter(self, dim, index, ...) where self is sharded along dim: what belongs elsewhere goes to a position behind the
// end.
void scatter_held(LocalCall& local) {
  auto dim = indexed_dim(local.call);
  if (!cuts_dim(*local.in[0], dim)) return local.call_plain();
  auto self = local.stack[0].toTensor(), index = local.stack[2].toTensor();
  check_range(local, index, dim);
  auto mine = held_places(local, dim);
  auto spare = self.sizes().vec();
  spare[dim] = 1;
  auto outside = index.lt(mine.begin).logical_or_(index.ge(mine.end));
  local.stack[0] = at::cat({self, at::zeros(spare, self.options())}, dim);
  local.stack[2] = (index - mine.begin).masked_fill_(outside, mine.size());
  local.call_plain();
  local.stack[0] = local.stack[0].toTensor().narrow(dim, 0, mine.size()).contiguous();
}

// `summed`: the op adds, so pending sums pass. src has the shape of index or is larger.
Rule scatter_rule(bool summed) {
  return rows("scatter",
              [summed](const OpCall& call) {
                Rows rows;
                auto &self = call.inputs[0], &index = call.inputs[1];
                auto dim = indexed_dim(call);
                if (self.dim() == 0 || index.dim() == 0) return rows;
                for (int64_t d = 0; d < self.dim(); ++d) {
                  bool lined_up = d != dim;
                  for (auto& form : call.inputs) lined_up = lined_up && form.sizes[d] == self.sizes[d];
                  if (lined_up) rows.push_back({Placements(call.inputs.size(), S(d)), {S(d)}});
                }
                Row held{Placements(call.inputs.size(), R), {S(dim)}};
                held.in[0] = S(dim);
                rows.push_back(std::move(held));
                if (summed) {
                  rows.push_back({{P_sum, R, P_sum}, {P_sum}});
                  rows.push_back({{P_avg, R, P_avg}, {P_avg}});
                  if (call.inputs[2].sizes == index.sizes) rows.push_back({{P_sum, S(dim), S(dim)}, {P_sum}});
                }
                return rows;
              })
      .with_local(scatter_held)
      .refusing({1});
}

// index_add, index_copy and the like take a vector of indices along dim, and whole slices.
void index_write_held(LocalCall& local) {
  auto dim = indexed_dim(local.call);
  if (!cuts_dim(*local.in[0], dim) || local.call.inputs[0].sizes[dim] == 0) return local.call_plain();
  auto index = local.stack[2].toTensor();
  check_range(local, index, dim);
  auto mine = held_places(local, dim);
  auto kept = index.ge(mine.begin).logical_and_(index.lt(mine.end)).nonzero().squeeze(1);
  local.stack[2] = index.index_select(0, kept) - mine.begin;
  if (local.call.inputs.size() > 2 && local.call.inputs[2].dim() > 0) {
    local.stack[3] = local.stack[3].toTensor().index_select(dim, kept);
  }
  local.call_plain();
}

// Without data, the plain op looks at slice 0 of both tensors. For tensors that have none, it gets others that have
// one.
std::vector<TensorForm> forms_without_slices(const OpCall& call) {
  auto dim = indexed_dim(call);
  auto &self = call.inputs[0], &index = call.inputs[1], &source = call.inputs[2];
  bool fits = self.dim() > 0 && source.dim() == self.dim() && index.dim() == 1 && index.sizes[0] == source.sizes[dim];
  if (!fits || (self.sizes[dim] > 0 && index.sizes[0] > 0)) return {};
  auto with_slice = [](const TensorForm& form, int64_t d) {
    auto sizes = form.sizes;
    sizes[d] = std::max<int64_t>(sizes[d], 1);
    return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(form.dtype));
  };
  Stack stack(call.args.begin(), call.args.end());
  stack[0] = with_slice(self, dim), stack[2] = with_slice(index, 0), stack[3] = with_slice(source, dim);
  auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(call.schema.name().c_str(), call.schema.overload_name().c_str());
  op.callBoxed(stack);
  return {dense_form(self.sizes, stack[0].toTensor().scalar_type())};
}

// An empty dim has no position to write to. If a rank has nothing of the other dims, the plain op does not raise that
// error.
void refuse_places_of_nothing(const OpCall& call) {
  if (call.inputs[0].numel() == 0 && call.inputs[1].numel() > 0) ask_plain(call);
}

Rule index_write_rule(bool summed) {
  return rows("index write",
              [summed](const OpCall& call) {
                Rows rows;
                auto &self = call.inputs[0], &index = call.inputs[1];
                auto dim = indexed_dim(call);
                bool slices = call.inputs.size() > 2 && call.inputs[2].dim() > 0;
                if (self.dim() == 0 || index.dim() != 1 || (slices && call.inputs[2].dim() != self.dim())) return rows;
                for (int64_t d = 0; d < self.dim(); ++d) {
                  Row row{{S(d), R}, {S(d)}};
                  if (call.inputs.size() > 2) row.in.push_back(slices && d != dim ? S(d) : R);
                  rows.push_back(std::move(row));
                }
                if (summed) {
                  rows.push_back({{P_sum, R, P_sum}, {P_sum}});
                  rows.push_back({{P_avg, R, P_avg}, {P_avg}});
                  rows.push_back({{P_sum, S(0), S(dim)}, {P_sum}});
                }
                return rows;
              })
      .with_local(index_write_held)
      .checking(refuse_places_of_nothing)
      .refusing({1});
}

}  // namespace

void add_gather(RuleTable& t) {
  t.add("aten::gather", gather_rule());
  t.add({"aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce",
         "aten::scatter_reduce.two"},
        scatter_rule(false));
  t.add("aten::scatter_add", scatter_rule(true));
  t.add("aten::index_add", index_write_rule(true).with_forms(forms_without_slices));
  t.add("aten::index_reduce", index_write_rule(false).with_forms(forms_without_slices));
  t.add({"aten::index_copy", "aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor"}, index_write_rule(false));
}

}  // namespace intarsia
