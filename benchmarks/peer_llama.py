"""A training step of four Llama-style blocks in PyTorch, tensor and sequence parallel on two gloo ranks.

Prints lines `name value`: the time in microseconds, and the number and bytes of collectives of one step. Bytes are those
that a rank must send: (n - 1) / n of the whole for gather and scatter, twice that for all_reduce.
"""
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HEADS, KEY_HEADS, HIDDEN, LAYERS, BATCH, LENGTH = 256, 8, 4, 688, 4, 4, 128
HEAD = WIDTH // HEADS


def linear(n_in, n_out):
    return torch.nn.Linear(n_in, n_out, bias=False)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wo = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.wk, self.wv = linear(WIDTH, KEY_HEADS * HEAD), linear(WIDTH, KEY_HEADS * HEAD)

    def forward(self, x, cos, sin):
        def by_heads(t):
            return t.view(t.shape[0], t.shape[1], -1, HEAD).transpose(1, 2)

        q, k, v = rotate(by_heads(self.wq(x)), cos, sin), rotate(by_heads(self.wk(x)), cos, sin), by_heads(self.wv(x))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = torch.nn.RMSNorm(WIDTH, eps=1e-5), torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        return h + self.mlp(self.mlp_norm(h))


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        angles = torch.arange(LENGTH).unsqueeze(1) * 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x


class Count(TorchDispatchMode):
    """Counts the functional collectives of one rank and the bytes that theory gives them."""

    def __init__(self, world):
        super().__init__()
        self.world, self.collectives, self.bytes = world, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if "c10d_functional" in name and "wait" not in name:
            whole = out if "all_gather" in name else args[0]
            factor = 2 if "all_reduce" in name else 1
            self.collectives += 1
            self.bytes += factor * whole.numel() * whole.element_size() * (self.world - 1) // self.world
        return out


def parallelize(model, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def whole_sequence(others):
        return PrepareModuleInput(
            input_layouts=(Shard(1), *[None] * others), desired_input_layouts=(Replicate(), *[None] * others)
        )

    rows = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    plan = {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(), "attention": whole_sequence(2)}
    plan |= {f"attention.{w}": ColwiseParallel() for w in ("wq", "wk", "wv")} | {"attention.wo": rows}
    plan |= {"mlp": whole_sequence(0), "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": rows}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Stack()
    parallelize(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = distribute_tensor(torch.rand(BATCH, LENGTH, WIDTH), mesh, [Shard(1)])

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    with Count(world) as count:
        step()
    times = []
    for _ in range(20):
        dist.barrier()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    if rank == 0:
        print("time", f"{statistics.median(times) * 1e6:.1f}")
        print("collectives", count.collectives)
        print("bytes", count.bytes, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/intarsia_peer_llama_{os.getpid()}"
    mp.spawn(run, (2, path), nprocs=2)
    if os.path.exists(path):
        os.remove(path)
