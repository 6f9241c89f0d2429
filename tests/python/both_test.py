"""Programs that print the same whether PyTorch's DTensor runs them or ours: each is run by both, on several processes."""

import io
import itertools
import os
import sys
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from both_sides import readable, report, reports_of
from torch import nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSpec, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import generate_redistribute_costs, register_op_strategy, replicate_op_strategy
from torch.distributed.tensor.debug import CommDebugMode, _clear_sharding_prop_cache
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

ATEN = torch.ops.aten


def cut(mesh, *shape, dim=0):
    return distribute_tensor(torch.arange(float(torch.Size(shape).numel())).view(shape), mesh, [Shard(dim)])



def told(call, *words):
    """Which of the words an error says."""
    try:
        call()
    except Exception as error:
        return [word for word in words if word in str(error)]
    return "no error"


def files_are_read_with_weights_only(mesh):
    x, file = cut(mesh, 6), io.BytesIO()
    torch.save({"x": x, "p": nn.Parameter(x)}, file)
    file.seek(0)
    again = torch.load(file, weights_only=True)
    return again["x"].placements, again["x"].full_tensor().tolist(), isinstance(again["p"], nn.Parameter), isinstance(again["p"], DTensor)


def what_is_under_way_says_so(mesh):
    x = cut(mesh, 6).requires_grad_()
    local = x.redistribute(mesh, [Replicate()], async_op=True).to_local()
    (local * 2).sum().backward()
    settled = x.redistribute(mesh, [Replicate()]).to_local()
    return type(local).__name__, (local + 1).tolist(), x.grad.full_tensor().tolist(), type(settled).__name__


def as_strided_of_the_same_form(mesh):
    x = cut(mesh, 4, 2)[:, 1:]
    same = [cut(mesh, 4, 2).as_strided((4, 2), (2, 1)), x.as_strided(x.size(), x.stride(), x.storage_offset())]
    return [(y.placements, y.full_tensor()) for y in same]


def ops_are_mapped_over_a_dim(mesh):
    w = distribute_tensor(torch.tensor([2.0, 3.0]), mesh, [Replicate()])
    functions = [lambda r: r.sin() * 2, lambda r: (r * w).sum(), lambda r: r.sum(), lambda r: torch.stack([r, r])]
    rows, tables = torch.zeros(2, 6, dtype=torch.long), cut(mesh, 2, 4, 3)
    rows[0, 1] = rows[1, 3] = 1
    found = torch.vmap(F.embedding)(distribute_tensor(rows, mesh, [Shard(0)]), tables).full_tensor()
    return found, [torch.vmap(f)(cut(mesh, 4, 2, dim=dim)).full_tensor().tolist() for f in functions for dim in (0, 1)]


