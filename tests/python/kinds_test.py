"""Kinds of placements that PyTorch has beside Shard, Replicate and Partial: pending norms, masked lookups, dims cut in another order."""

import copy
import io
import math
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F

import intarsia

intarsia.install()

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh  # noqa: E402
from torch.distributed.tensor._dtensor_spec import ShardOrderEntry  # noqa: E402
from torch.distributed.tensor._ops._math_ops import _NormPartial  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from support import run_ranks, same  # noqa: E402

ORDERS = (0.5, 1, 2, 3)


def matrix(rows=7, columns=6):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def line():
    return init_device_mesh("cpu", (4,))


def grid():
    return init_device_mesh("cpu", (2, 2))


def norms_over_a_cut_are_pending_norms():
    x = matrix()
    for mesh, placements in ((line(), [Shard(0)]), (grid(), [Shard(0), Shard(1)]), (grid(), [Shard(0), Shard(0)])):
        cut = distribute_tensor(x, mesh, placements)
        for order in ORDERS:
            norm = torch.linalg.vector_norm(cut, order)
            assert norm.placements == (_NormPartial(order),) * mesh.ndim, norm.placements
            same(norm, torch.linalg.vector_norm(x, order))
            same(torch.linalg.vector_norm(cut, order, dim=0, keepdim=True), torch.linalg.vector_norm(x, order, dim=0, keepdim=True))


def the_order_of_one_norm_is_not_that_of_the_next():
    cut, x = distribute_tensor(matrix(8, 2), line(), [Shard(0)]), matrix(8, 2)
    for order in (2.0, 3.0, 2.0, -1.0, 1.0, math.inf, -math.inf, 0.0, 2.0):
        same(torch.linalg.vector_norm(cut, order), torch.linalg.vector_norm(x, order))
        for norm, whole in zip(torch._foreach_norm([cut, cut * 2], order), torch._foreach_norm([x, x * 2], order)):
            same(norm, whole)


def infinite_norms_are_pending_extremes_where_every_rank_has_a_part():
    even, uneven = distribute_tensor(matrix(8), line(), [Shard(0)]), distribute_tensor(matrix(5), line(), [Shard(0)])
    assert torch.linalg.vector_norm(even, math.inf).placements == (Partial("max"),)
    assert torch.linalg.vector_norm(even, -math.inf).placements == (Partial("min"),)
    same(torch.linalg.vector_norm(uneven, -math.inf), torch.linalg.vector_norm(matrix(5), -math.inf))


def histograms_are_pending_where_the_range_is_given_and_only_there():
    x = matrix()
    cut = distribute_tensor(x, line(), [Shard(0)])
    for bins in ((5, -1, 1), (5,), (5, -2, 2), (5, 0, 0), (5, -1.0, 1.0), (5, 0.5, 0.5)):  # alike but for numbers
        found = cut.histc(*bins)
        assert found.placements == ((Partial(),) if len(bins) == 3 and bins[1] < bins[2] else (Replicate(),)), (bins, found.placements)
        same(found, x.histc(*bins))


def pending_norms_pass_views_and_are_settled_by_arithmetic():
    norm = torch.linalg.vector_norm(distribute_tensor(matrix(), line(), [Shard(0)]), 2, dim=0)
    whole = torch.linalg.vector_norm(matrix(), 2, dim=0)
    for view in (lambda n: n.view(2, 3), lambda n: n.unsqueeze(0), lambda n: n[1:4], lambda n: torch.stack([n, n])):
        assert view(norm).placements == (_NormPartial(2),), view(norm).placements
        same(view(norm), view(whole))
    for op in (lambda n: n * -2, lambda n: n + 1, lambda n: n.exp(), lambda n: n.sum(), lambda n: n + n, lambda n: n / n.sum(), lambda n: -n):
        same(op(norm), op(whole))
    same(norm.redistribute(placements=[Shard(0)]), whole)


