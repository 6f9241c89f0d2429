"""What a simulation answers to programs that ask for their rank: one value per rank, or an error."""

import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import intarsia
from intarsia import DTensor, Partial, Shard, distribute_tensor, simulate
from intarsia.experimental import rank_map
from four_ranks import Ranks


class Numbers(Ranks):
    def test_every_way_to_ask_for_the_rank_answers_per_rank(self):
        answers = {
            "0|1|2|3": [dist.get_rank(), self.mesh.get_rank(), self.mesh.get_local_rank(), *self.mesh.get_coordinate()],
            "0|0|1|1": [self.grid.get_local_rank("dp"), self.grid.get_coordinate()[0], self.grid["dp"].get_local_rank()],
            "0|1|0|1": [self.grid.get_local_rank(1), self.grid.get_group("tp").rank(), dist.get_rank(self.grid.get_group("tp"))],
            "0|0|2|2": [dist.get_global_rank(self.grid.get_group("tp"), 0), dist.get_process_group_ranks(self.grid.get_group(1))[0]],
        }
        for text, numbers in answers.items():
            self.assertEqual([str(number) for number in numbers], [text] * len(numbers))

    def test_arithmetic_is_that_of_python_ints_on_every_rank(self):
        rank = self.rank
        for f in (
            lambda r: (r - 1) % 4,
            lambda r: (r - 3) // 2,
            lambda r: -r * 3 + 1,
            lambda r: r**2,
            lambda r: (r + 1) / 2,
            lambda r: (r / 2) % 0.75,
            lambda r: 7 - r,
            lambda r: 7 % (r + 1),
            lambda r: r & 1,
            lambda r: 6 & r | 8,
            lambda r: 1 ^ r,
            lambda r: (1 << r) >> 1,
            lambda r: ~r,
            lambda r: abs(r - 2),
            lambda r: +r + divmod(r, 2)[1] + divmod(7, r + 1)[0],
        ):
            self.assertEqual(intarsia._core.numbers_of(f(rank)), [f(r) for r in range(4)])

    def test_a_pending_sum_of_the_ranks_is_ten(self):
        total = DTensor.from_local(torch.ones(2) * (self.mesh.get_local_rank() + 1), self.mesh, [Partial()])
        self.assertEqual(total.full_tensor().tolist(), [10, 10])

    def test_numbers_enter_ops_as_they_would_on_each_rank(self):
        x, w = torch.arange(4), torch.arange(6.0).view(2, 3)
        for f in (
            lambda r: x * r,
            lambda r: r - x,
            lambda r: x.to(torch.float16) / (r + 1),
            lambda r: torch.add(x, x, alpha=r),
            lambda r: x.clamp(max=r),
            lambda r: torch.where(x == r, 1.0, 0.0),
            lambda r: torch.full((2,), r),
            lambda r: torch.tensor([r, 1.5]),
            lambda r: torch.ones(r + 1, 2),
            lambda r: torch.arange(r, 2 * r + 1),
            lambda r: torch.zeros(2).fill_(r),
            lambda r: x * (r / 2),
            lambda r: x * (r == 1),
            lambda r: x.clone()[r],
            lambda r: x.clone()[r : r + 2],
            lambda r: w.clone()[1, r % 3],
            lambda r: w.clone()[:, r % 3],
            lambda r: x.roll(r),
            lambda r: nn.functional.pad(x, (r, 3 - r)),
            lambda r: x.new_full((r,), 2),
            lambda r: x.clone().narrow(0, r, 1),
            lambda r: x.new_tensor([r, 7]),
            lambda r: w.clone()[..., r % 3],
            lambda r: w.clone()[None, r % 2],
            lambda r: w.clone()[[1, 0, 1], r % 3],
            lambda r: w.clone()[torch.tensor([True, False]), r % 3],
            lambda r: w.view(1, 2, 3).clone()[:, [0, 1], r % 3],
        ):
            made, expected = f(self.rank), [f(r) for r in range(4)]
            self.check(made, expected)
            self.assertEqual(made.dtype, expected[0].dtype)

    def test_numbers_that_are_equal_on_all_ranks_are_plain_numbers(self):
        x = torch.arange(3.0)
        for f in (lambda r: x * (r * 0 + 3), lambda r: x + r // 4, lambda r: (r - r + 2) - x,
                  lambda r: x * (r * 0 + 0.5), lambda r: torch.zeros(r // 4 + 2)):
            self.check(f(self.rank), [f(r) for r in range(4)])

    def test_sizes_that_differ_enter_ops_and_factories(self):
        local = distribute_tensor(torch.arange(7.0), self.mesh, [Shard(0)]).to_local()
        self.check(torch.ones(local.size()), [torch.ones(2)] * 3 + [torch.ones(1)])
        self.check(local.sum() / local.size(0), [0.5, 2.5, 4.5, 6.0])

    def test_writing_to_ones_own_place_keeps_the_other_ranks_apart(self):
        ways = (
            lambda x, r: x.__setitem__(r, r + 1),
            lambda x, r: x[r : r + 1].fill_(r + 1),
            lambda x, r: x[r : r + 1].copy_(torch.ones(1) * (r + 1)),
            lambda x, r: x.__setitem__((..., r), r + 1),
            lambda x, r: x.view(1, 4).__setitem__(([0], r), torch.ones(1) * (r + 1)),
        )
        for write in ways:
            x = torch.zeros(4)
            write(x, self.rank)
            self.check(x, torch.diag(torch.tensor([1.0, 2, 3, 4])))

    def test_a_question_with_one_answer_is_an_error_where_the_ranks_differ(self):
        rank = self.rank
        for ask in (int, bool, range, lambda r: [1, 2, 3, 4][r], lambda r: 1 if r == 0 else 2):
            with self.assertRaisesRegex(ValueError, "simulated ranks hold different values, .* where one is asked for. Compute"):
                ask(rank)
        for ask in (hash, lambda r: {r: 1}, lambda r: r in {0, 1}, lambda r: f"{r:02d}"):
            with self.assertRaisesRegex(TypeError, r"hold different values, 0\|1\|2\|3, .* is one for all of them. Make a tensor"):
                ask(rank)
        self.assertTrue(rank < 4)
        self.assertEqual(rank * 0, 0)

    def test_a_number_that_differs_does_not_enter_a_distributed_tensor(self):
        x = distribute_tensor(torch.ones(4), self.mesh, [Shard(0)])
        with self.assertRaisesRegex(ValueError, "differs between simulated ranks meets a distributed tensor"):
            x * self.rank
        with self.assertRaisesRegex(ValueError, "differs between the simulated ranks, 0 and 1, meets a distributed tensor"):
            x * (torch.ones(()) * self.rank)
        self.assertEqual((x * (torch.ones(()) * self.rank * 0 + 3)).full_tensor().tolist(), [3.0] * 4)

    def test_gradients_flow_through_numbers(self):
        w = torch.ones(4, requires_grad=True)
        (w[self.rank : self.rank + 2] * (self.rank + 1)).sum().backward()
        self.check(w.grad, [[1, 1, 0, 0], [0, 2, 2, 0], [0, 0, 3, 3], [0, 0, 0, 4]])

    def test_running_statistics_are_those_of_each_rank(self):
        def statistics(make, shape, scale):
            torch.manual_seed(0)
            norm = make(3, track_running_stats=True)
            for _ in range(2):
                norm(torch.randn(shape) * scale)
            return torch.stack([norm.running_mean, norm.running_var])

        for make, shape in ((nn.BatchNorm1d, (4, 3)), (nn.InstanceNorm1d, (2, 3, 5)), (nn.BatchNorm2d, (2, 3, 2, 2))):
            self.check(statistics(make, shape, self.rank + 1), [statistics(make, shape, r + 1) for r in range(4)])
            same = statistics(make, shape, torch.ones(1) + 0 * torch.ones(1) * self.rank)
            self.check(same, [statistics(make, shape, 1)] * 4)

    def test_ranks_with_one_seed_draw_alike(self):
        x = torch.ones(6)
        for draw in (
            lambda r: F.dropout(x * (r + 1), 0.5),
            lambda r: torch.rand_like(x * r),
            lambda r: (x * r).normal_(),
            lambda r: torch.bernoulli(x * (0.2 * (r + 1))),
            lambda r: F.dropout((x * (r + 1)).requires_grad_(), 0.5).detach(),
            lambda r: torch.multinomial(x + r, 2).float(),
            lambda r: torch.rand(r + 1).sum(),
            lambda r: torch.rand_like(torch.ones(r + 1)).sum(),
            lambda r: torch.randint(0, r + 2, (4,)).float(),
        ):
            made, expected = self.drawn(draw, self.rank), [self.drawn(draw, r) for r in range(4)]
            for got, wanted in zip(made, zip(*expected)):
                self.check(got, wanted)

    def drawn(self, draw, rank):
        torch.manual_seed(0)
        return draw(rank), torch.rand(2), torch.rand(1)

    def test_draws_of_different_amounts_are_an_error_where_a_gradient_flows(self):
        with self.assertRaisesRegex(NotImplementedError, "requires a gradient"):
            F.dropout(torch.ones(self.rank + 1).requires_grad_(), 0.5)

    def test_rank_map_makes_a_tensor_per_rank(self):
        self.check(rank_map(lambda rank: torch.full((2,), rank)), [[r, r] for r in range(4)])

    def test_optimizers_step_plain_parameters_by_the_gradients_of_each_rank(self):
        def trained(scale):
            torch.manual_seed(0)
            model = nn.Linear(2, 1)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 2) * scale).square().sum().backward()
                optimizer.step()
            return model.weight

        self.check(trained(self.rank + 1), [trained(r + 1) for r in range(4)])


class Outside(unittest.TestCase):
    def test_a_fake_group_without_a_simulation_is_pytorchs_own(self):
        store = intarsia._simulated_group._fake_pg.FakeStore()
        dist.init_process_group("fake", rank=1, world_size=4, store=store)
        self.addCleanup(dist.destroy_process_group)
        x = torch.ones(2)
        dist.all_reduce(x)
        self.assertEqual((dist.get_rank(), x.tolist(), dist.new_group([1, 3]).rank()), (1, [1, 1], 0))

    def test_a_group_that_others_made_can_not_be_simulated(self):
        group = intarsia._simulated_group
        theirs = dist.Backend._plugins["FAKE"]
        dist.Backend._plugins["FAKE"] = theirs._replace(creator_fn=group._fake_pg._create_fake_pg)
        self.addCleanup(dist.Backend._plugins.__setitem__, "FAKE", theirs)
        dist.init_process_group("fake", rank=0, world_size=4, store=group._fake_pg.FakeStore())
        self.addCleanup(dist.destroy_process_group)
        with self.assertRaisesRegex(RuntimeError, "made before `import intarsia`"):
            simulate(4).__enter__()


if __name__ == "__main__":
    unittest.main()
