"""Collectives that a program calls itself in a simulation: every rank gets what it would get, or an error."""

import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from intarsia import Shard, distribute_tensor
from intarsia.debug import CommDebugMode
from four_ranks import Ranks


class Collectives(Ranks):
    """Each rank holds [r + 1, 10 * (r + 1)]."""

    def setUp(self):
        super().setUp()
        self.x = torch.tensor([1.0, 10.0]) * (self.rank + 1)
        self.tp, self.dp = self.grid.get_group("tp"), self.grid.get_group("dp")

    def test_reductions_in_the_world_along_axes_and_in_a_group(self):
        pair = dist.new_group([2, 3])
        table = [
            (None, dist.ReduceOp.SUM, [10, 10, 10, 10]),
            (None, dist.ReduceOp.AVG, [2.5] * 4),
            (None, dist.ReduceOp.MAX, [4] * 4),
            (None, dist.ReduceOp.PRODUCT, [24] * 4),
            (self.tp, dist.ReduceOp.SUM, [3, 3, 7, 7]),
            (self.dp, dist.ReduceOp.MIN, [1, 2, 1, 2]),
            (pair, dist.ReduceOp.SUM, [1, 2, 7, 7]),
        ]
        for group, op, expected in table:
            for async_op in (False, True):
                x = torch.ones(1) * (self.rank + 1)
                work = dist.all_reduce(x, op, group, async_op)
                if async_op:
                    work.wait()
                self.check(x, [[value] for value in expected])

    def test_a_plain_tensor_is_the_same_on_all_ranks(self):
        x = torch.ones(2)
        dist.all_reduce(x)
        self.check(x, [[4, 4]] * 4)
        dist.broadcast(x, 2)
        self.check(x, [[4, 4]] * 4)

    def test_what_each_rank_gets(self):
        def into(size, call):
            out = torch.zeros(size)
            call(out)
            return out

        one, four = torch.ones(1) * self.rank, torch.arange(4.0) + 10 * self.rank
        column = [[float(10 * s + r) for s in range(4)] for r in range(4)]
        table = [
            (into(4, lambda out: dist.all_gather_into_tensor(out, one)), [[0, 1, 2, 3]] * 4),
            (into(2, lambda out: dist.all_gather_into_tensor(out, one, self.tp)), [[0, 1], [0, 1], [2, 3], [2, 3]]),
            (into(1, lambda out: dist.reduce_scatter_tensor(out, four)), [[60 + 4 * r] for r in range(4)]),
            (into(1, lambda out: dist.reduce_scatter(out, list(four.split(1)))), [[60 + 4 * r] for r in range(4)]),
            (into(4, lambda out: dist.all_to_all_single(out, four)), column),
            (into(1, lambda out: dist.scatter(out, [torch.ones(1) * i for i in range(4)])), [[r] for r in range(4)]),
        ]
        for got, expected in table:
            self.check(got, expected)

    def test_roots_send_and_receive(self):
        x = self.x.clone()
        dist.broadcast(x, group_src=1, group=self.tp)
        self.check(x[0], [2, 2, 4, 4])
        dist.broadcast(x, dist.get_global_rank(self.dp, 0), self.dp)
        self.check(x[0], [2, 2, 2, 2])
        y = torch.ones(1) * (self.rank + 1)
        dist.reduce(y, 1)
        self.check(y, [[1], [10], [3], [4]])
        with self.assertRaisesRegex(ValueError, "Global rank 0 is not part of group .* that of rank 2 is"):
            dist.broadcast(x, 0, self.tp)

    def test_lists_have_any_root(self):
        for root in range(4):
            gathered, got = [torch.zeros(2) for _ in range(4)], torch.zeros(1)
            dist.gather(self.x, gathered, dst=root)
            self.check(gathered[3], [[4, 40] if rank == root else [0, 0] for rank in range(4)])
            dist.scatter(got, [torch.ones(1) * (10 * self.rank + place) for place in range(4)], src=root)
            self.check(got, [[10 * root + rank] for rank in range(4)])
        dist.scatter(got, [torch.ones(1) * self.rank, torch.ones(1) * -1], group=self.tp, group_src=1)
        self.check(got, [[1], [-1], [3], [-1]])
        told = [None]
        dist.scatter_object_list(told, [10, 20, 30, 40], src=2)
        self.check(torch.ones(1) * told[0], [[10], [20], [30], [40]])

    def test_subgroups_are_played_together(self):
        mine, all_of_them = dist.new_subgroups(2)
        x = self.x.clone()
        dist.all_reduce(x, group=mine)
        self.check(x[0], [3, 3, 7, 7])
        x = self.x.clone()
        dist.all_reduce(x, group=all_of_them[1])
        self.check(x[0], [1, 2, 7, 7])
        crossed, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
        x = torch.ones(1) * self.rank
        dist.broadcast(x, group=crossed, group_src=1)
        self.check(x, [[3], [2], [2], [3]])
        with self.assertRaisesRegex(ValueError, "appeared in both"):
            dist.new_subgroups_by_enumeration([[0, 1], [1, 2]])
        with self.assertRaisesRegex(NotImplementedError, "one size"):
            dist.new_subgroups_by_enumeration([[0], [1, 2]])
        with self.assertRaisesRegex(ValueError, "divisible"):
            dist.new_subgroups(3)

    def test_groups_are_split(self):
        table = [
            (None, [[0, 1], [2, 3]], [3, 3, 7, 7]),
            (None, [[3, 0], [2, 1]], [5, 5, 5, 5]),
            (None, [[1, 2]], [1, 5, 5, 4]),
            (self.tp, [[0], [1]], [1, 2, 3, 4]),
            (self.dp, [[0, 1]], [4, 6, 4, 6]),
        ]
        for parent, splits, expected in table:
            group, x = dist.split_group(parent, splits), self.x.clone()
            dist.all_reduce(x, group=group)
            self.check(x[0], expected)
        self.assertEqual(str(dist.get_rank(dist.split_group(split_ranks=[[1, 0], [3, 2]]))), "0|1|0|1")
        bad = {"empty": [], "cannot be empty": [[]], "duplicate": [[0, 0]], "appeared in both": [[0, 1], [1, 2]], "are 0 to 3": [[0, 4]]}
        for text, splits in bad.items():
            with self.assertRaisesRegex(ValueError, text):
                dist.split_group(split_ranks=splits)
        with self.assertRaisesRegex(ValueError, "Leave it out"):
            dist.split_group(split_ranks=[[0, 1]], backend="gloo")

    def test_a_group_keeps_the_order_that_it_is_given(self):
        group, got = dist.new_group([2, 0], sort_ranks=False), torch.zeros(2)
        self.assertEqual(str(dist.get_rank(group)), "1|-1|0|-1")
        dist.all_gather_into_tensor(got, self.x[:1], group)
        self.check(got, [[3, 1], [0, 0], [3, 1], [0, 0]])

    def test_lists_are_gathered(self):
        outs = [torch.zeros(2) for _ in range(4)]
        dist.all_gather(outs, self.x)
        for rank, out in enumerate(outs):
            self.check(out, [[rank + 1, 10 * (rank + 1)]] * 4)
        gathered = [torch.zeros(2) for _ in range(4)]
        dist.gather(self.x, gathered, 0)
        self.check(gathered[2], [[3, 30], [0, 0], [0, 0], [0, 0]])
        objects = [None] * 4
        dist.all_gather_object(objects, {"rank": self.rank})
        self.assertEqual(objects, [{"rank": rank} for rank in range(4)])

    def test_a_ring_of_messages(self):
        for batched in (False, True):
            got, right, left = torch.zeros(2), (self.rank + 1) % 4, (self.rank - 1) % 4
            if batched:
                ops = [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, self.x, right)]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
            else:
                dist.isend(self.x, right).wait()
                dist.recv(got, left)
            self.check(got[0], [4, 1, 2, 3])
        with self.assertRaisesRegex(RuntimeError, "rank 0 waits for rank 3, which has sent it nothing. .*lockstep"):
            dist.recv(got, left)

    def test_functional_collectives_and_their_gradients(self):
        w = torch.ones(4, requires_grad=True)
        y = functional.all_reduce(w * (self.rank + 1), "sum", (self.grid, 1))
        (y * (self.rank + 1)).sum().backward()
        self.check(y.detach(), [[3] * 4, [3] * 4, [7] * 4, [7] * 4])
        self.check(w.grad, [[3] * 4, [6] * 4, [21] * 4, [28] * 4])
        self.check(functional.all_gather_tensor(self.x[:1], 0, self.mesh), [[1, 2, 3, 4]] * 4)
        self.check(functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, self.mesh), [[0], [4], [8], [12]])
        self.check(functional.all_to_all_single(self.x, None, None, self.tp)[0], [1, 10, 3, 30])

    def test_code_of_pytorch_that_asks_for_its_rank_does_not_get_one_for_all(self):
        from torch.distributed.nn import functional as collectives

        y = collectives.broadcast(self.x.clone().requires_grad_(), 1)
        with self.assertRaisesRegex(ValueError, "simulated ranks hold different values"):
            y.sum().backward()

    def test_wrappers_that_average_between_processes_are_an_error_that_names_those_that_are_simulated(self):
        model = torch.nn.Linear(2, 1)
        with self.assertRaisesRegex(NotImplementedError, r"DistributedDataParallel\] is not simulated.*Use replicate\(model\)"):
            torch.nn.parallel.DistributedDataParallel(model)

    def test_coalesced_calls_and_barriers(self):
        a, b = self.x.clone(), torch.ones(1)
        with dist._coalescing_manager(device=torch.device("cpu")):
            dist.all_reduce(a)
            dist.all_reduce(b)
        dist.barrier()
        self.check(a, [[10, 100]] * 4)
        self.check(b, [[4]] * 4)

    def test_they_are_counted(self):
        with CommDebugMode() as comms:
            dist.all_reduce(self.x)
            dist.all_reduce_coalesced([self.x, self.x])
            distribute_tensor(torch.ones(4), self.mesh, [Shard(0)]).full_tensor()
        c10d = torch.ops.c10d
        counts = comms.get_comm_counts()
        self.assertEqual((counts[c10d.allreduce_], counts[c10d.allreduce_coalesced_], comms.get_total_counts()), (1, 1, 4))

    def test_what_does_not_fit_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "do not fit"):
            dist.all_gather_into_tensor(torch.zeros(3), torch.ones(1))
        with self.assertRaisesRegex(ValueError, "one shape and dtype"):
            dist.all_reduce(torch.ones(self.rank + 1))


if __name__ == "__main__":
    unittest.main()
