"""What a torch.distributed.tensor op costs over the plain op, in microseconds: lines `name value`, for 1_op_overhead."""
import os
import time

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

OPS = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a.mm(b),
    "relu": lambda a, b: a.relu(),
    "detach": lambda a, b: a.detach(),
    "view": lambda a, b: a.view(16),
    "sum": lambda a, b: a.sum(),
    "add_": lambda a, b: b.add_(b),
}


def time_us(call, calls=500, rounds=5):
    for _ in range(50):
        call()
    best = 1e30
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time() - start) / calls * 1e6)
    return best


mesh = init_device_mesh("cpu", (1,))
for grad in (False, True):
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)
    plain = (a.clone().requires_grad_(grad), b)
    cut = (
        distribute_tensor(a, mesh, [Shard(0)]).requires_grad_(grad),
        distribute_tensor(b, mesh, [Replicate()]),
    )
    for name, op in OPS.items():
        over = time_us(lambda: op(*cut)) - time_us(lambda: op(*plain))
        print(name + ("_grad" if grad else ""), f"{over:.3f}", flush=True)
dist.destroy_process_group()