def gradients_flow_through_pending_norms():
    for order in (1.0, 2.0, 3.0):
        x, plain = distribute_tensor(matrix(), line(), [Shard(0)]).requires_grad_(), matrix().requires_grad_()
        for tensor in (x, plain):
            (torch.linalg.vector_norm(tensor, order, dim=0) * torch.linalg.vector_norm(tensor, order) * -3).sum().backward()
        same(x.grad, plain.grad)


def gradients_are_clipped_by_the_norm_of_all():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    plain, mesh = copy.deepcopy(model), line()
    for layer in (model[0], model[2]):
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))
    model(distribute_tensor(matrix(), mesh, [Replicate()])).square().sum().backward()
    plain(matrix()).square().sum().backward()
    for foreach in (True, False):
        same(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach), torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5))
        for cut, whole in zip(model.parameters(), plain.parameters()):
            same(cut.grad, whole.grad)


def local_norms_are_taken_as_they_are():
    mesh = line()
    local = distribute_tensor(torch.arange(1.0, 5), mesh, [Shard(0)]).to_local()  # 1, 2, 3, 4 by rank
    for kind in (torch.float32, torch.float16, torch.float64):
        x = DTensor.from_local(local.to(kind), mesh, [_NormPartial(2)])
        assert x.placements == (_NormPartial(2),)
        same(x, torch.tensor([30.0]).sqrt().to(kind))
    same(DTensor.from_local(-local, mesh, [_NormPartial(3)]), torch.tensor([100.0]) ** (1 / 3))
    same(distribute_tensor(torch.tensor([5.0]), mesh, [_NormPartial(2)]), torch.tensor([5.0]))
    same(DTensor.from_local(local * 1e30, mesh, [_NormPartial(2)]), torch.tensor([30.0]).sqrt() * 1e30)


def lookups_in_a_cut_table_are_masked_sums():
    mesh, table, places = line(), matrix(10), torch.tensor([[1, 9, 3], [0, 7, 7]])
    weight, plain = distribute_tensor(table, mesh, [Shard(0)]).requires_grad_(), table.clone().requires_grad_()
    found = F.embedding(distribute_tensor(places, mesh, [Replicate()]), weight)
    kind = found.placements[0]
    assert isinstance(kind, _MaskPartial) and (kind.offset_shape, kind.offset_dim) == (torch.Size([10, 6]), 0), kind
    assert found.view(6, 6).placements[0].offset_shape == torch.Size([10, 6])
    with CommDebugMode() as comms:
        same(found, F.embedding(places, table))
    assert comms.get_total_counts() == 1
    same(found.redistribute(placements=[Shard(1)]), F.embedding(places, table))
    other = F.embedding(distribute_tensor(places, mesh, [Replicate()]), distribute_tensor(matrix(12), mesh, [Shard(0)]))
    assert other.placements[0] != kind
    same(found + other, F.embedding(places, table) + F.embedding(places, matrix(12)))
    (found * 2 + found).square().sum().backward()
    (F.embedding(places, plain) * 3).square().sum().backward()
    same(weight.grad, plain.grad)


def masks_of_local_tensors_are_used():
    mesh, mask = line(), _MaskPartial(offset_shape=torch.Size([8, 2]), offset_dim=0)
    mask.mask_buffer.materialize_mask(torch.tensor([True, False, False]))
    x = torch.ones(3, 2, requires_grad=True)
    found = DTensor.from_local(x, mesh, [mask])
    same(found, torch.tensor([[0.0, 0.0], [4.0, 4.0], [4.0, 4.0]]))
    found.redistribute(placements=[Replicate()]).to_local().sum().backward()
    same(x.grad, torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]))
    try:
        DTensor.from_local(x, mesh, [_MaskPartial(offset_shape=torch.Size([8, 2]))])
        raise RuntimeError("no error")
    except AssertionError as error:
        assert "has no mask" in str(error)


