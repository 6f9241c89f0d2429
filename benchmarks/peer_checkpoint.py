"""Saving and loading by torch.distributed.checkpoint on gloo ranks, microseconds, best of several: lines `name value`.

Arguments: the folder, how many ranks, MB per rank. The model is one tensor, cut along its first dim."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp


def best(call, rounds=3):
    times = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        call()
        dist.barrier()
        times.append((time.perf_counter() - start) * 1e6)
    return min(times)


def run(rank, folder, world, megabytes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), world), rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    x = DTensor.from_local(torch.ones(megabytes * 64, 4096), mesh, [Shard(0)], run_check=False)
    path = os.path.join(folder, "dcp")
    saved = best(lambda: dcp.save({"x": x}, checkpoint_id=path))
    loaded = best(lambda: dcp.load({"x": x}, checkpoint_id=path))
    if rank == 0:
        print("save", saved)
        print("load", loaded)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, world, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    mp.spawn(run, (folder, world, megabytes), world)
