"""torch.utils.checkpoint in a local_random_scope: the recomputation draws the parts of one device again, whatever surrounds backward."""

import contextlib
import itertools
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from intarsia import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, simulate, sum_over_ranks
from intarsia.experimental import local_random_scope, rank_map
from support import run_ranks

OPTIONS = [dict(use_reentrant=a, preserve_rng_state=b) for a, b in itertools.product((False, True), repeat=2)]


def whole():
    return torch.linspace(-1, 1, 35).view(7, 5)


def rows_of(x, mesh):
    return distribute_tensor(x, mesh, [Shard(0)]).to_local().detach()


def block(x):
    return nn.functional.dropout(x * x, 0.5) * torch.rand_like(x) * x


def outcome(x, options, run=block, inside=contextlib.nullcontext, around_backward=contextlib.nullcontext):
    """The result of a checkpointed block, its gradient, and what is drawn afterwards."""
    torch.manual_seed(3)
    x = x.detach().clone().requires_grad_()
    with inside():
        y = checkpoint(run, x, **options)
    with around_backward():
        y.sum().backward()
    return y.detach(), x.grad, torch.rand(3)


def same_as_one_device(mesh, x, run=block, scope=None, **around):
    for options in OPTIONS:
        expected = outcome(x, options, around.get("plain", run))
        local = rows_of(x, mesh)
        inside = scope or (lambda: local_random_scope(mesh))
        got = outcome(local, options, run, inside, around.get("around_backward", contextlib.nullcontext))
        for one, all_of_it in zip(got[:2], expected[:2]):
            one = DTensor.from_local(one, mesh, [Shard(0)], shape=all_of_it.shape, stride=all_of_it.stride())
            torch.testing.assert_close(one.full_tensor(), all_of_it, rtol=0, atol=0, msg=f"{options}")
        if options["preserve_rng_state"]:
            assert torch.equal(got[2], expected[2]), options
        number = got[2][0].item()
        assert sum_over_ranks(number) == number * mesh.size(), options  # all ranks go on with one generator


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def backward_is_outside_of_the_scope():
    same_as_one_device(mesh_of_all(), whole())


def backward_is_inside_of_another_scope():
    mesh = mesh_of_all()
    same_as_one_device(mesh, whole(), around_backward=lambda: local_random_scope(mesh, [Shard(1)]))


def a_rank_has_no_rows():
    mesh = mesh_of_all()
    same_as_one_device(mesh, whole()[: mesh.size() - 1])
    same_as_one_device(mesh, whole()[: mesh.size() - 1], run=lambda x: nn.functional.dropout(x @ torch.ones(5, 5), 0.5))


def scopes_are_nested():
    mesh = mesh_of_all()

    def plain(x):
        return nn.functional.dropout(x * x, 0.5) + x * torch.rand(1)

    def run(x):
        y = nn.functional.dropout(x * x, 0.5)
        with local_random_scope(mesh, [Replicate()]):
            return y + x * torch.rand(1)

    def nested():
        stack = contextlib.ExitStack()
        stack.enter_context(local_random_scope(mesh, [Replicate()]))
        stack.enter_context(local_random_scope(mesh))
        return stack

    same_as_one_device(mesh, whole(), run=run, scope=nested, plain=plain)


def checkpoints_are_nested():
    mesh = mesh_of_all()
    inner = lambda x: checkpoint(block, x, use_reentrant=False)
    same_as_one_device(mesh, whole(), run=lambda x: inner(nn.functional.dropout(x, 0.25)))


def what_ran_without_a_scope_runs_again_without_one():
    mesh = mesh_of_all()
    for options in OPTIONS:
        if options["preserve_rng_state"]:
            x = whole()
            got = outcome(x, options, around_backward=lambda: local_random_scope(mesh))
            for one, other in zip(got, outcome(x, options)):
                assert torch.equal(one, other)


ALL = [
    backward_is_outside_of_the_scope,
    backward_is_inside_of_another_scope,
    scopes_are_nested,
    checkpoints_are_nested,
    what_ran_without_a_scope_runs_again_without_one,
    a_rank_has_no_rows,  # a dropout asks for the size, which simulated ranks have to agree on
]


class ARecomputation(unittest.TestCase):
    def test_in_simulations(self):
        for size, function in itertools.product((2, 4), ALL[:-1]):
            with self.subTest(size=size, function=function.__name__), simulate(size):
                function()

    def test_in_processes(self):
        for size in (2, 4):
            run_ranks(size, ALL)

    def test_of_a_sequence_draws_the_masks_of_its_first_run(self):
        model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Linear(5, 5), nn.Dropout(0.5))
        with simulate(2):
            mesh = mesh_of_all()
            results = []
            for again in (False, True):
                torch.manual_seed(3)
                local = rank_map(lambda rank: torch.ones(3, 5)).requires_grad_()
                with local_random_scope(mesh):
                    y = checkpoint_sequential(model, 2, local, use_reentrant=True) if again else model(local)
                y.sum().backward()
                results.append(DTensor.from_local(local.grad, mesh, [Shard(0)]).full_tensor())
            self.assertTrue(torch.equal(*results))


if __name__ == "__main__":
    unittest.main()