def sums_and_averages_may_be_pending_together():
    mesh = grid()
    same(DTensor.from_local(torch.ones(2), mesh, [Partial("sum"), Partial("avg")]), torch.full((2,), 2.0))
    for kinds in ([Partial("sum"), Partial("max")], [Partial(), _NormPartial(2)], [_NormPartial(2), _NormPartial(3)]):
        for make in (lambda: DTensor.from_local(torch.ones(2), mesh, kinds), lambda: distribute_tensor(torch.ones(2), mesh, kinds)):
            try:
                make()
                raise RuntimeError(f"no error for {kinds}")
            except ValueError as error:
                assert "Mixed Partial reduce types" in str(error)


def a_spec_with_another_order_of_cuts_is_taken_and_shown():
    mesh, x = grid(), matrix(8)
    plain = distribute_tensor(x, mesh, [Shard(0), Shard(0)])
    turned = distribute_tensor(x, mesh, [_StridedShard(0, split_factor=2), Shard(0)])  # axis 1 cuts first
    spec = copy.deepcopy(plain._spec)
    spec.shard_order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    again = DTensor.from_local(turned.to_local(), mesh)
    again._spec = spec
    assert again._spec.shard_order == spec.shard_order and again.placements == (Shard(0), Shard(0))
    same(again, x)
    same(again * 2, x * 2)
    same(copy.deepcopy(again), x)


