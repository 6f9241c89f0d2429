"""A training step of PyTorch's tensor-parallel MLP on two gloo ranks, microseconds: lines `name value`."""
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Mlp(torch.nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.net1 = torch.nn.Linear(features, hidden)
        self.net2 = torch.nn.Linear(hidden, features)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    for name, features, hidden, batch, steps in (("small", 10, 16, 12, 200), ("large", 512, 2048, 64, 40)):
        torch.manual_seed(0)
        model = parallelize_module(
            Mlp(features, hidden), mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.rand(batch, features)
        times = []
        for _ in range(steps):
            dist.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        if rank == 0:
            print(name, f"{statistics.median(times) * 1e6:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/intarsia_peer_tp_{os.getpid()}"
    mp.spawn(run, (2, path), nprocs=2)
    if os.path.exists(path):
        os.remove(path)
