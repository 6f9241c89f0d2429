"""torch.distributed.tensor's training step of the same convolution on two gloo ranks, milliseconds: lines `name value`."""
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    conv = torch.nn.Conv2d(3, 256, 4, stride=4)
    conv = distribute_module(conv, mesh)
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.001)
    x = distribute_tensor(torch.rand(7, 3, 512, 1024), mesh, [Shard(3)]).requires_grad_()
    grad = distribute_tensor(torch.rand(7, 256, 128, 256), mesh, [Shard(3)])
    best = 1e30
    for _ in range(5):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        conv(x).backward(grad)
        optimizer.step()
        dist.barrier()
        best = min(best, time.perf_counter() - start)
    if rank == 0:
        print("step", f"{best * 1e3:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/intarsia_peer_{os.getpid()}"
    mp.spawn(run, (2, path), nprocs=2)
    if os.path.exists(path):
        os.remove(path)
