"""For 5_operators: bytes that a rank of two receives in a call of torch.distributed.tensor (-1: it raises), and what an
optimizer step costs over the plain one. Lines `name value`."""
import os
import time

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

torch.set_num_threads(1)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors_of(v)] if isinstance(value, (list, tuple)) else []


class Bytes(TorchDispatchMode):
    """Adds up what a rank of two receives, whatever kind of collective it is."""

    received = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor comes first: what it calls passes here again
        out = op(*args, **(kwargs or {}))
        name = op._schema.name
        if name.startswith("_c10d_functional::") and not any(word in name for word in ("wait", "wrap")):
            size = lambda values: sum(t.numel() * t.element_size() for t in tensors_of(values))
            if "all_gather" in name or "allgather" in name:
                self.received += size(out) // 2
            elif "all_reduce" in name or "allreduce" in name:
                self.received += size(args[0])
            elif "reduce_scatter" in name:
                self.received += size(out)
            elif "all_to_all" in name or "alltoall" in name:
                self.received += size(args[0]) // 2
            else:
                self.received += size(out)
        return out


mesh = init_device_mesh("cpu", (2,))
S0, S1, R, P = Shard(0), Shard(1), Replicate(), Partial()


def lay(shape, placement):
    if isinstance(placement, Partial):
        return DTensor.from_local(torch.rand(shape), mesh, [placement], run_check=False)
    return distribute_tensor(torch.rand(shape), mesh, [placement], src_data_rank=None)


def whole(tensor):
    return distribute_tensor(tensor, mesh, [R], src_data_rank=None)


m = (64, 64)
CASES = {
    "softmax": ([(m, S1)], lambda x: x.softmax(1)),
    "log_softmax": ([(m, S1)], lambda x: x.log_softmax(1)),
    "logsumexp": ([(m, S1)], lambda x: x.logsumexp(1)),
    "layer_norm": ([(m, S1), ((64,), R), ((64,), R)], lambda x, w, b: F.layer_norm(x, (64,), w, b)),
    "rms_norm": ([(m, S1), ((64,), R)], lambda x, w: F.rms_norm(x, (64,), w)),
    "var": ([(m, S1)], lambda x: x.var(1)),
    "std": ([(m, S1)], lambda x: x.std(1)),
    "norm": ([(m, S1)], lambda x: x.norm(2, 1).full_tensor()),
    "mean": ([((64, 65), S1)], lambda x: x.mean(1).full_tensor()),
    "cumsum": ([(m, S1)], lambda x: x.cumsum(1)),
    "argmax": ([(m, S1)], lambda x: x.argmax(1)),
    "max": ([(m, S1)], lambda x: x.max(1)),
    "topk": ([(m, S1)], lambda x: x.topk(4, 1)),
    "roll": ([(m, S1)], lambda x: x.roll(3, 1)),
    "flip": ([(m, S1)], lambda x: x.flip(1)),
    "pad": ([(m, S1)], lambda x: F.pad(x, (1, 1))),
    "slice": ([(m, S1)], lambda x: x[:, 3:60]),
    "select": ([(m, S1)], lambda x: x[:, 3].clone()),
    "cat": ([(m, S1), (m, S1)], lambda x, y: torch.cat([x, y], 1)),
    "gather": ([(m, S1)], lambda x: x.gather(1, whole(torch.zeros(64, 4, dtype=torch.long)))),
    "index_select": ([(m, S0)], lambda x: x.index_select(0, whole(torch.arange(8)))),
    "tril": ([(m, S0)], lambda x: x.tril()),
    "diagonal": ([(m, S0)], lambda x: x.diagonal().clone()),
    "embedding,_cut_vocabulary": ([(m, S0)], lambda x: F.embedding(whole(torch.arange(8)), x).full_tensor()),
    "cross_entropy,_cut_classes": ([(m, S1)], lambda x: F.cross_entropy(x, whole(torch.arange(64))).full_tensor()),
    "attention,_cut_heads": ([((2, 4, 16, 8), S1)] * 3, lambda q, k, v: F.scaled_dot_product_attention(q, k, v)),
    "linear,_cut_sequence": ([((2, 16, 8), S1), ((8, 8), R)], lambda x, w: F.linear(x, w)),
    "baddbmm": ([((4, 8, 8), S0)] * 3, lambda x, y, z: torch.baddbmm(x, y, z)),
    "cdist": ([((16, 8), S0), ((16, 8), R)], lambda x, y: torch.cdist(x, y)),
    "P_+_P": ([(m, P), (m, P)], lambda x, y: x + y),
    "P_*_P": ([(m, P), (m, P)], lambda x, y: x * y),
    "P_*_R": ([(m, P), (m, R)], lambda x, y: x * y),
    "-P": ([(m, P)], lambda x: -x),
    "matmul_S1_S0": ([(m, S1), (m, S0)], lambda x, y: x.mm(y)),
    "group_norm,_cut_channels": ([((4, 8, 16), S1)], lambda x: F.group_norm(x, 2)),
    "batch_norm,_cut_batch": ([((8, 4, 8), S0)], lambda x: F.batch_norm(x, None, None, training=True)),
}

with torch.no_grad():
    for name, (inputs, call) in CASES.items():
        values = [lay(shape, placement) for shape, placement in inputs]
        with Bytes() as counter:
            try:
                call(*values)  # type: ignore[operator]
            except Exception:
                counter.received = -1
        print(name, counter.received, flush=True)


def step_us(optimizer, cut, side):
    parameters = []
    for _ in range(100):
        p = torch.rand(side, side)
        p = distribute_tensor(p, mesh, [S0], src_data_rank=None) if cut else p
        p = p.detach().requires_grad_()
        p.grad = torch.ones_like(p)
        parameters.append(p)
    step = optimizer(parameters, lr=1e-3, foreach=False).step
    step()
    best = 1e30
    for _ in range(5):
        start = time.process_time()
        step()
        best = min(best, time.process_time() - start)
    return best * 1e6


for side in (16, 64):
    for name, optimizer in (("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        print(f"{name}{side}", f"{step_us(optimizer, True, side) / step_us(optimizer, False, side):.2f}", flush=True)
