"""Distributed tensors from Python, on real processes over gloo."""

import os
import pickle
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as torch_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import intarsia
from intarsia import DTensor, Partial, Replicate, Shard, distribute_tensor
from intarsia.debug import CommDebugMode
from intarsia.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from support import mlp, run_ranks, same


def pytorchs_meshes_and_groups_are_taken():
    size = dist.get_world_size()
    for mesh in (
        init_device_mesh("cpu", (size,)),
        DeviceMesh("cpu", list(range(size))),
        DeviceMesh.from_group(dist.group.WORLD, "cpu"),
        init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))["tp"],
    ):
        x = torch.arange(10.0).view(5, 2)
        cut = distribute_tensor(x, mesh, [Shard(0)])
        same(cut * 2, x * 2)
        assert cut.device_mesh == mesh
        assert len(cut.to_local()) == {4: [2, 2, 1, 0], 2: [3, 2]}[mesh.size()][mesh.get_local_rank()]


def every_rank_sees_its_own_shard():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rank = dist.get_rank()
    x = DTensor.from_local(torch.full((2,), float(10**rank)), mesh, [Partial()])
    same(x.full_tensor(), torch.full((2,), 1111.0))
    same(x.redistribute(placements=[Shard(0)]), torch.full((2,), 1111.0))
    assert repr(x).startswith(f"DTensor(local_tensor=tensor([{10**rank}")


def both_axes_of_a_grid_talk():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x, w = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.ones(4, 5)
    w_cut = distribute_tensor(w, mesh, [Replicate(), Shard(1)]).requires_grad_()
    (distribute_tensor(x, mesh, [Shard(0), Shard(1)]) @ w_cut).sum().backward()
    same(w_cut.grad, x.sum(0)[:, None].expand(4, 5))


def a_model_trains_as_on_one_device():
    plain, cut = mlp(), parallelize_module(
        mlp(), init_device_mesh("cpu", (dist.get_world_size(),)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    for model in (plain, cut):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((3, 10), float(step))).square().sum().backward()
            optimizer.step()
    for left, right in zip(cut.parameters(), plain.parameters()):
        same(left, right, rtol=1e-4, atol=1e-5)


def tensors_travel_between_the_two_worlds_without_a_copy():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ours = distribute_tensor(torch.arange(10.0), mesh, [Shard(0)])
    theirs = intarsia.to_torch(ours)
    assert type(theirs) is torch_tensor.DTensor and theirs.placements == (Shard(0),)
    theirs.to_local().add_(1)
    same(ours, torch.arange(10.0) + 1)
    back = intarsia.from_torch(theirs)
    back.to_local().add_(1)
    same(ours, torch.arange(10.0) + 2)
    assert isinstance(theirs, DTensor) and not isinstance(ours, torch_tensor.DTensor)
    same(pickle.loads(pickle.dumps(ours)), torch.arange(10.0) + 2)


def collectives_of_the_program_are_counted_too():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with CommDebugMode() as comms:
        DTensor.from_local(torch.ones(2), mesh, [Partial()]).full_tensor()
        dist.all_reduce(torch.ones(2))
    assert comms.get_total_counts() == 2, comms.get_comm_counts()


def the_interpreter_runs_on_while_a_collective_waits():
    import datetime
    import threading
    import time

    mesh, store = init_device_mesh("cpu", (dist.get_world_size(),)), dist.distributed_c10d._get_default_store()

    def clock():
        for _ in range(20):
            time.sleep(0.01)
        store.set(f"ticked {dist.get_rank()}", "1")

    thread = threading.Thread(target=clock)
    thread.start()
    if dist.get_rank() == 0:  # the others wait in the collective, and their clocks have to go on
        store.wait([f"ticked {rank}" for rank in range(1, dist.get_world_size())], datetime.timedelta(seconds=60))
    DTensor.from_local(torch.ones(2), mesh, [Partial()]).full_tensor()
    thread.join()


def save(folder):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("a", "b"))
    state = {
        "cut": distribute_tensor(torch.arange(35.0).view(7, 5), mesh, [Shard(0), Shard(1)]),
        "whole": distribute_tensor(torch.arange(3.0), mesh, [Replicate(), Replicate()]),
        "plain": torch.arange(4.0),
    }
    dcp.save({name: intarsia.to_torch(value) for name, value in state.items()}, checkpoint_id=folder)


def load(folder):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "cut": intarsia.zeros(7, 5, device_mesh=mesh, placements=[Shard(1)]),
        "whole": intarsia.zeros(3, device_mesh=mesh, placements=[Shard(0)]),
        "plain": torch.zeros(4),
    }
    dcp.load({name: intarsia.to_torch(value) for name, value in state.items()}, checkpoint_id=folder)
    same(state["cut"], torch.arange(35.0).view(7, 5))
    same(state["whole"], torch.arange(3.0))
    same(state["plain"], torch.arange(4.0))


def save_installed(folder):
    intarsia.install()
    save_with_the_dropin(folder)


def save_with_the_dropin(folder):
    import torch.distributed.checkpoint as checkpoint

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    checkpoint.save({"x": distribute_tensor(torch.arange(10.0), mesh, [Shard(0)]), "step": 3}, checkpoint_id=folder)
    state = {"x": intarsia.zeros(10, device_mesh=mesh, placements=[Replicate()]), "step": 0}
    checkpoint.load(state, checkpoint_id=folder)
    same(state["x"], torch.arange(10.0))
    assert state["step"] == 3


def threads():
    return sorted(open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task"))


def connections_end_with_their_process_group():
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    mesh = init_device_mesh("cpu", (size,))
    x = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    same(x, torch.full((2,), float(size)))
    assert any("gloo" in name for name in threads())
    dist.destroy_process_group()
    del mesh
    intarsia._mesh.close_ended_worlds()  # as at the end of the process, or when another group is made
    assert not any("gloo" in name for name in threads()), threads()
    raises_closed(x)
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    same(DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (size,)), [Partial()]), torch.full((2,), float(size)))


def raises_closed(x):
    try:
        x.full_tensor()
    except RuntimeError as error:
        assert "the world was closed" in str(error), error
    else:
        raise AssertionError("a tensor of a closed world was gathered")


class Processes(unittest.TestCase):
    def test_four_ranks(self):
        run_ranks(
            4,
            [
                pytorchs_meshes_and_groups_are_taken,
                every_rank_sees_its_own_shard,
                both_axes_of_a_grid_talk,
                a_model_trains_as_on_one_device,
                tensors_travel_between_the_two_worlds_without_a_copy,
                collectives_of_the_program_are_counted_too,
                the_interpreter_runs_on_while_a_collective_waits,
                connections_end_with_their_process_group,
            ],
        )

    def test_a_checkpoint_of_four_ranks_is_read_by_two(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(4, [save], folder)
            run_ranks(2, [load], folder)

    def test_checkpoints_take_distributed_tensors_under_the_dropin(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(2, [save_installed], folder)


if __name__ == "__main__":
    unittest.main()
