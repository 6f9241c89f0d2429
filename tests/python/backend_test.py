"""torch.distributed on Intarsia's engines: every collective beside gloo's and beside the plain op, on real processes."""

import datetime
import os
import signal
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import intarsia
from support import mlp, run_ranks

Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int32, torch.int64)
OURS = (torch.bool, torch.int16, torch.complex64)  # gloo knows no reduction for these
SHAPES = ((3, 5), (1,), (), (0, 2), (300, 41))
OPS = {
    Op.SUM: lambda a, b: a | b if a.dtype == torch.bool else a + b,
    Op.PRODUCT: lambda a, b: a & b if a.dtype == torch.bool else a * b,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
    Op.BAND: torch.bitwise_and,
    Op.BOR: torch.bitwise_or,
    Op.BXOR: torch.bitwise_xor,
}
_gloo = []


def gloo():
    """A group of all ranks over gloo, for comparison."""
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def value(rank, shape, dtype, seed=0):
    """What a rank brings: small whole numbers, so that every order of adding gives the same."""
    numbers = torch.randint(1, 4, shape, generator=torch.Generator().manual_seed(100 * seed + rank))
    return (numbers > 1) if dtype == torch.bool else numbers.to(dtype)


def values(shape, dtype, seed=0):
    return [value(rank, shape, dtype, seed) for rank in range(dist.get_world_size())]


def reduced(op, tensors):
    if op == Op.AVG:
        return sum(tensors[1:], tensors[0]) / len(tensors)
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = OPS[op](result, tensor)
    return result


def same(left, right, **tolerance):
    torch.testing.assert_close(left, right, **(tolerance or {"rtol": 0, "atol": 0}))


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


def subgroups_have_ranks_of_their_own():
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([size - 1, 0])
    if pair is not dist.GroupMember.NON_GROUP_MEMBER and dist.get_rank(pair) >= 0:
        mine = torch.tensor([10.0**rank])
        dist.all_reduce(mine, group=pair)
        assert mine.item() == 1 + 10.0 ** (size - 1)
        dist.broadcast(mine.fill_(rank), size - 1, pair)
        assert mine.item() == size - 1
        dist.destroy_process_group(pair)
    alone = dist.new_group([rank], use_local_synchronization=True)
    mine = torch.tensor([3.0])
    dist.all_reduce(mine, Op.AVG, group=alone)
    dist.barrier(alone)
    assert mine.item() == 3
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))


def trained(model, group, data, optimizer_of=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)):
    optimizer = optimizer_of(model.parameters())
    for x in data:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def data_parallel_training_equals_gloos():
    generator = torch.Generator().manual_seed(dist.get_rank())
    data = [torch.randn(6, 10, generator=generator) for _ in range(5)]
    ours = trained(DistributedDataParallel(mlp()), None, data)
    theirs = trained(DistributedDataParallel(mlp(), process_group=gloo()), gloo(), data)
    for left, right in zip(ours, theirs):
        same(left, right, rtol=1e-5, atol=1e-6)
    frequent = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)))
    frequent(torch.tensor([dist.get_rank(), 3])).sum().backward()
    assert frequent.module[0].weight.grad.is_sparse
    assert frequent.module[0].weight.grad.to_dense()[3].abs().sum() > 0


def fully_sharded_training_equals_gloos():
    generator = torch.Generator().manual_seed(dist.get_rank())
    data = [torch.randn(6, 10, generator=generator) for _ in range(5)]
    results = []
    for mesh in (init_device_mesh("cpu", (dist.get_world_size(),)), DeviceMesh.from_group(gloo(), "cpu")):
        model = mlp()
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        results.append(trained(model, None, data, lambda p: torch.optim.AdamW(p, lr=0.05)))
    for left, right in zip(*results):
        same(left, right, rtol=1e-5, atol=1e-6)


def pytorchs_and_our_distributed_tensors_use_it():
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    x = torch.arange(10.0).view(5, 2)
    for library in (torch.distributed.tensor, intarsia):
        cut = library.distribute_tensor(x, mesh, [Shard(0)])
        same(cut.redistribute(mesh, [Shard(1)]).full_tensor(), x)
        pending = library.DTensor.from_local(torch.full((3,), rank + 1.0), mesh, [Partial()])
        same(pending.redistribute(mesh, [Replicate()]).to_local(), torch.full((3,), size * (size + 1) / 2))
    with intarsia.debug.CommDebugMode() as comms:
        intarsia.distribute_tensor(x, mesh, [Shard(0)]).full_tensor()
    assert {event.engine for event in comms.events()} == {os.environ.get("INTARSIA_ENGINE", "shm")}


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


