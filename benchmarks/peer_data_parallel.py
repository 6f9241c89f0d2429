"""Training steps of PyTorch's DDP and fully_shard on two gloo ranks: lines `name value`.

    peer_data_parallel.py time WORKLOAD          microseconds of a step, best of several rounds in which all ways take turns
    peer_data_parallel.py memory WORKLOAD WAY    the peak of resident memory above the start, MiB
"""
import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def mlp(features, hidden):
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, features))


def transformer():
    return nn.Sequential(*(nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0) for _ in range(12)))


WORKLOADS = {  # how to make the model, its input, rounds, steps of a round
    "mlp_10_16": (lambda: mlp(10, 16), (12, 10), 5, 100),
    "mlp_512_2048": (lambda: mlp(512, 2048), (64, 512), 5, 15),
    "transformer": (transformer, (128, 4, 256), 2, 6),
}


def shard(model, mesh, reshard):
    from torch.distributed.fsdp import fully_shard

    for child in model.children():
        if next(child.parameters(), None) is not None:
            fully_shard(child, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return model


def ways(world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel as DDP

    mesh = init_device_mesh("cpu", (world,))
    return {
        "compute": lambda m: m,
        "ddp": lambda m: DDP(m),
        "ddp_view": lambda m: DDP(m, gradient_as_bucket_view=True),
        "fsdp": lambda m: shard(m, mesh, True),
        "fsdp_kept": lambda m: shard(m, mesh, False),
    }


def best_step(workload, wrap, steps):
    make, shape = WORKLOADS[workload][:2]
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
    return best * 1e6


def kilobytes(wanted):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(wanted))


def peak_above_start(run):
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    start = kilobytes("VmRSS:")
    run()
    return (kilobytes("VmHWM:") - start) / 1024


def run(rank, world, path, what, workload, way):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    values, all_ways = {}, ways(world)
    if what == "time":
        for _ in range(WORKLOADS[workload][2]):
            for name, wrap in all_ways.items():
                values[name] = min(values.get(name, 1e15), best_step(workload, wrap, WORKLOADS[workload][3]))
    else:
        wrap = all_ways[way]
        best_step("mlp_10_16", wrap, 3)  # connects, and loads code
        values["resident"] = peak_above_start(lambda: best_step(workload, wrap, 4))
    for name, value in values.items():
        if rank == 0:
            print(name, f"{value:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/intarsia_peer_dp_{os.getpid()}"
    mp.spawn(run, (2, path, sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""), nprocs=2)
    if os.path.exists(path):
        os.remove(path)
