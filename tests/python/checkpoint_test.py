"""Checkpoints from Python: simulated, and on real processes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
from torch import nn

from intarsia import Shard, checkpoint, distribute_tensor, init_device_mesh, simulate
from intarsia.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from support import mlp, run_ranks, same


def parallel(mesh):
    return parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def train(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((3, 10), 0.1 * (step + 1))).square().sum().backward()
        optimizer.step()


def whole(model):
    return {name: getattr(value, "full_tensor", lambda value=value: value)().detach() for name, value in model.state_dict().items()}


def training_goes_on_as_if_nothing_had_happened(folder):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for kind, options in ((torch.optim.AdamW, {"amsgrad": True}), (torch.optim.SGD, {"momentum": 0.9})):
        first, second = parallel(mesh), parallel(mesh)
        one, two = kind(first.parameters(), lr=0.01, **options), kind(second.parameters(), lr=0.5, **options)
        train(first, one, 3)
        path = os.path.join(folder, kind.__name__)
        checkpoint.save(path, {"model": first, "optimizer": one, "step": 3})
        assert checkpoint.load(path, {"model": second, "optimizer": two})["step"] == 3
        train(first, one, 2)
        train(second, two, 2)
        for (name, left), right in zip(whole(first).items(), whole(second).values()):
            assert torch.equal(left, right), name
    dist.barrier()


def an_asynchronous_save_is_what_was_there(folder):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.arange(10.0), mesh, [Shard(0)])
    pending = checkpoint.save_async(os.path.join(folder, "async"), {"x": x})
    x.zero_()
    pending.wait()
    y = torch.zeros(10)
    checkpoint.load(os.path.join(folder, "async"), {"x": y})
    assert torch.equal(y, torch.arange(10.0))


class ACheckpoint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_of_four_ranks_loads_on_three_and_on_one(self):
        x = torch.arange(35.0).view(7, 5)
        with simulate(4):
            checkpoint.save(self.path("c"), {"x": distribute_tensor(x, init_device_mesh("cpu", (4,)), [Shard(0)]), "loss": 0.5, "name": "a"})
        with simulate(3):
            y = distribute_tensor(torch.zeros(7, 5), init_device_mesh("cpu", (3,)), [Shard(1)])
            loaded = checkpoint.load(self.path("c"), {"x": y})
            same(y, x)
            self.assertEqual(dict(loaded), {"loss": 0.5, "name": "a"})
        z = torch.zeros(7, 5)
        checkpoint.load(self.path("c"), {"x": z})
        self.assertTrue(torch.equal(z, x))
        self.assertEqual(checkpoint.verify(self.path("c")), [])
        self.assertEqual(checkpoint.latest(self.folder), self.path("c"))

    def test_is_readable_without_intarsia(self):
        """Eight bytes, a header in JSON, rows: as the format says."""
        checkpoint.export_full(self.path("hf"), {"w": torch.arange(6.0).view(2, 3)})
        data = pathlib.Path(self.path("hf/model.safetensors")).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        self.assertEqual(header["w"], {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]})
        self.assertTrue(torch.equal(torch.frombuffer(bytearray(data[8 + length :]), dtype=torch.float32).view(2, 3), torch.arange(6.0).view(2, 3)))

    def test_is_verified_and_says_what_could_not_be(self):
        with simulate(3):
            x = distribute_tensor(torch.arange(9.0), init_device_mesh("cpu", (3,)), [Shard(0)])
            checkpoint.save(self.path("c"), {"x": x})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            good = checkpoint.verify(self.path("c"))
        self.assertEqual((good, good.checksums, str(good)), ([], True, f"{self.path('c')} is as it was written.\n"))
        for rank in (0, 2):
            file = pathlib.Path(self.path(f"c/rank-{rank}-of-3.safetensors"))
            file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        os.remove(self.path("c/rank-1-of-3.safetensors"))
        bad = checkpoint.verify(self.path("c"))
        for rank in range(3):
            self.assertIn(f"rank-{rank}-of-3.safetensors", str(bad))
        self.assertEqual("".join(f"{line}\n" for line in bad), str(bad))
        checkpoint.export_full(self.path("hf"), {"x": torch.arange(6.0)})
        with self.assertWarnsRegex(UserWarning, r"\[checkpoint.verify\] .*hf is well formed. Its values cannot be checked: .*\n.*\n  not checked: values"):
            unchecked = checkpoint.verify(self.path("hf"))
        self.assertEqual((unchecked, unchecked.checksums), ([], False))

    def test_with_other_names_is_refused_or_renamed(self):
        checkpoint.save(self.path("c"), {"model": mlp()})
        model = nn.Sequential(nn.Linear(10, 16))
        with self.assertRaisesRegex(RuntimeError, r"unexpected in the checkpoint \(2\):\n    model.2.bias\n    model.2.weight"):
            checkpoint.load(self.path("c"), {"model": model})
        self.assertEqual(checkpoint.load(self.path("c"), {"model": model}, strict=False).unexpected, ["model.2.bias", "model.2.weight"])
        other = torch.zeros(16)
        checkpoint.load(self.path("c"), {"b": other}, rename=lambda name: "model.0.bias")
        self.assertTrue(torch.equal(other, mlp()[0].bias))

    def test_of_something_else_is_an_error(self):
        with self.assertRaisesRegex(TypeError, r'\[checkpoint.save\] "x" is a object.'):
            checkpoint.save(self.path("c"), {"x": object()})
        with self.assertRaisesRegex(TypeError, r'\[checkpoint.save\] "d.a.b" is a list. A dict may hold'):
            checkpoint.save(self.path("c"), {"d": {"a": {"b": [1]}}})

    def test_of_numbers_beyond_64_bits_is_an_error(self):
        for items in ({"n": 2**63}, {"d": {"n": 2**63}}):
            with self.assertRaisesRegex(OverflowError, r"whole numbers have 64 bits"):
                checkpoint.save(self.path("c"), items)
        checkpoint.save(self.path("c"), {"n": -(2**63), "m": 2**63 - 1})
        self.assertEqual(dict(checkpoint.load(self.path("c"), {})), {"n": -(2**63), "m": 2**63 - 1})

    def test_of_dicts_in_dicts(self):
        checkpoint.save(self.path("c"), {"d": {"x": torch.ones(2), "n": {"y": torch.arange(3), "rate": 0.5}}})
        mine = {"x": torch.zeros(2), "n": {"y": torch.zeros(3, dtype=torch.long), "rate": 0.0}}
        loaded = checkpoint.load(self.path("c"), {"d": mine})
        self.assertEqual((mine["x"].tolist(), mine["n"]["y"].tolist(), loaded["d.n.rate"]), ([1, 1], [0, 1, 2], 0.5))

    def test_tells_how_far_it_is(self):
        told = []
        x = torch.ones(3 << 18)
        checkpoint.save(self.path("a"), {"x": x}, progress=lambda done, total: told.append((done, total)))
        checkpoint.save_async(self.path("b"), {"x": x}, progress=lambda done, total: told.append((done, total))).wait()
        checkpoint.load(self.path("b"), {"x": x}, progress=lambda done, total: told.append((done, total)))
        self.assertEqual(told, [(i << 20, 3 << 20) for i in (1, 2, 3)] * 3)

    def test_is_resumed_from_if_there_is_one(self):
        y = torch.zeros(2)
        self.assertIsNone(checkpoint.resume(self.folder, {"x": y}))
        for step in (1, 2):
            checkpoint.save(self.path(f"step-{step}"), {"x": torch.full((2,), float(step)), "step": step})
        self.assertEqual(checkpoint.resume(self.folder, {"x": y})["step"], 2)
        self.assertEqual(y.tolist(), [2, 2])

    def test_is_converted_and_the_oldest_go(self):
        self.assertFalse(checkpoint.has_latest(self.folder))
        for name in "abc":
            checkpoint.save(self.path(name), {"x": torch.arange(6.0)})
        checkpoint.convert(self.path("c"), self.path("d"))
        with self.assertRaisesRegex(ValueError, "there is a checkpoint at .* already"):
            checkpoint.convert(self.path("c"), self.path("d"), files=3)
        checkpoint.convert(self.path("c"), self.path("d"), files=3, replace=True)
        self.assertTrue(checkpoint.has_latest(self.folder))
        checkpoint.keep(self.folder, 2)
        self.assertEqual(checkpoint.complete(self.folder), [self.path("c"), self.path("d")])
        self.assertEqual(len([name for name in os.listdir(self.path("d")) if name.endswith(".safetensors")]), 3)
        y = torch.zeros(6)
        checkpoint.load(self.path("d"), {"x": y})
        self.assertTrue(torch.equal(y, torch.arange(6.0)))

    def test_that_fails_at_the_end_of_the_program_is_told(self):
        os.mkdir(self.path("full"))
        program = ("import os, sys, torch; from intarsia import checkpoint; import resource, signal\n"
                   "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
                   "checkpoint.save_async(sys.argv[1], {'x': torch.ones(1000)})")
        done = subprocess.run([sys.executable, "-c", program, self.path("full/c")], capture_output=True, text=True)
        self.assertIn("full/c was not written. rank 0: tensor \"x\": could not write", done.stderr)

    def test_on_real_processes(self):
        for size in (2, 4):
            with tempfile.TemporaryDirectory() as folder:
                run_ranks(size, [training_goes_on_as_if_nothing_had_happened, an_asynchronous_save_is_what_was_there], folder)


if __name__ == "__main__":
    unittest.main()
