"""Training steps of PyTorch's DDP and fully_shard on two gloo ranks, microseconds, best of several: lines `name value`."""
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def mlp(features, hidden):
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, features))


def transformer():
    return nn.Sequential(*(nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0) for _ in range(12)))


def shard(model, mesh, reshard):
    from torch.distributed.fsdp import fully_shard

    for child in model.children():
        if next(child.parameters(), None) is not None:
            fully_shard(child, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return model


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel as DDP

    mesh = init_device_mesh("cpu", (world,))
    workloads = (
        ("mlp_10_16", lambda: mlp(10, 16), (12, 10), 200),
        ("mlp_512_2048", lambda: mlp(512, 2048), (64, 512), 30),
        ("transformer", transformer, (128, 4, 256), 6),
    )
    wraps = (
        ("compute", lambda m: m),
        ("ddp", lambda m: DDP(m)),
        ("ddp_view", lambda m: DDP(m, gradient_as_bucket_view=True)),
        ("fsdp", lambda m: shard(m, mesh, True)),
        ("fsdp_kept", lambda m: shard(m, mesh, False)),
    )
    for name, make, shape, steps in workloads:
        for kind, wrap in wraps:
            torch.manual_seed(0)
            model = wrap(make())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            x = torch.rand(*shape)
            best = 1e9
            for step in range(steps):
                dist.barrier()
                start = time.perf_counter()
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                if step > 1:
                    best = min(best, time.perf_counter() - start)
            if rank == 0:
                print(f"{name}_{kind}", f"{best * 1e6:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/intarsia_peer_dp_{os.getpid()}"
    mp.spawn(run, (2, path), nprocs=2)
    if os.path.exists(path):
        os.remove(path)
