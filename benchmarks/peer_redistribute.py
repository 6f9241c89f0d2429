"""torch.distributed.tensor's redistribute of 512x512 on two gloo ranks, microseconds: lines `name value`."""
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    x = distribute_tensor(torch.randn(512, 512), mesh, [Shard(0)])
    for name, to in (("S0_R", Replicate()), ("S0_S1", Shard(1))):
        times = []
        for _ in range(200):
            dist.barrier()
            start = time.perf_counter()
            x.redistribute(mesh, [to]).to_local().sum()
            times.append(time.perf_counter() - start)
        if rank == 0:
            print(name, f"{statistics.median(times) * 1e6:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/intarsia_peer_{os.getpid()}"
    mp.spawn(run, (2, path), nprocs=2)
    if os.path.exists(path):
        os.remove(path)
