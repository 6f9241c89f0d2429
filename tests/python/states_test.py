"""Schedules, scalers, generators, samplers and objects with a state_dict as items of a checkpoint."""

import os
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch.optim import lr_scheduler as schedules
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

from intarsia import checkpoint, simulate
from support import raises, run_ranks

SCHEDULES = {
    "StepLR": lambda o: schedules.StepLR(o, 2),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [1, 3, 3]),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.5, total_steps=20),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: schedules.SequentialLR(o, [schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)], [2]),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler([schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)]),
}


def made(kind):
    """An optimizer and a schedule of its learning rate."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    return optimizer, SCHEDULES[kind](optimizer)


def rates_of(optimizer, schedule, steps):
    rates = []
    for _ in range(steps):
        optimizer.step()
        schedule.step(*([1.0] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


class Counting:
    """A loader with a state of several kinds."""

    def __init__(self, place=0):
        self.state = {"place": place, "seen": (1, None, float("inf")), 3: {"": [True]}, "order": torch.arange(5) + place, "inner": {"": "text"}}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def every_kind_goes_on(folder):
    path = os.path.join(folder, "every")
    torch.manual_seed(5)
    generator, sampler = torch.Generator().manual_seed(7), RandomSampler(range(9), generator=torch.Generator().manual_seed(9))
    parts = DistributedSampler(range(9), num_replicas=2, rank=0)
    parts.set_epoch(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    items = {"default": torch.default_generator, "own": generator, "sampler": sampler, "parts": parts, "scaler": scaler, "loader": Counting(4)}
    checkpoint.save(path, items)
    expected = torch.rand(3), torch.rand(3, generator=generator), list(sampler)
    torch.manual_seed(0)
    again = {
        "default": torch.default_generator,
        "own": torch.Generator(),
        "sampler": RandomSampler(range(9), generator=torch.Generator()),
        "parts": DistributedSampler(range(9), num_replicas=2, rank=0),
        "scaler": torch.amp.GradScaler("cpu"),
        "loader": Counting(),
    }
    checkpoint.load(path, again)
    got = torch.rand(3), torch.rand(3, generator=again["own"]), list(again["sampler"])
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1]) and got[2] == expected[2]
    assert (again["parts"].epoch, again["scaler"].get_scale()) == (3, 8.0)
    state, wanted = again["loader"].state, Counting(4).state
    assert torch.equal(state.pop("order"), wanted.pop("order")) and state == wanted, state


def ranks_in_different_states_each_get_theirs(folder):
    path, rank = os.path.join(folder, "ranks"), dist.get_rank()
    torch.manual_seed(rank)
    loader = Counting()
    loader.state["order"] = torch.arange(3) + rank
    checkpoint.save(path, {"generator": torch.default_generator, "loader": loader})
    expected = torch.rand(2)
    torch.manual_seed(9)
    loader.state["order"] = torch.zeros(3)
    checkpoint.load(path, {"generator": torch.default_generator, "loader": loader})
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(loader.state["order"], torch.arange(3) + rank)
    dist.barrier()


def states_that_have_to_be_equal_are_named(folder):
    raises(RuntimeError, "rank 0 and rank 1 save different things: \"loader.state\"", checkpoint.save, os.path.join(folder, "unequal"), {"loader": Counting(dist.get_rank())})


class AState(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "c")
        self.folder = folder.name

    def test_of_every_schedule_goes_on(self):
        for kind in SCHEDULES:
            with self.subTest(kind):
                optimizer, schedule = made(kind)
                rates_of(optimizer, schedule, 3)
                checkpoint.save(self.path, {"optimizer": optimizer, "schedule": schedule})
                expected = rates_of(optimizer, schedule, 5)
                optimizer, schedule = made(kind)
                checkpoint.load(self.path, {"optimizer": optimizer, "schedule": schedule})
                self.assertEqual(rates_of(optimizer, schedule, 5), expected)

    def test_of_every_kind_goes_on(self):
        every_kind_goes_on(self.folder)
        with simulate(2):
            every_kind_goes_on(self.folder)

    def test_in_processes(self):
        run_ranks(2, [every_kind_goes_on, ranks_in_different_states_each_get_theirs, states_that_have_to_be_equal_are_named], self.folder)
        with simulate(2):  # each rank has its generator there, but not its loader
            checkpoint.load(os.path.join(self.folder, "ranks"), {"generator": torch.default_generator})
            drawn = torch.rand(2)
            for rank, values in drawn._local_tensors.items():
                torch.manual_seed(rank)
                self.assertTrue(torch.equal(values, torch.rand(2)))
            raises(ValueError, "which differ, and this process plays all of them with one. Leave it out.",
                   checkpoint.load, os.path.join(self.folder, "ranks"), {"loader": Counting()})  # fmt: skip
        raises(ValueError, '"generator.state" has a state for each of 2 ranks, which differ, and there are 1 ranks now. Load it on 2 ranks',
               checkpoint.load, os.path.join(self.folder, "ranks"), {"generator": torch.default_generator})  # fmt: skip

    def test_of_simulated_ranks_with_seeds_of_their_own_is_each_of_theirs(self):
        with simulate(2):
            torch.manual_seed(dist.get_rank())
            checkpoint.save(self.path, {"generator": torch.default_generator})
            expected = torch.rand(2)
            torch.manual_seed(5)
            checkpoint.load(self.path, {"generator": torch.default_generator})
            self.assertTrue(torch.equal(torch.rand(2).eq(expected)._local_tensors[1], torch.ones(2, dtype=torch.bool)))

    def test_that_is_missing_or_of_another_kind_is_an_error(self):
        checkpoint.save(self.path, {"schedule": "none", "x": 1})
        before = torch.get_rng_state()
        for name, item in (("generator.state", torch.default_generator), ("scaler.scale", torch.amp.GradScaler("cpu")), ("loader.state", Counting())):
            raises(RuntimeError, name, checkpoint.load, self.path, {name.split(".")[0]: item})
        self.assertTrue(torch.equal(torch.get_rng_state(), before))
        loaded = checkpoint.load(self.path, {"generator": torch.default_generator, "scaler": torch.amp.GradScaler("cpu")}, strict=False)
        self.assertEqual(sorted(loaded.missing), ["generator.state", "scaler.growth_tracker", "scaler.scale"])

    def test_of_a_disabled_scaler_is_nothing(self):
        off, on = torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")
        checkpoint.save(self.path, {"scaler": off, "other": on})
        checkpoint.load(self.path, {"scaler": off, "other": off})

    def test_that_cannot_be_saved_is_an_error_that_names_it(self):
        loader = Counting()
        loader.state["order"] = {"open": object()}
        raises(TypeError, 'the state of "loader" has a object under "order.open". Numbers, texts', checkpoint.save, self.path, {"loader": loader})
        raises(ValueError, 'the sampler "s" has no generator, and takes its seed from torch.default_generator.',
               checkpoint.save, self.path, {"s": RandomSampler(range(3))})  # fmt: skip

    def test_none_is_refused_by_name(self):
        for function in (checkpoint.save, checkpoint.load, checkpoint.export_full, checkpoint.save_async):
            raises(TypeError, '"schedule" is None. Leave it out.', function, self.path, {"schedule": None})
            raises(TypeError, "the items are a dict from names to what is saved", function, self.path, None)


if __name__ == "__main__":
    unittest.main()
