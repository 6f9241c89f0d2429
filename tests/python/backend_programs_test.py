"""Programs on Intarsia's backend of torch.distributed: subgroups, training, mistakes, ranks that end."""

import datetime
import os
import signal
import tempfile
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import intarsia
import intarsia.debug
from beside_gloo import Op, gloo, same
from support import mlp, run_ranks


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
        with unittest.mock.patch.dict(os.environ, INTARSIA_ENGINE="gloo"):
            run_ranks(2, FUNCTIONS, backend="cpu:intarsia")

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