MISMATCHES = {
    "length": (lambda g: dist.all_reduce(torch.ones(4), group=g), lambda g: dist.all_reduce(torch.ones(8), group=g)),
    "dtype": (lambda g: dist.all_reduce(torch.ones(4), group=g), lambda g: dist.all_reduce(torch.ones(4).double(), group=g)),
    "op": (lambda g: dist.all_reduce(torch.ones(4), group=g), lambda g: dist.all_reduce(torch.ones(4), Op.MAX, group=g)),
    "kind": (lambda g: dist.all_reduce(torch.ones(4), group=g), lambda g: dist.broadcast(torch.ones(4), 0, group=g)),
    "root": (lambda g: dist.reduce(torch.ones(4), 0, group=g), lambda g: dist.reduce(torch.ones(4), 1, group=g)),
    "async": (
        lambda g: dist.all_reduce(torch.ones(4), group=g, async_op=True).get_future().wait(),
        lambda g: dist.all_gather_into_tensor(torch.ones(4 * dist.get_world_size()), torch.ones(4), group=g),
    ),
}
BOTH_SIDES = {
    "length": ("all_reduce(sum) of 4 floats", "all_reduce(sum) of 8 floats"),
    "dtype": ("all_reduce(sum) of 4 floats", "all_reduce(sum) of 4 doubles"),
    "op": ("all_reduce(sum) of 4 floats", "all_reduce(max) of 4 floats"),
    "kind": ("all_reduce(sum) of 4 floats", "broadcast of 4 floats"),
    "root": ("for reduce at rank 0", "for reduce at rank 1"),
    "async": ("all_reduce(sum) of 4 floats", "all_gather of 4 floats"),
}


def ranks_that_differ_are_both_named():
    rank = dist.get_rank()
    for name, calls in MISMATCHES.items():
        group = dist.new_group()
        text = error_of(lambda: (calls[rank == 1](group), dist.barrier(group)))
        if rank < 2:  # the others may have sent all that is asked of them, and hear of it in the barrier
            mine, theirs = BOTH_SIDES[name] if rank == 0 else reversed(BOTH_SIDES[name])
            assert f"rank {rank} is in" in text and mine in text and theirs in text, (name, text)
        assert "has failed before" in error_of(lambda: dist.barrier(group)), name
    dist.barrier()


def bad_arguments_are_errors_before_anything_moves():
    size = dist.get_world_size()
    one = torch.ones(2)
    for call, text in (
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), Op.AVG), "ValueError: [all_reduce] the average of Int"),
        (lambda: dist.all_reduce(one, Op.BAND), "TypeError: [all_reduce] band is for integers"),
        (lambda: dist.all_gather([one] * (size + 1), one), f"ValueError: [all_gather] the list has {size + 1} tensors"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), one), "ValueError: [all_gather_into_tensor] the whole has 3"),
        (lambda: dist.reduce_scatter_tensor(one, torch.ones(3)), "ValueError: [reduce_scatter_tensor] the whole has 3"),
        (lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [5] * size), "ValueError: [all_to_all_single]"),
    ):
        assert error_of(call).startswith(text), error_of(call)
    dist.all_reduce(one)  # nothing is out of step
    assert one.tolist() == [size, size]


def a_wait_ends_when_its_time_is_over():
    group = dist.new_group()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        assert not work.is_completed()
        text = error_of(lambda: work.wait(datetime.timedelta(milliseconds=300)))
        assert "[all_reduce] on rank 0" in text and "has not finished within 0.3 s" in text, text
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()


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
    subgroups_have_ranks_of_their_own,
    data_parallel_training_equals_gloos,
    fully_sharded_training_equals_gloos,
    pytorchs_and_our_distributed_tensors_use_it,
    bad_arguments_are_errors_before_anything_moves,
    a_wait_ends_when_its_time_is_over,
    ranks_that_differ_are_both_named,
]


def joins_twice(rank, folder):
    """Also with the keys of the first time still in the store."""
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    for backend in ("intarsia", "cpu:intarsia"):
        dist.init_process_group(backend, store=store, rank=rank, world_size=2)
        mine = torch.full((3,), rank + 1.0)
        dist.all_reduce(mine)
        same(mine, torch.full((3,), 3.0))
        DistributedDataParallel(mlp())(torch.ones(2, 10)).sum().backward()
        dist.barrier()
        dist.destroy_process_group()
        if backend == "intarsia":  # PyTorch's own keys of the first time say that all have come: meet by other means
            open(os.path.join(folder, f"done{rank}"), "w").close()
            while not os.path.exists(os.path.join(folder, f"done{1 - rank}")):
                time.sleep(0.01)


def is_killed(rank, folder, asynchronous):
    store = dist.FileStore(os.path.join(folder, "store"), 3)
    dist.init_process_group("intarsia", store=store, rank=rank, world_size=3)
    for step in range(1000):
        if rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            work = dist.all_reduce(torch.ones(100_000), async_op=asynchronous)
            if asynchronous:
                work.get_future().wait()
        except Exception as error:
            with open(os.path.join(folder, f"error{rank}"), "w") as file:
                file.write(str(error))
            return


class Backend(unittest.TestCase):
    def test_two_processes(self):
        run_ranks(2, FUNCTIONS, backend="intarsia")

    def test_four_processes(self):
        run_ranks(4, FUNCTIONS, backend="intarsia")

    def test_two_processes_over_gloo(self):
        os.environ["INTARSIA_ENGINE"] = "gloo"
        try:
            run_ranks(2, FUNCTIONS, backend="cpu:intarsia")
        finally:
            del os.environ["INTARSIA_ENGINE"]

    def test_a_process_joins_again(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(joins_twice, (folder,), 2, start_method="spawn")

    def test_a_rank_that_is_killed_is_named(self):
        for asynchronous in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                started = mp.start_processes(is_killed, (folder, asynchronous), 3, join=False, start_method="spawn")
                for process in started.processes:
                    process.join(60)
                for rank in (0, 2):
                    with open(os.path.join(folder, f"error{rank}")) as file:
                        self.assertIn("rank 1 is gone", file.read())


if __name__ == "__main__":
    unittest.main()
