"""The drop-in: files, the first forward of replicate, casts of models and answers of LocalTensorMode are PyTorch's."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings

import torch
import torch.distributed as dist
from support import run_ranks
from torch import nn

import intarsia

WRITES = """
    import sys, torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = DTensor.from_local(torch.arange(6.0).view(3, 2), grid, [Shard(0), Replicate()])
    y = DTensor.from_local(torch.ones(2), grid, [Partial(), Shard(0)])
    torch.save({"x": x, "y": y, "p": torch.nn.Parameter(x), "plain": torch.ones(2)}, sys.argv[1])
    print(type(DTensor).__module__)
"""
READS = """
    import sys, torch, torch.distributed.tensor
    for weights_only in (True, False):
        found = torch.load(sys.argv[1], weights_only=weights_only)
        assert [isinstance(value, torch.distributed.tensor.DTensor) for value in found.values()] == [True, True, True, False], found
        x, y, p = found["x"], found["y"], found["p"]
        assert (x.shape, x.placements[0].dim, x.placements[1].is_replicate()) == ((6, 2), 0, True), x
        assert (y.shape, y.placements[0].reduce_op, y.placements[1].dim) == ((4,), "sum", 0), y
        assert x.to_local().tolist() == p.to_local().tolist() == [[0, 1], [2, 3], [4, 5]]
        assert type(p) is torch.nn.Parameter or isinstance(p, torch.nn.Parameter)
        assert p.requires_grad and not x.requires_grad and x.device_mesh.mesh_dim_names == ("dp", "tp")
        assert "intarsia" not in sys.modules or len(sys.argv) > 2
    print("read")
"""


def run(text: str, *args: str, on_intarsia: bool) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "program.py")
        path.write_text(textwrap.dedent(text))
        command = [sys.executable, *(["-m", "intarsia"] if on_intarsia else []), str(path), *args]
        environment = dict(os.environ) if on_intarsia else {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        return done.stdout.strip() if done.returncode == 0 else done.stderr


class Files(unittest.TestCase):
    maxDiff = None

    def test_are_read_by_plain_pytorch_and_its_own_are_read_here(self):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = f"{folder}/ours", f"{folder}/theirs"
            self.assertEqual(run(WRITES, ours, on_intarsia=True), "intarsia._tensor")
            self.assertEqual(run(WRITES, theirs, on_intarsia=False), "torch._C")
            self.assertEqual(run(READS, ours, on_intarsia=False), "read")
            self.assertEqual(run(READS, ours, "here", on_intarsia=True), "read")
            self.assertEqual(run(READS, theirs, "here", on_intarsia=True), "read")


def replicate_waits_for_the_first_forward() -> None:
    intarsia.install()
    from torch.distributed._composable.replicate import replicate

    rank = dist.get_rank()
    model = replicate(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model.weight.fill_(rank + 1.0)
    assert model.state_dict()["weight"].eq(rank + 1.0).all()
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    assert model.state_dict()["weight"].eq(1.0).all() and model.weight.grad.eq(1.5).all(), model.weight.grad
    with model.no_sync():
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
    assert model.weight.grad.eq(1.5 + rank + 1.0).all()


def wrapped_models_are_cast_also_by_swapping() -> None:
    for swaps in (False, True):
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        for wrap in (intarsia.fully_shard, intarsia.replicate):
            torch.manual_seed(0)
            model, x = wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))), torch.ones(2, 3)
            model(x).sum().backward()
            model.zero_grad()
            model.to(torch.float64)
            assert torch.__future__.get_swap_module_params_on_conversion() is swaps
            model(x.double()).sum().backward()
            torch.manual_seed(0)
            plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
            plain(x.double()).sum().backward()
            for ours, theirs in zip(model.parameters(), plain.parameters()):
                grad = ours.grad.full_tensor() if hasattr(ours.grad, "full_tensor") else ours.grad
                torch.testing.assert_close(grad, theirs.grad)
    torch.__future__.set_swap_module_params_on_conversion(False)


def results_of_functional_collectives_become_distributed() -> None:
    import torch.distributed._functional_collectives as collectives

    mesh = intarsia.init_device_mesh("cpu", (2,))
    for wrap in (intarsia.DTensor.from_local, intarsia.distribute_tensor):
        summed = collectives.all_reduce(torch.ones(2), "sum", mesh)
        assert type(summed) is collectives.AsyncCollectiveTensor
        assert wrap(summed, mesh, [intarsia.Replicate()]).full_tensor().tolist() == [2, 2]
    x = torch.ones(2, requires_grad=True)
    gathered = collectives.all_gather_single_autograd(x, 0, mesh)
    (intarsia.DTensor.from_local(gathered, mesh, [intarsia.Replicate()]) * 3).full_tensor().sum().backward()
    assert x.grad.tolist() == [6, 6], x.grad


class Models(unittest.TestCase):
    def test_on_real_ranks(self):
        run_ranks(2, [results_of_functional_collectives_become_distributed])
        run_ranks(2, [wrapped_models_are_cast_also_by_swapping, replicate_waits_for_the_first_forward])


class Answers(unittest.TestCase):
    def setUp(self):
        intarsia.install()
        self.addCleanup(intarsia.uninstall)

    def test_equality_is_that_of_all_ranks_in_a_local_tensor_mode(self):
        from torch.distributed._local_tensor import LocalIntNode, LocalTensorMode

        with LocalTensorMode(2), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            intarsia._whole_numbers._warn_of_one_answer.cache_clear()
            rank = torch.SymInt(LocalIntNode({0: 0, 1: 1}))
            self.assertEqual([bool(rank == 0), bool(rank == rank), bool(rank != 0), bool(rank != 7)], [False, True, True, True])
            self.assertEqual([rank <= 1, rank < 0, not rank == 0], [True, False, True])  # noqa: SIM201  other operators
            with self.assertRaises(ValueError):
                bool(rank <= 0)
        self.assertEqual([str(warning.message).partition(" ")[0] for warning in told], ["[LocalTensorMode]"])

    def test_simulations_ask_for_one_that_holds_on_every_rank(self):
        with intarsia.simulate(2), self.assertRaisesRegex(ValueError, "the simulated ranks hold different values"):
            bool(dist.get_rank() == 0)


if __name__ == "__main__":
    unittest.main()