def an_order_that_is_written_to_a_spec_is_the_tensors():
    mesh, x = grid(), matrix(8)
    turned = distribute_tensor(x, mesh, [_StridedShard(0, split_factor=2), Shard(0)])
    again, other = (DTensor.from_local(turned.to_local(), mesh, [Shard(0), Shard(0)]) for _ in range(2))
    assert again._spec == other._spec and hash(again._spec) == hash(other._spec)
    again._spec.shard_order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    assert again._spec.shard_order == (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    assert again._spec != other._spec and hash(again._spec) != hash(other._spec)
    same(again, x)
    try:
        again._spec.shard_order = (ShardOrderEntry(tensor_dim=0, mesh_dims=()),)
        raise RuntimeError("no error")
    except AssertionError as error:
        assert "empty mesh dim" in str(error)


def another_order_of_cuts_may_leave_unequal_parts():
    mesh, x = grid(), matrix(7)
    spec = copy.copy(distribute_tensor(x, mesh, [Shard(0), Shard(0)])._spec)
    spec.shard_order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    parts = x.tensor_split([2, 4, 6])
    local = intarsia.experimental.rank_map(lambda rank: parts[(0, 2, 1, 3)[rank]].clone())  # axis 1 cuts first
    again = DTensor.from_local(local, mesh)
    again._spec = spec
    assert (again.device_mesh, again.placements, again._spec.shard_order) == (mesh, (Shard(0), Shard(0)), spec.shard_order)
    same(again, x)
    same(again * 2, x * 2)
    for placements in ([Shard(0), Shard(0)], [Shard(1), Replicate()]):
        moved = again.redistribute(placements=placements)
        assert (moved.device_mesh, list(moved.placements)) == (mesh, placements)
        same(moved, x)


def products_are_shown_by_the_name_they_are_given():
    for name in ("prod", "mul", "product"):
        x = DTensor.from_local(torch.full((2,), 2.0), line(), [Partial(name)])
        assert x.placements == (Partial(name),) and str(x._spec) == f"Spec(f32[2](P({name})))", x._spec
        same(x, torch.full((2,), 16.0))


def the_weights_of_targets_are_added_up_once():
    scores, targets = matrix(8).log_softmax(1), torch.tensor([0, 1, 2, 3, -100, 5, 5, -100])
    plain = scores.clone().requires_grad_()
    for weights in (None, torch.arange(1.0, 7)):
        cut = distribute_tensor(scores, line(), [Shard(0)]).requires_grad_()
        given = None if weights is None else distribute_tensor(weights, line(), [Replicate()])
        places = distribute_tensor(targets, line(), [Shard(0)])
        with CommDebugMode() as comms:
            loss = F.nll_loss(cut, places, given)
            loss.backward()
        assert comms.get_total_counts() == 1, comms.get_comm_counts()
        whole = F.nll_loss(plain, targets, weights)
        same(loss, whole)
        same(cut.grad, torch.autograd.grad(whole, plain)[0])


def kinds_are_saved_and_loaded():
    cut = distribute_tensor(matrix(), line(), [Shard(0)])
    norm, found = torch.linalg.vector_norm(cut, 3), F.embedding(distribute_tensor(torch.tensor([1, 5]), line(), [Replicate()]), cut)
    for tensor, whole in ((norm, matrix().norm(3)), (found, matrix()[[1, 5]])):
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        for weights_only in (False, True):
            buffer.seek(0)
            loaded = torch.load(buffer, weights_only=weights_only)
            assert str(loaded.placements) == str(tensor.placements), loaded.placements
            same(loaded, whole)


PROGRAMS = [
    norms_over_a_cut_are_pending_norms,
    the_order_of_one_norm_is_not_that_of_the_next,
    infinite_norms_are_pending_extremes_where_every_rank_has_a_part,
    histograms_are_pending_where_the_range_is_given_and_only_there,
    pending_norms_pass_views_and_are_settled_by_arithmetic,
    gradients_flow_through_pending_norms,
    gradients_are_clipped_by_the_norm_of_all,
    local_norms_are_taken_as_they_are,
    lookups_in_a_cut_table_are_masked_sums,
    masks_of_local_tensors_are_used,
    sums_and_averages_may_be_pending_together,
    a_spec_with_another_order_of_cuts_is_taken_and_shown,
    an_order_that_is_written_to_a_spec_is_the_tensors,
    another_order_of_cuts_may_leave_unequal_parts,
    products_are_shown_by_the_name_they_are_given,
    the_weights_of_targets_are_added_up_once,
    kinds_are_saved_and_loaded,
]


class Kinds(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")

    def test_on_simulated_ranks(self):
        for program in PROGRAMS:
            with self.subTest(program.__name__), intarsia.simulate(4):
                program()

    def test_over_processes(self):
        run_ranks(4, PROGRAMS)

    def test_a_file_is_read_without_a_process_group(self):
        file = io.BytesIO()
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        torch.save(DTensor.from_local(torch.arange(3.0), init_device_mesh("cpu", (2,)), [Shard(0)]), file)
        dist.destroy_process_group()
        file.seek(0)
        x = torch.load(file, weights_only=False)
        self.assertIsInstance(x, DTensor)
        self.assertEqual((x.shape, x.placements, x.to_local().tolist()), ((6,), (Shard(0),), [0, 1, 2]))

    def test_a_kind_of_a_program_is_known_by_its_class_and_not_by_its_name(self):
        def __init__(self):
            Partial.__init__(self, "sum")

        for name in ("Partial", "_NormPartial", "_MaskPartial"):
            own = type(name, (Partial,), {"__init__": __init__, "__repr__": lambda self: "own"})
            with intarsia.simulate(4), self.assertRaises(NotImplementedError) as caught:
                DTensor.from_local(torch.ones(2), line(), [own()])
            text = f"[placements] own is a {name}, which reduces in a way of its own. Redistribute to Replicate or Shard, or use Partial."
            self.assertEqual(str(caught.exception).splitlines()[0], text)

    def test_norms_of_our_own_choice_are_settled(self):
        intarsia.uninstall()
        self.addCleanup(intarsia.install)
        with intarsia.simulate(4):
            norm = torch.linalg.vector_norm(intarsia.distribute_tensor(matrix(), line(), [Shard(0)]), 2)
            self.assertFalse(any(isinstance(p, _NormPartial) for p in norm.placements))
            same(norm, matrix().norm())


if __name__ == "__main__":
    unittest.main()
