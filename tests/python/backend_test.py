"""Every collective of torch.distributed on Intarsia's engines, beside gloo's and beside the plain op, on real processes."""

import datetime
import os
import threading
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist

import intarsia  # noqa: F401
from beside_gloo import FLOATS, OPS, OURS, SHAPES, WHOLE, Op, gloo, reduced, same, value, values
from support import run_ranks


def cases():
    for dtype in (*FLOATS, *WHOLE, *OURS):
        for shape in SHAPES:
            yield dtype, shape


def reductions():
    for dtype, shape in cases():
        for op in (*OPS, Op.AVG):
            bits, order = op in (Op.BAND, Op.BOR, Op.BXOR), op in (Op.MIN, Op.MAX)
            inexact = dtype.is_floating_point or dtype.is_complex
            if (bits and inexact) or (order and dtype.is_complex) or (op == Op.AVG and not inexact):
                continue
            if dtype.is_complex and op != Op.SUM and op != Op.AVG:
                continue  # PyTorch itself refuses
            yield dtype, shape, op


def reductions_are_those_of_the_plain_op_and_of_gloo():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, shape, op in reductions():
        whole = reduced(op, values(shape, dtype))
        mine = value(rank, shape, dtype)
        dist.all_reduce(mine, op)
        same(mine, whole)
        mine = value(rank, shape, dtype)
        dist.reduce(mine, size - 1, op)
        same(mine, whole if rank == size - 1 else value(rank, shape, dtype))
        if op != Op.AVG and dtype not in OURS:
            theirs = value(rank, shape, dtype)
            dist.all_reduce(theirs, op, group=gloo())
            same(theirs, whole)


def reduce_scatters_are_those_of_the_plain_op():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, shape, op in reductions():
        parts = [value(rank, shape, dtype, seed) for seed in range(size)]
        whole = reduced(op, values(shape, dtype, seed=rank))
        for into, start in (
            (torch.empty(shape, dtype=dtype), lambda into: dist.reduce_scatter(into, parts, op)),
            (torch.empty(shape, dtype=dtype), lambda into: dist.reduce_scatter_tensor(into, torch.stack(parts), op)),
        ):
            start(into)
            same(into, whole)


def moves_are_those_of_the_plain_op_and_of_gloo():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, shape in cases():
        mine, all_of_them = value(rank, shape, dtype), values(shape, dtype)
        for group in (None, gloo()) if dtype not in OURS else (None,):
            got = mine.clone()
            dist.broadcast(got, 1, group)
            same(got, all_of_them[1])
            got = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(got, mine, group)
            same(got, all_of_them)
            if shape:  # gloo takes the parts of a whole with their own number of dims alone
                got = torch.empty((size * shape[0], *shape[1:]), dtype=dtype)
                dist.all_gather_into_tensor(got, mine, group)
                same(got, torch.cat(all_of_them))
            if group is None:
                got = torch.empty((size, *shape), dtype=dtype)
                dist.all_gather_into_tensor(got, mine)
                same(got, torch.stack(all_of_them))
            got = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
            dist.gather(mine, got, 1, group)
            same(got, all_of_them if rank == 1 else None)
            got = torch.empty_like(mine)
            dist.scatter(got, all_of_them if rank == 1 else None, 1, group)
            same(got, mine)


def exchanges_are_even_and_uneven():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (*FLOATS, *WHOLE, *OURS):
        # Rank r sends r + j rows to rank j.
        part = lambda r, j: torch.full((r + j, 3), r * size + j, dtype=torch.int64).to(dtype)
        sends, receives = [part(rank, j) for j in range(size)], [part(j, rank) for j in range(size)]
        for group in (None, gloo()) if dtype not in OURS else (None,):
            got = torch.empty((sum(map(len, receives)), 3), dtype=dtype)
            dist.all_to_all_single(got, torch.cat(sends), list(map(len, receives)), list(map(len, sends)), group)
            same(got, torch.cat(receives))
            even = torch.arange(size * 6).view(size * 2, 3).to(dtype)
            got = torch.empty_like(even)
            dist.all_to_all_single(got, even, group=group)
            same(got, even[2 * rank : 2 * rank + 2].repeat(size, 1))
        got = [torch.empty_like(one) for one in receives]
        dist.all_to_all(got, sends)
        same(got, receives)


def uneven_lists_are_gathered_and_scattered():
    rank, size = dist.get_rank(), dist.get_world_size()
    all_of_them = [torch.arange(3.0 * r).view(r, 3) for r in range(size)]
    got = [torch.empty_like(one) for one in all_of_them]
    dist.all_gather(got, all_of_them[rank])
    same(got, all_of_them)
    got = [torch.empty_like(one) for one in all_of_them] if rank == 0 else []
    dist.gather(all_of_them[rank], got or None, 0)
    same(got, all_of_them if rank == 0 else [])
    got = torch.empty_like(all_of_them[rank])
    dist.reduce_scatter(got, all_of_them)
    same(got, all_of_them[rank] * size)


def tensors_need_not_be_contiguous():
    rank, size = dist.get_rank(), dist.get_world_size()
    base = torch.zeros(4, 6)
    for view in (base.t(), base[:, ::2], base[1:3].t(), base[:, 1:2].expand(4, 3).contiguous().t()):
        view.fill_(rank + 1)
        dist.all_reduce(view)
        same(view, torch.full_like(view, size * (size + 1) / 2))
        dist.broadcast(view.fill_(rank), 1)
        same(view, torch.ones_like(view))
        got = torch.empty(size * 2, *view.shape)[::2]
        dist.all_gather(list(got), view.fill_(rank))
        same(got, torch.arange(size).view(-1, 1, 1).expand_as(got).float())
    assert not base[:, 1::2].ne(1).logical_and(base[:, 1::2].ne(0)).logical_and(base[:, 1::2].ne(rank)).any()


