"""States of optimizers in checkpoints: all of torch.optim, and on from Python to C++ and back."""

import os
import subprocess
import tempfile
import unittest

import torch
from torch import nn, optim

from intarsia import DTensor, Shard, checkpoint, distribute_module, distribute_tensor, init_device_mesh, simulate
from support import mlp

# As C++ has them, with options that make every field of their states.
SHARED = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True, "betas": (0.8, 0.99)},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "LBFGS": {"max_iter": 3, "history_size": 5},
}
PYTHONS = {"Adadelta": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "ASGD": {"t0": 1}, "Rprop": {}, "Adafactor": {}}
RATE = 0.01


def made(kind, options, mesh=None, rate=RATE):
    model = mlp().double()
    if mesh is not None:
        distribute_module(model, mesh)
    return model, getattr(optim, kind)(model.parameters(), lr=rate, **options)


def train(model, optimizer, first, end):
    for step in range(first, end):

        def closure():
            optimizer.zero_grad()
            x = torch.full((3, 10), 0.1 * (step + 1), dtype=torch.float64)
            if isinstance(model[0].weight, DTensor):
                x = distribute_tensor(x, model[0].weight.device_mesh, [Shard(0)])
            loss = model(x).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


def whole(model):
    return {name: getattr(p, "full_tensor", lambda p=p: p)().detach() for name, p in model.named_parameters()}


class AnOptimizer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def same(self, left, right, text, **tolerance):
        for (name, one), two in zip(whole(left).items(), whole(right).values()):
            torch.testing.assert_close(one, two, msg=lambda words: f"{text}, {name}: {words}", **tolerance)

    def goes_on(self, kind, options, mesh=None, **tolerance):
        first, one = made(kind, options, mesh)
        train(first, one, 0, 3)
        path = self.path(kind)
        checkpoint.save(path, {"model": first, "optimizer": one})
        second, two = made(kind, options, mesh, rate=0.5)
        train(second, two, 5, 6)
        checkpoint.load(path, {"model": second, "optimizer": two})
        self.assertEqual(two.param_groups[0]["lr"], RATE)
        train(first, one, 3, 5)
        train(second, two, 3, 5)
        self.same(first, second, kind, **tolerance)

    def test_of_every_kind_goes_on_as_if_nothing_had_happened(self):
        for kind, options in {**SHARED, **PYTHONS}.items():
            with self.subTest(kind):
                self.goes_on(kind, options, rtol=0, atol=0)

    def test_on_a_mesh_goes_on(self):
        """What was pending in a state is reduced when it is saved, and so is rounded otherwise."""
        for kind, options in SHARED.items():
            with self.subTest(kind), simulate(2):
                self.goes_on(kind, options, init_device_mesh("cpu", (2,)), rtol=1e-10, atol=1e-12)

    def test_goes_on_in_cpp_and_back(self):
        """Three steps in Python, two in C++, two in Python: as seven steps in Python."""
        for kind, options in SHARED.items():
            model, optimizer = made(kind, options)
            train(model, optimizer, 0, 3)
            checkpoint.save(self.path(kind, "python"), {"model": model, "optimizer": optimizer, "step": 3})
        for ranks in (1, 2):
            program = [os.environ["INTARSIA_CLI"], "run", "-n", str(ranks), os.environ["INTARSIA_PROCESS_TESTS"], "--play", "train_on"]
            done = subprocess.run(program, env={**os.environ, "INTARSIA_TEST_FOLDER": self.folder}, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            for kind, options in SHARED.items():
                with self.subTest(kind, ranks=ranks):
                    expected, uninterrupted = made(kind, options)
                    train(expected, uninterrupted, 0, 5)
                    model, optimizer = made(kind, options, rate=0.5)
                    self.assertEqual(checkpoint.load(self.path(kind, "cpp"), {"model": model, "optimizer": optimizer})["step"], 5)
                    self.same(model, expected, kind, rtol=1e-9, atol=1e-10)
                    train(expected, uninterrupted, 5, 7)
                    train(model, optimizer, 5, 7)
                    self.same(model, expected, kind, rtol=1e-9, atol=1e-10)

    def test_of_other_names_is_renamed(self):
        model, optimizer = made("AdamW", {})
        train(model, optimizer, 0, 2)
        checkpoint.save(self.path("c"), {"theirs": model, "o": optimizer})
        other, mine = made("AdamW", {}, rate=0.5)
        checkpoint.load(self.path("c"), {"model": other, "optimizer": mine},
                        rename=lambda name: name.replace("model", "theirs").replace("optimizer", "o", 1))
        train(model, optimizer, 2, 4)
        train(other, mine, 2, 4)
        self.same(model, other, "renamed", rtol=0, atol=0)

    def test_of_another_kind_is_refused(self):
        model, optimizer = made("Adam", {})
        checkpoint.save(self.path("c"), {"model": model, "optimizer": optimizer})
        _, other = made("SGD", {})
        with self.assertRaisesRegex(ValueError, 'the optimizer "optimizer" is of the kind SGD, but Adam in the checkpoint'):
            checkpoint.load(self.path("c"), {"model": model, "optimizer": other})
        two = optim.Adam([{"params": [p]} for p in model.parameters()])
        with self.assertRaisesRegex(ValueError, "has groups of parameters: 4, but 1 in the checkpoint"):
            checkpoint.load(self.path("c"), {"model": model, "optimizer": two})

    def test_with_a_state_that_nobody_asks_for_is_refused(self):
        model, optimizer = made("Adam", {"amsgrad": True})
        train(model, optimizer, 0, 1)
        checkpoint.save(self.path("c"), {"model": model, "optimizer": optimizer})
        part = nn.Sequential(model[0])
        fewer = optim.Adam(part.parameters(), lr=0.5)
        with self.assertRaisesRegex(RuntimeError, r"unexpected in the checkpoint(.|\n)*optimizer.state.model.2.weight.exp_avg"):
            checkpoint.load(self.path("c"), {"model": part, "optimizer": fewer})
        self.assertEqual((fewer.param_groups[0]["lr"], len(fewer.state)), (0.5, 0))

    def test_with_rates_in_tensors_keeps_them_there(self):
        model = mlp()
        optimizer = optim.AdamW(model.parameters(), lr=torch.tensor(0.25))
        checkpoint.save(self.path("c"), {"model": model, "optimizer": optimizer})
        rate = torch.tensor(1.0)
        other = optim.AdamW(model.parameters(), lr=rate)
        checkpoint.load(self.path("c"), {"model": model, "optimizer": other})
        self.assertIs(other.param_groups[0]["lr"], rate)
        self.assertEqual(rate.item(), 0.25)

    def test_with_something_else_in_its_state_is_an_error(self):
        model, optimizer = made("SGD", {})
        optimizer.state[model[0].weight]["x"] = object()
        with self.assertRaisesRegex(TypeError, 'the state "state.model.0.weight.x" of an optimizer is a object'):
            checkpoint.save(self.path("c"), {"model": model, "optimizer": optimizer})


if __name__ == "__main__":
    unittest.main()