class Watching(DTensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Dispatching(DTensor):
    seen: list = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def subclasses_see_their_calls(mesh):
    x, found = cut(mesh, 6), []
    for kind in (Watching, Dispatching):
        y = kind(x._local_tensor, x._spec, requires_grad=False)
        doubled = (y + y).full_tensor().tolist()
        found.append((type(y) is kind, isinstance(y, DTensor), doubled, any("add" in name for name in kind.seen)))
    return found


def all_collectives_are_counted(mesh):
    with CommDebugMode() as comms:
        plain = torch.ones(2)
        dist.all_reduce(plain)
        summed = functional.all_reduce(plain, "sum", (mesh, 0)) + 0
        cut(mesh, 6).full_tensor()
    return summed.tolist(), comms.get_total_counts(), {str(op): count for op, count in sorted(comms.get_comm_counts().items(), key=str)}


def losses_over_cut_classes(mesh):
    found = []
    for reduction in ("mean", "sum", "none"):
        x = cut(mesh, 3, 4, dim=1).requires_grad_()
        with loss_parallel():
            loss = F.cross_entropy(x, torch.tensor([0, 3, 1]), reduction=reduction)
            loss.sum().backward()
        found.append((loss.placements, loss.full_tensor(), x.grad.placements, x.grad.full_tensor()))
    with loss_parallel():
        whole = cut(mesh, 3, 4).redistribute(mesh, [Replicate()])
        found.append(told(lambda: F.cross_entropy(whole, torch.tensor([0, 3, 1])), "loss_parallel() requires exactly one mesh dim"))
    return found


def the_local_tensor_is_one_object(mesh):
    x = cut(mesh, 6)
    with torch.no_grad():
        return x.to_local() is x._local_tensor, x._local_tensor is x._local_tensor


def rules_are_registered_at_any_time(mesh):
    x, y = cut(mesh, 8), cut(mesh, 8, 2)

    @register_sharding(ATEN.hypot.default)
    def hypot(a, b):
        return [([Replicate()], [Replicate(), Replicate()]), ([Shard(0)], [Shard(0), Shard(0)])]

    @register_sharding(ATEN._softmax.default)
    def softmax(a, dim, half_to_float):
        return [([Replicate()], [Replicate(), None, None])]

    return torch.hypot(x, x).placements, y.softmax(1).placements


def rules_see_keyword_tensors_and_no_defaults(mesh):
    torch.library.define("both::scaled", "(Tensor x, Tensor? offset=None, int times=1, *, Tensor? scale=None) -> Tensor")

    def scaled(x, offset=None, times=1, *, scale=None):
        return (x if scale is None else x * scale) * times + (0 if offset is None else offset)

    torch.library.impl("both::scaled", "CompositeExplicitAutograd")(scaled)
    torch.library.impl("both::scaled", "Meta")(lambda x, *args, **kwargs: torch.empty_like(x))

    @register_sharding(torch.ops.both.scaled.default)
    def rule(*args, **kwargs):
        assert len(args) < 3 or args[2] == 2, "defaults are left out"
        whole = [Replicate() for value in (*args[1:], *kwargs.values()) if hasattr(value, "shape")]
        return [([p], [p, *whole]) for p in (Replicate(), Shard(0))]

    x, s = cut(mesh, 6), distribute_tensor(torch.tensor(3.0), mesh, [Replicate()])
    op = torch.ops.both.scaled
    calls = [op(x, scale=s), op(x), op(x, s), op(x, s, 2, scale=s), op(x, None, 2)]
    return [(y.placements, y.full_tensor().tolist()) for y in calls]


def strategies_are_followed(mesh):
    torch.library.define("both::shifted", "(Tensor x, Tensor[] by) -> Tensor")
    torch.library.impl("both::shifted", "CompositeExplicitAutograd")(lambda x, by: torch.from_numpy(x.numpy() + sum(y.numpy() for y in by)))
    torch.library.impl("both::shifted", "Meta")(lambda x, by: torch.empty_like(x))
    op, x = torch.ops.both.shifted.default, cut(mesh, 4)

    def cut_alike(schema):
        first, strategies = schema.args_strategy[0], []
        for placement in (Shard(0), Replicate()):
            spec = DTensorSpec(first.mesh, (placement,))
            costs = [generate_redistribute_costs(arg, spec) for arg in schema.args_strategy]
            strategies.append(OpSpec(spec, [spec] * len(costs), costs))
        return OpStrategy(strategies)

    found = []
    for strategy in (replicate_op_strategy, cut_alike):
        register_op_strategy(op, schema_info=RuntimeSchemaInfo(needs_pytree=True))(strategy)
        _clear_sharding_prop_cache()
        with CommDebugMode() as comms:
            y = op(x, [x, x])
        found.append((y.placements, comms.get_total_counts(), y.full_tensor()))
    del DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs[op]
    _clear_sharding_prop_cache()
    return found, told(lambda: op(x, [x, x]), "does not have a sharding strategy registered")


def custom_ops_without_a_rule_are_refused(mesh):
    @torch.library.custom_op("both::sine", mutates_args=())
    def sine(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy()).sin()

    sine.register_fake(torch.empty_like)
    x, op = cut(mesh, 4), torch.ops.both.sine
    before = told(lambda: op(x), "does not have a sharding strategy registered")
    register_op_strategy(op.default)(replicate_op_strategy)
    return before, op(x).placements, op(x).full_tensor(), op(torch.ones(2))


def names_of_reductions_stay(mesh):
    x = DTensor.from_local(torch.full((2,), 3.0), mesh, [Partial("prod")])
    return x.placements, x.redistribute(mesh, [Partial("prod")]).placements


def one_number_in_a_dim_is_warned_of(mesh):
    x, found = cut(mesh, 4), []
    for number in (torch.tensor(1), torch.tensor([1])):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            y = x + number
        found.append((y.full_tensor(), any("non-scalar tensor with numel=1" in str(warning.message) for warning in seen)))
    return found


def views_are_refused_where_they_would_move(mesh):
    uneven, x, y = cut(mesh, 5, 4), cut(mesh, 4, 6), distribute_tensor(torch.ones(3, 6), mesh, [Shard(1)])
    calls = [
        *(lambda: uneven.view(-1), lambda: uneven.reshape(20), lambda: uneven.flatten(), lambda: uneven.unbind(), lambda: x.unbind(0)),
        *(lambda: y.view(3, 3, 2), lambda: distribute_tensor(torch.ones(1, 4), mesh, [Shard(0)]).squeeze(0), lambda: x.transpose(0, 5)),
        *(lambda: x.unsqueeze(7), lambda: x.select(0, 9), lambda: x.view(7)),
    ]
    return [told(call, "Sharding propagation failed") for call in calls], x.view(-1).placements, y.view(-1).placements


def dims_that_several_axes_cut_are_merged_where_they_lie(grid):
    found, kinds = [], (Shard(0), Shard(1), Shard(2), Replicate())
    for shape, to in (((4, 6, 2), (24, 2)), ((4, 6, 2), (4, 12)), ((4, 6, 4), (96,)),
                      ((6, 2, 5), (12, 5)), ((4, 3, 4), (4, 12)), ((8, 2), (2, 4, 2))):
        for before in itertools.permutations(kinds[: len(shape)] + kinds[3:], 2):
            x = distribute_tensor(torch.arange(float(torch.Size(shape).numel())).view(shape), grid, before).requires_grad_()
            try:
                with CommDebugMode() as comms:
                    y = x.view(to)
            except RuntimeError as error:
                found.append((shape, to, before, "Sharding propagation failed" in str(error)))
                continue
            found.append((shape, to, before, y.placements, y.to_local(), comms.get_total_counts()))
    return found


def code_that_asks_for_one_graph_runs(mesh):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / 9)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    one_graph, x = {"backend": "aot_eager", "fullgraph": True}, cut(mesh, 4)

    @torch.compile(**one_graph)
    def doubled(t):
        return t.redistribute(mesh, [Replicate()]) * 2

    y = torch.compile(model, **one_graph)(torch.ones(3, 4))
    y.sum().backward()
    broken = torch.compile(lambda t: torch._dynamo.graph_break() or t + 1, **one_graph)
    return y, model[0].weight.grad.full_tensor(), [doubled(x).full_tensor() for _ in range(2)], told(lambda: broken(torch.ones(2)), "graph")


