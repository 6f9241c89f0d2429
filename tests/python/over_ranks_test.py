"""What a program does once, and numbers from all ranks: alone, simulated, and in processes."""

import contextlib
import io
import os
import subprocess
import sys
import unittest

import torch
import torch.distributed as dist

import intarsia
from intarsia import DTensor, Partial, Shard, init_device_mesh, max_over_ranks, mean_over_ranks, simulate, sum_over_ranks
from intarsia.experimental import rank_map
from support import raises, run_ranks


def printed(function, *values, **options):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*values, **options)
    return out.getvalue()


def mine():
    """1, 10, 100, ...: a number per rank."""
    return rank_map(lambda rank: torch.tensor(10.0**rank)) if intarsia._mesh.simulated_world() else torch.tensor(10.0 ** dist.get_rank())


def numbers_of_all_ranks_are_reduced():
    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("dp",))
    total = sum(10.0**rank for rank in range(n))
    assert (sum_over_ranks(mine()), max_over_ranks(mine())) == (total, 10.0 ** (n - 1))
    assert mean_over_ranks(mine(), mesh) == mean_over_ranks(mine(), mesh["dp"]) == total / n
    assert mean_over_ranks(0.5) == 0.5 and sum_over_ranks(True) == n
    assert max_over_ranks(dist.get_rank()) == n - 1
    assert mean_over_ranks(DTensor.from_local(mine(), mesh, [Partial()]).requires_grad_()) == total
    assert sum_over_ranks(torch.ones(1, 1, dtype=torch.int64)) == n


def a_mesh_of_some_ranks_names_those_that_take_part():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert sum_over_ranks(1, mesh["dp"]) == 2
    if not intarsia._mesh.simulated_world():
        assert sum_over_ranks(mine(), mesh["dp"]) == (1010 if dist.get_rank() % 2 else 101)


def what_is_no_number_is_an_error_on_the_rank_that_gives_it():
    raises(ValueError, "[mean_over_ranks] needs one number per rank, but the tensor has shape [2]. Reduce it first", mean_over_ranks, torch.ones(2))
    raises(TypeError, "[sum_over_ranks] needs a number or a tensor of one element, but got None.", sum_over_ranks, None)
    raises(TypeError, "[sum_over_ranks] needs a number or a tensor of one element, but got 'a'.", sum_over_ranks, "a")
    raises(TypeError, "[max_over_ranks] needs a real number, but the tensor is complex.", max_over_ranks, torch.ones(1, dtype=torch.cfloat))
    raises(TypeError, "is on the meta device and has no value.", max_over_ranks, torch.ones(1, device="meta"))


def the_first_rank_prints_once():
    first = bool(intarsia._mesh.simulated_world()) or dist.get_rank() == 0
    assert intarsia.is_first_rank() == first
    assert printed(intarsia.print_once, "step", 1, sep=": ") == ("step: 1\n" if first else "")


def every_rank_prints_its_rank():
    n = dist.get_world_size()
    ranks = f"ranks 0 to {n - 1}" if intarsia._mesh.simulated_world() and n > 1 else f"rank {dist.get_rank()}"
    assert printed(intarsia.print_with_rank, "has", 3, "rows") == f"[{ranks} of {n}] has 3 rows\n"


ALL = [
    numbers_of_all_ranks_are_reduced,
    what_is_no_number_is_an_error_on_the_rank_that_gives_it,
    the_first_rank_prints_once,
    every_rank_prints_its_rank,
]
FOUR = [a_mesh_of_some_ranks_names_those_that_take_part]


class OverRanks(unittest.TestCase):
    def test_in_simulations(self):
        for size, functions in ((1, ALL), (2, ALL), (4, ALL + FOUR)):
            for function in functions:
                with self.subTest(size=size, function=function.__name__), simulate(size):
                    function()

    def test_in_processes(self):
        run_ranks(2, ALL)
        run_ranks(4, ALL + FOUR)

    def test_alone(self):
        self.assertTrue(intarsia.is_first_rank())
        self.assertEqual(mean_over_ranks(3), 3.0)
        self.assertEqual(printed(intarsia.print_with_rank, "here"), "[rank 0 of 1] here\n")

    def test_a_rank_that_has_not_joined_is_told_so(self):
        environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        for call in ("is_first_rank()", "print_once()", "mean_over_ranks(1)"):
            ended = subprocess.run([sys.executable, "-c", f"import intarsia; intarsia.{call}"], env=environment, capture_output=True, text=True)
            self.assertIn("but there is no process group. Call torch.distributed.init_process_group first.", ended.stderr)

    def test_the_launcher_says_how_often_it_has_restarted(self):
        self.assertEqual(intarsia.restart_count(), 0)
        self.addCleanup(os.environ.pop, "TORCHELASTIC_RESTART_COUNT")
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "2"
        self.assertEqual(intarsia.restart_count(), 2)

    def test_groups_of_a_mesh_that_one_process_plays_come_to_one_result(self):
        with simulate(4):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            raises(ValueError, "come to 101 and 1010, and this process plays all of them.", sum_over_ranks, mine(), mesh["dp"])
            rows = DTensor.from_local(torch.ones(1, 3), mesh["dp"], [Shard(0)])
            self.assertEqual(sum_over_ranks(rows.sum()), 24.0)


if __name__ == "__main__":
    unittest.main()
