"""Tensors, modules and dicts on their way to other meshes of the same world: simulated, and on real processes."""

import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import intarsia
from intarsia import Partial, Replicate, Shard, distribute_module, distribute_tensor, simulate
from intarsia.debug import CommDebugMode
from support import mlp, run_ranks

RANKS = 4


def is_simulated():
    return intarsia._mesh.simulated_world() is not None


def mesh_of(*ranks, shape=None):
    me = 0 if is_simulated() else dist.get_rank()
    return DeviceMesh("cpu", torch.tensor(ranks).view(shape or (len(ranks),)), _init_backend=False, _rank=me)


def meshes():
    return [
        (mesh_of(0, 1, 2, 3), [[Shard(0)], [Replicate()]]),
        (mesh_of(0, 1), [[Shard(1)], [Replicate()]]),
        (mesh_of(3, 1), [[Shard(0)]]),
        (mesh_of(2), [[Shard(0)]]),
        (mesh_of(3, 1, 0, 2, shape=(2, 2)), [[Shard(0), Shard(1)], [Shard(0), Shard(0)]]),
    ]


def pairs():
    for first, froms in meshes():
        for second, tos in meshes():
            for before in froms:
                for after in tos:
                    if first != second:
                        yield first, before, second, after


def takes_part(mesh):
    """Whether this process hosts a rank of the mesh; a simulation hosts all."""
    return is_simulated() or dist.get_rank() in mesh.mesh.flatten().tolist()


def is_whole(tensor, expected):
    if takes_part(tensor.device_mesh):
        torch.testing.assert_close(tensor.full_tensor().detach(), expected)


def values_and_gradients_come_and_go():
    whole, weight = torch.arange(35.0).view(7, 5), torch.arange(35.0).view(7, 5).cos()
    for first, before, second, after in pairs():
        x = distribute_tensor(whole, first, before, src_data_rank=None).requires_grad_()
        y = intarsia.redistribute(x, second, after)
        assert (y.device_mesh, list(y.placements)) == (second, after)
        is_whole(y, whole)
        y.backward(distribute_tensor(weight, second, after, src_data_rank=None))
        assert x.grad.device_mesh == first
        is_whole(x.grad, weight)


def dtypes_of_the_way_count():
    third = torch.full((4,), 1 / 3)
    first, second = mesh_of(0, 1), mesh_of(1, 2, 3)
    x = distribute_tensor(third, first, [Shard(0)], src_data_rank=None).requires_grad_()
    y = x.redistribute(second, [Shard(0)], forward_dtype=torch.bfloat16)
    assert y.dtype == torch.bfloat16
    is_whole(y, third.bfloat16())
    y.backward(distribute_tensor(torch.ones(4, dtype=torch.bfloat16), second, [Shard(0)], src_data_rank=None))
    is_whole(x.grad, torch.ones(4))


def a_module_moves_in_one_exchange():
    first, second = mesh_of(0, 1), mesh_of(3, 1, 0, 2, shape=(2, 2))
    model, plain = distribute_module(mlp(), first), mlp()
    before = dict(model.named_parameters())
    for parameter in before.values():
        parameter.grad = parameter.detach() * 2
    with CommDebugMode() as trace:
        intarsia.redistribute(model, second, lambda name, tensor: [Shard(0), Shard(1) if tensor.ndim > 1 else Replicate()])
    assert trace.get_total_counts() == 1, trace.get_comm_counts()
    for (name, parameter), value in zip(model.named_parameters(), plain.parameters()):
        assert parameter is before[name] and parameter.device_mesh == second, name
        is_whole(parameter, value.detach())
        is_whole(parameter.grad, value.detach() * 2)


def a_dict_moves_and_what_is_plain_stays():
    first, second = mesh_of(0, 1), mesh_of(2, 3)
    state = {"a": distribute_tensor(torch.arange(6.0), first, [Shard(0)], src_data_rank=None), "b": torch.ones(2), "n": 3}
    moved = intarsia.redistribute(state, second, [Shard(0)])
    assert moved["b"] is state["b"] and moved["n"] == 3 and moved["a"].device_mesh == second
    is_whole(moved["a"], torch.arange(6.0))


def what_does_not_fit_is_an_error():
    first, second = mesh_of(0, 1), mesh_of(2, 3)
    x = distribute_tensor(torch.arange(6.0), first, [Shard(0)], src_data_rank=None)
    for what, plan, error, words in (
        (torch.ones(2), [Shard(0)], TypeError, "takes distributed tensors"),
        ([x], [Shard(0)], TypeError, "takes tensors, modules and dicts of tensors, but got list"),
        (x, [Partial()], RuntimeError, "redistributing to Partial is for internal use only"),
        (x, [Shard(0), Shard(0)], ValueError, "2 placements given, but"),
        ({"x": x}, [Shard(0), Shard(0)], ValueError, "has 1 axis"),
        ({"x": x}, lambda name, tensor: [Partial()], RuntimeError, "redistributing to Partial is for internal use only"),
    ):
        try:
            intarsia.redistribute(what, second, plan)
        except error as told:
            assert words in str(told), str(told)
        else:
            raise AssertionError(words)


PROGRAMS = [
    values_and_gradients_come_and_go, dtypes_of_the_way_count, a_module_moves_in_one_exchange,
    a_dict_moves_and_what_is_plain_stays, what_does_not_fit_is_an_error,
]


class ToMesh(unittest.TestCase):
    def test_simulated(self):
        for program in PROGRAMS:
            with self.subTest(program.__name__), simulate(RANKS):
                program()

    def test_on_real_processes(self):
        run_ranks(RANKS, PROGRAMS)


if __name__ == "__main__":
    unittest.main()