def moves_count_one_collective_per_axis(grid):
    kinds, x, counts = (Shard(0), Shard(1), Replicate()), torch.arange(32.0).view(8, 4), []
    for before in itertools.product(kinds, kinds):
        start = distribute_tensor(x, grid, before)
        for after in itertools.product(kinds, kinds):
            with CommDebugMode() as comms:
                start.redistribute(grid, after)
            counts.append((before, after, comms.get_total_counts()))
        with CommDebugMode() as comms:
            start.full_tensor()
        counts.append((before, comms.get_total_counts()))
    return counts


def pending_sums_count_one_collective_per_axis(grid):
    counts = []
    for after in itertools.product((Shard(0), Replicate()), (Shard(0), Replicate())):
        x = DTensor.from_local(torch.ones(4), grid, [Partial(), Partial()])
        with CommDebugMode() as comms:
            moved = x.redistribute(grid, after)
        counts.append((after, readable(comms.get_comm_counts()), moved.full_tensor()))
    return counts


def a_loss(logits):
    with loss_parallel():
        return F.cross_entropy(logits, torch.tensor([0, 1]), reduction="sum")


def errors_say_what_pytorchs_say(mesh):
    grid, x = init_device_mesh("cpu", (2, 1)), cut(mesh, 4)
    return [
        told(lambda: DTensor.from_local(torch.ones(2), grid, [Partial("sum"), Partial("max")]), "Mixed Partial reduce types are not supported"),
        told(lambda: distribute_tensor(torch.ones(2), mesh, [Shard(3)]), "Sharding dim 3 greater than tensor ndim 1"),
        told(lambda: DTensor.from_local(torch.ones(2), mesh, [Shard(3)]), "Sharding dim 3 greater than tensor ndim 1 for placement number 0"),
        told(lambda: x + distribute_tensor(torch.ones(4), grid, [Shard(0), Replicate()]), "different meshes"),
        told(lambda: distribute_tensor(torch.ones(2), mesh, [Shard(0), Shard(0)]), "`placements` must have the same length as `device_mesh.ndim`!"),
        told(lambda: DTensor.from_local(x, mesh, [Shard(0)]), "the local_tensor argument only accepts torch.Tensor but got"),
        told(lambda: distribute_tensor(torch.ones(2, requires_grad=True) * 2, grid, [Shard(0)]), "distribute leaf tensor"),
        told(lambda: a_loss(distribute_tensor(torch.ones(2, 3), grid, [Shard(0), Shard(1)])), "requires a DTensor"),
    ]