def several_at_once_are_one_work():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    tensors = [torch.full((n,), rank + 1.0) for n in (3, 0, 5)]
    dist.all_reduce_coalesced(tensors)
    same(tensors, [torch.full((n,), total) for n in (3, 0, 5)])
    inputs, outputs = [torch.full((n,), float(rank)) for n in (2, 4)], [torch.empty(size, n) for n in (2, 4)]
    with dist._coalescing_manager(async_ops=True) as work:
        for mine, all_of_them in zip(inputs, outputs):
            dist.all_gather_into_tensor(all_of_them, mine)
    work.wait()
    for out in outputs:
        same(out, torch.arange(float(size)).view(-1, 1).expand_as(out))
    outputs = [torch.empty(size, n) for n in (2, 4)]
    dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
    same(outputs[1], torch.arange(float(size)).view(-1, 1).expand(size, 4))
    parts = [torch.empty(n) for n in (2, 4)]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(parts, outputs).wait()
    same(parts, [torch.full((n,), rank * float(size)) for n in (2, 4)])


def works_end_in_any_order_and_once():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    for length in (1, 5000, 700_000):
        tensors = [torch.full((length,), (rank + 1.0) * (i + 1)) for i in range(6)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i in (5, 0, 3):
            assert works[i].wait() and works[i].wait(datetime.timedelta(seconds=20)) and works[i].is_completed()
            same(tensors[i], torch.full((length,), total * (i + 1)))
        works[1].get_future().wait()
        assert works[1].is_success() and works[1].result()[0].data_ptr() == tensors[1].data_ptr()
        doubled = works[2].get_future().then(lambda future: future.value()[0] * 2).wait()
        same(doubled, torch.full((length,), total * 6))
        while not works[4].is_completed():
            time.sleep(0.001)
        same(tensors[4], torch.full((length,), total * 5))


def works_that_are_dropped_end_before_a_barrier():
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in (3, 500_000):
        tensors = [torch.full((length,), float(rank)) for _ in range(10)]
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        for tensor in tensors:
            same(tensor, torch.full((length,), size * (size - 1) / 2))


def threads_have_groups_of_their_own():
    rank, size = dist.get_rank(), dist.get_world_size()
    groups, errors = [dist.new_group() for _ in range(3)], []

    def work(number):
        try:
            for i in range(50):
                mine = torch.full((1 + 4000 * (i % 3),), float(number * rank))
                dist.all_reduce(mine, group=groups[number])
                same(mine, torch.full_like(mine, number * size * (size - 1) / 2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def messages_go_from_rank_to_rank():
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        mine, got = value(rank, (2, 3), dtype), torch.empty(3, 2, dtype=dtype).t()
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)])
        for work in works:
            work.wait()
        same(got, value(left, (2, 3), dtype))
    # Tags tell messages apart, and collectives do not come between.
    if rank == 0:
        later = [dist.isend(torch.full((2,), float(tag)), 1, tag=tag) for tag in (1, 2)]
        dist.all_reduce(torch.ones(3))
        for work in later:
            work.wait()
    else:
        dist.all_reduce(torch.ones(3))
    if rank == 1:
        got = torch.empty(2)
        assert dist.recv(got, 0, tag=2) == 0 and got.tolist() == [2, 2]
        assert dist.recv(got, tag=1) == 0 and got.tolist() == [1, 1]  # from whoever sends
    dist.barrier()


def objects_travel():
    rank, size = dist.get_rank(), dist.get_world_size()
    got = [None] * size
    dist.all_gather_object(got, {"rank": rank, "text": "x" * rank})
    assert got == [{"rank": r, "text": "x" * r} for r in range(size)]
    texts = ["a", {"b": 1}] if rank == 1 else [None, None]
    dist.broadcast_object_list(texts, 1)
    assert texts == ["a", {"b": 1}]
    got = [None] * size if rank == 0 else None
    dist.gather_object(rank, got, 0)
    assert rank != 0 or got == list(range(size))
    one = [None]
    dist.scatter_object_list(one, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert one == [f"for {rank}"]


FUNCTIONS = [
    reductions_are_those_of_the_plain_op_and_of_gloo,
    reduce_scatters_are_those_of_the_plain_op,
    moves_are_those_of_the_plain_op_and_of_gloo,
    exchanges_are_even_and_uneven,
    uneven_lists_are_gathered_and_scattered,
    tensors_need_not_be_contiguous,
    several_at_once_are_one_work,
    works_end_in_any_order_and_once,
    works_that_are_dropped_end_before_a_barrier,
    threads_have_groups_of_their_own,
    messages_go_from_rank_to_rank,
    objects_travel,
]


class Backend(unittest.TestCase):
    def test_two_processes(self):
        run_ranks(2, FUNCTIONS, backend="intarsia")

    def test_four_processes(self):
        run_ranks(4, FUNCTIONS, backend="intarsia")

    def test_two_processes_over_gloo(self):
        with unittest.mock.patch.dict(os.environ, INTARSIA_ENGINE="gloo"):
            run_ranks(2, FUNCTIONS, backend="cpu:intarsia")


if __name__ == "__main__":
    unittest.main()
