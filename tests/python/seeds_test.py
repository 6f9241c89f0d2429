"""Seeds of simulated ranks: one each, or one for all."""

import unittest

import torch
import torch.nn.functional as F
from torch import nn

from intarsia import Shard, distribute_tensor

from four_ranks import Simulated


def alone(seed, *draws):
    """What a process of its own draws."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    values = [draw() for draw in draws]
    torch.set_rng_state(state)
    return values


DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(2, 2, dtype=torch.double),
    "randint": lambda: torch.randint(0, 100, (4,)),
    "randperm": lambda: torch.randperm(5),
    "normal": lambda: torch.normal(1.0, 2.0, (3,)),
    "rand_like": lambda: torch.rand_like(torch.ones(2)),
    "bernoulli": lambda: torch.bernoulli(torch.full((8,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(6), 2),
    "uniform_": lambda: torch.empty(3).uniform_(),
    "normal_": lambda: torch.zeros(2).normal_(),
    "dropout": lambda: F.dropout(torch.ones(8)),
    "init": lambda: nn.init.kaiming_uniform_(torch.empty(3, 3)),
    "linear": lambda: nn.Linear(2, 2).weight.detach(),
}


class Seeds(Simulated):
    def values(self, tensor):
        return list(tensor._local_tensors.values())

    def test_every_rank_draws_what_it_would_draw_alone(self):
        for name, draw in DRAWS.items():
            torch.manual_seed(self.mesh.get_local_rank() + 7)
            first, second = draw(), draw()
            for rank in range(4):
                expected = alone(rank + 7, draw, draw)
                got = self.values(first)[rank], self.values(second)[rank]
                self.assertTrue(all(map(torch.equal, got, expected)), (name, rank))
        self.assertTrue(hasattr(torch.rand(1), "_ranks"))

    def test_one_seed_is_one_for_all_again(self):
        torch.manual_seed(self.mesh.get_local_rank())
        torch.manual_seed(3)
        self.assertFalse(hasattr(torch.rand(2), "_ranks"))

    def test_states_are_kept_and_put_back(self):
        torch.manual_seed(self.mesh.get_local_rank())
        state, first = torch.get_rng_state(), torch.rand(2)
        torch.set_rng_state(state)
        for one, other in zip(self.values(first), self.values(torch.rand(2))):
            self.assertTrue(torch.equal(one, other))

    def test_distributed_tensors_are_drawn_by_the_first_rank(self):
        cut = distribute_tensor(torch.zeros(8), self.mesh, [Shard(0)])
        torch.manual_seed(self.mesh.get_local_rank())
        drawn, after = torch.rand_like(cut).full_tensor(), torch.rand(2)
        expected = alone(0, lambda: torch.rand(8), lambda: torch.rand(2))
        self.assertTrue(torch.equal(drawn, expected[0]))
        for value in self.values(after):
            self.assertTrue(torch.equal(value, expected[1]))

    def test_sizes_per_rank_and_seeds_per_rank(self):
        torch.manual_seed(self.mesh.get_local_rank())
        drawn = torch.rand(self.mesh.get_local_rank() + 1)
        for rank, value in enumerate(self.values(drawn)):
            self.assertTrue(torch.equal(value, alone(rank, lambda: torch.rand(rank + 1))[0]))

    def test_each_rank_knows_its_seed(self):
        torch.manual_seed(self.mesh.get_local_rank() + 7)
        self.assertEqual(str(torch.initial_seed()), "7|8|9|10")
        torch.manual_seed(3)
        self.assertEqual(torch.initial_seed(), 3)

    def test_what_can_not_be_drawn_by_each_rank_is_an_error(self):
        torch.manual_seed(self.mesh.get_local_rank())
        with self.assertRaisesRegex(NotImplementedError, "requires a gradient"):
            F.dropout(torch.ones(4, requires_grad=True))
        attention = nn.MultiheadAttention(4, 1, dropout=0.5)
        with self.assertRaisesRegex(NotImplementedError, "different seeds"):
            attention(torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 4))

    def test_the_end_of_a_simulation_is_the_end_of_its_seeds(self):
        torch.manual_seed(self.mesh.get_local_rank())
        self.doCleanups()
        self.assertFalse(hasattr(torch.rand(2), "_ranks"))
        self.assertEqual(torch.get_rng_state().dim(), 1)


if __name__ == "__main__":
    unittest.main()
