"""What a distributed op costs over the plain op from Python: Intarsia beside torch.distributed.tensor, in one run.

Processor time in microseconds, tensors of 4x4, one rank; the steps are wall time in milliseconds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed as dist
import torch.distributed.tensor as torch_tensor
import torch.distributed.tensor.parallel as torch_parallel
import torch.multiprocessing as mp
from torch import nn

import intarsia
import intarsia.parallel

OPS = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a.mm(b),
    "relu": lambda a, b: a.relu(),
    "detach": lambda a, b: a.detach(),
    "view": lambda a, b: a.view(16),
    "sum": lambda a, b: a.sum(),
    "add_": lambda a, b: b.add_(b),
}
GOAL = 10  # times less than torch.distributed.tensor


def time_us(call, calls=1000, rounds=7, clock=time.process_time, warm=50):
    for _ in range(warm):
        call()
    best = 1e30
    for _ in range(rounds):
        start = clock()
        for _ in range(calls):
            call()
        best = min(best, (clock() - start) / calls * 1e6)
    return best


def op_table(mesh, grad):
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)

    def operands(library):
        left = library.distribute_tensor(a, mesh, [torch_tensor.Shard(0)]).requires_grad_(grad)
        return left, library.distribute_tensor(b, mesh, [torch_tensor.Replicate()])

    plain, ours, theirs = (a.clone().requires_grad_(grad), b), operands(intarsia), operands(torch_tensor)
    print(f"\n{'with grad' if grad else 'op':10} {'plain':>7} {'over: intarsia':>15} {'torch':>8} {'ratio':>7}")
    for name, op in OPS.items():
        base = time_us(lambda: op(*plain))
        mine, other = time_us(lambda: op(*ours)) - base, time_us(lambda: op(*theirs)) - base
        verdict = "" if mine * GOAL <= other else f"   below the goal of 1/{GOAL}"
        print(f"{name:10} {base:7.2f} {mine:15.2f} {other:8.2f} {'1/%.0f' % (other / max(mine, 1e-3)):>7}{verdict}")


def optimizer_table(mesh):
    print("\nAdamW over 100 parameters of 4x4, ms per step")
    for name, options in {"for-loop": {"foreach": False}, "foreach": {"foreach": True}}.items():
        times = []
        for library in (None, intarsia, torch_tensor):
            tensors = [torch.zeros(4, 4) for _ in range(100)]
            if library:
                tensors = [library.distribute_tensor(t, mesh, [torch_tensor.Shard(0)]) for t in tensors]
            parameters = [nn.Parameter(tensor) for tensor in tensors]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            times.append(time_us(torch.optim.AdamW(parameters, **options).step, calls=10, rounds=5) / 1e3)
        print(f"{name:10} plain {times[0]:6.2f}  intarsia {times[1]:6.2f}  torch {times[2]:6.2f}")


def mlp_step(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = torch_tensor.init_device_mesh("cpu", (2,))
    for name, library in (("intarsia", intarsia.parallel), ("torch", torch_parallel)):
        model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 10))
        library.parallelize_module(model, mesh, {"0": library.ColwiseParallel(), "2": library.RowwiseParallel()})
        took = time_us(training_step(model, torch.ones(12, 10)), calls=50, rounds=7, clock=time.perf_counter) / 1e3
        if rank == 0:
            print(f"training step, tensor-parallel MLP 10-16-10, 2 ranks: {name:9} {took:6.2f} ms", flush=True)
    dist.destroy_process_group()


def ddp_step(rank, path):
    """PyTorch's own data parallelism, which knows nothing of us: our engines as the backend, gloo beside them in turn."""
    torch.set_num_threads(1)
    dist.init_process_group("intarsia", init_method=f"file://{path}", rank=rank, world_size=2)
    groups = {"intarsia": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"), "one rank alone": None}
    steps, best = {}, dict.fromkeys(groups, 1e30)
    for name, group in groups.items():
        model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
        if group is not None:
            model = nn.parallel.DistributedDataParallel(model, process_group=group)
        steps[name] = training_step(model, torch.ones(64, 512))
    for _ in range(15):
        for name, step in steps.items():
            dist.barrier()
            best[name] = min(best[name], time_us(step, calls=3, rounds=1, clock=time.perf_counter, warm=1) / 1e3)
    if rank == 0:
        times = ", ".join(f"{name} {took:.2f} ms" for name, took in best.items())
        print(f"training step, DistributedDataParallel of an MLP 512-2048-512, batch 64, 2 ranks: {times}", flush=True)
    dist.destroy_process_group()


def training_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def import_time():
    text = "import torch, time; t = time.time(); import intarsia; print(f'import intarsia after torch: {time.time() - t:.3f} s')"
    subprocess.run([sys.executable, "-c", text], check=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = torch_tensor.init_device_mesh("cpu", (1,))
    print("From Python: microseconds over the plain op")
    op_table(mesh, grad=False)
    op_table(mesh, grad=True)
    optimizer_table(mesh)
    dist.destroy_process_group()
    for program in (mlp_step, ddp_step):
        path = os.path.join(tempfile.mkdtemp(), "store")
        mp.start_processes(program, (path,), 2, start_method="spawn")
        shutil.rmtree(os.path.dirname(path))
    import_time()


if __name__ == "__main__":
    main()