def checkpoints_of_nothing_and_of_pending_sums(mesh):
    pending = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    gathered = _gather_state_dict({"a": None, "x": cut(mesh, 4), "n": {"y": cut(mesh, 2), "z": [None, 3]}, "p": pending})
    words = "Any checkpointing related operations are not supported for DTensor with partial placements"
    return told(pending.__create_chunk_list__, words), gathered["x"].tolist(), gathered["a"], gathered["n"]["z"], gathered["p"].tolist()


def a_number_over_a_pending_reduction_is_every_ranks_term(mesh):
    found = []
    for op in ("sum", "avg", "max"):
        x = DTensor.from_local(torch.full((2,), dist.get_rank() + 1.0), mesh, [Partial(op)])
        found.append((x.fill_(8).full_tensor(), x.to_local(), x.placements))
    return found


def a_softmax_over_a_cut_dim_is_whole(mesh):
    x = cut(mesh, 4, 2).requires_grad_()
    y = x.softmax(0)
    local = y.to_local()
    (local * torch.arange(8.0).view(4, 2)).sum().backward()
    return y.placements, local, x.grad.placements, x.grad.full_tensor()


PROGRAMS = {  # by the number of processes
    2: [
        files_are_read_with_weights_only,
        what_is_under_way_says_so,
        as_strided_of_the_same_form,
        ops_are_mapped_over_a_dim,
        subclasses_see_their_calls,
        all_collectives_are_counted,
        losses_over_cut_classes,
        the_local_tensor_is_one_object,
        a_number_over_a_pending_reduction_is_every_ranks_term,
        a_softmax_over_a_cut_dim_is_whole,
        rules_are_registered_at_any_time,
        rules_see_keyword_tensors_and_no_defaults,
        errors_say_what_pytorchs_say,
        checkpoints_of_nothing_and_of_pending_sums,
        strategies_are_followed,
        views_are_refused_where_they_would_move,
        custom_ops_without_a_rule_are_refused,
        names_of_reductions_stay,
        one_number_in_a_dim_is_warned_of,
        code_that_asks_for_one_graph_runs,
    ],
    4: [  # on a grid
        dims_that_several_axes_cut_are_merged_where_they_lie,
        moves_count_one_collective_per_axis,
        pending_sums_count_one_collective_per_axis,
    ],
}


class Both(unittest.TestCase):
    def test_both_print_the_same(self):
        for size in PROGRAMS:
            theirs, ours = reports_of(__file__, size), reports_of(__file__, size, "-m", "intarsia")
            for rank, (one, other) in enumerate(zip(theirs, ours)):
                for name, text in one.items():
                    with self.subTest(name, rank=rank):
                        self.assertNotIsInstance(text, str, text)
                        self.assertEqual(other[name], text)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        report(PROGRAMS[int(sys.argv[2])], sys.argv[1], int(sys.argv[2]))
    else:
        unittest.main()
