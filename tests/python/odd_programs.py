"""What programs do with a tensor of theirs, as functions of it. Called with odd objects."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn

import intarsia
from intarsia import DTensor, Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size() if dist.is_initialized() else 1,))


def cut(**options: Any) -> torch.Tensor:
    return distribute_tensor(torch.ones(4, 3), mesh(), [Shard(0)]).requires_grad_(options.get("grad", False))


def pending() -> torch.Tensor:
    return DTensor.from_local(torch.ones(4, 3), mesh(), [intarsia.Partial()])


class Holding(nn.Module):
    """A module with the object as a parameter, or as a buffer."""

    def __init__(self, odd: Any, as_buffer: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        if as_buffer:
            self.register_buffer("odd", odd)
        else:
            self.odd = odd if isinstance(odd, nn.Parameter) else nn.Parameter(odd, requires_grad=odd.is_floating_point())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) @ self.odd


def trained(model: nn.Module) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    model.zero_grad()
    return model.state_dict()


def stepped(parameter: Any, grad: Any, kind: type = torch.optim.AdamW, **options: Any) -> Any:
    parameter.grad = grad
    kind([parameter], lr=0.1, **options).step()
    return parameter


def given_data(target: torch.Tensor, odd: Any) -> torch.Tensor:
    target.data = odd
    return target


def placed(target: torch.Tensor, odd: Any) -> torch.Tensor:
    target[0] = odd
    return target


def swapped(target: torch.Tensor, odd: Any) -> torch.Tensor:
    torch.utils.swap_tensors(target, odd)
    return target


def sharded_then(change: Callable[[nn.Module, Any], Any]) -> Callable:
    """A program that changes a model under fully_shard, and trains on."""

    def program(odd: Any) -> Any:
        model = intarsia.fully_shard(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), mesh=mesh())
        change(model, odd)
        return trained(model)

    return program


def saved(odd: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        intarsia.checkpoint.save(f"{folder}/c", {"w": odd})
        intarsia.checkpoint.load(f"{folder}/c", {"w": odd})


def loaded(odd: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        intarsia.checkpoint.save(f"{folder}/c", {"w": torch.ones(4, 3)})
        return intarsia.checkpoint.load(f"{folder}/c", {"w": odd})


PROGRAMS: "dict[str, Callable[[Any], Any]]" = {
    "distribute_tensor": lambda odd: distribute_tensor(odd, mesh(), [Shard(0)]),
    "distribute_tensor, replicated": lambda odd: distribute_tensor(odd, mesh(), [Replicate()]),
    "from_local": lambda odd: DTensor.from_local(odd, mesh(), [Shard(0)]),
    "from_local, checked": lambda odd: DTensor.from_local(odd, mesh(), [Shard(0)], run_check=True),
    "from_local, shape": lambda odd: DTensor.from_local(torch.ones(4, 3), mesh(), [Shard(0)], shape=odd, stride=odd),
    "placements": lambda odd: cut().redistribute(mesh(), odd),
    "shard of": lambda odd: cut().redistribute(mesh(), [Shard(odd)]),
    "mesh": lambda odd: init_device_mesh("cpu", odd, mesh_dim_names=odd),
    "redistribute": lambda odd: intarsia.redistribute(odd, mesh(), [Shard(0)]),
    "methods of DTensor": lambda odd: (DTensor.full_tensor(odd), DTensor.to_local(odd)),
    "to_torch": lambda odd: intarsia.to_torch(intarsia.from_torch(odd)),
    "add": lambda odd: cut() + odd,
    "radd": lambda odd: odd + cut(),
    "add to pending": lambda odd: pending() + odd,
    "add_": lambda odd: cut().add_(odd),
    "iadd": lambda odd: odd.add_(cut()),
    "matmul": lambda odd: cut() @ odd.t(),
    "linear": lambda odd: F.linear(cut(), odd),
    "linear of": lambda odd: F.linear(odd, cut(grad=True)).sum().backward(),
    "cat": lambda odd: torch.cat([cut(), odd]),
    "stack": lambda odd: torch.stack([odd, cut()]),
    "where": lambda odd: torch.where(cut() > 0, odd, cut()),
    "out": lambda odd: torch.add(cut(), 1, out=odd),
    "out of odd": lambda odd: torch.add(odd, 1, out=cut()),
    "copy_": lambda odd: cut().copy_(odd),
    "copy_ to": lambda odd: odd.copy_(cut()),
    "set_": lambda odd: cut().set_(odd),
    "set_ to": lambda odd: odd.set_(cut()),
    "data": lambda odd: given_data(cut(grad=True), odd),
    "data of": lambda odd: given_data(odd, cut()),
    "index": lambda odd: cut()[odd],
    "index of": lambda odd: odd[cut().long()],
    "setitem": lambda odd: placed(cut(), odd),
    "setitem of": lambda odd: placed(odd, cut()[0]),
    "embedding": lambda odd: F.embedding(odd, cut()),
    "embedding of": lambda odd: F.embedding(cut().long(), odd),
    "cross_entropy": lambda odd: F.cross_entropy(cut(), odd),
    "foreach": lambda odd: torch._foreach_add([cut(), cut()], [odd, odd]),
    "foreach in place": lambda odd: torch._foreach_mul_([cut(), odd], 2),
    "foreach of numbers": lambda odd: torch._foreach_add([cut(), cut()], odd),
    "norm of a list": lambda odd: torch.nn.utils.get_total_norm([cut(), odd]),
    "backward": lambda odd: cut(grad=True).mul(2).backward(odd),
    "backward of": lambda odd: odd.backward(cut()),
    "grad": lambda odd: torch.autograd.grad(cut(grad=True) * 2, [odd], cut()),
    "AdamW": lambda odd: stepped(cut(grad=True), odd),
    "AdamW of": lambda odd: stepped(odd, cut()),
    "fused AdamW": lambda odd: stepped(cut(grad=True), odd, fused=True),
    "SGD": lambda odd: stepped(cut(grad=True), odd, torch.optim.SGD, momentum=0.9, foreach=True),
    "swap": lambda odd: swapped(cut(), odd),
    "type_as": lambda odd: cut().type_as(odd),
    "to": lambda odd: cut().to(odd),
    "view_as": lambda odd: cut().view_as(odd),
    "view": lambda odd: cut().view(odd),
    "sum": lambda odd: cut().sum(odd),
    "new_tensor": lambda odd: cut().new_tensor(odd),
    "new_full": lambda odd: cut().new_full((2, 2), odd),
    "equal": lambda odd: torch.equal(cut(), odd) or torch.equal(odd, cut()),
    "dropout": lambda odd: F.dropout(cut(), odd),
    "attention": lambda odd: F.scaled_dot_product_attention(cut(), odd, odd),
    "to_local": lambda odd: cut().to_local() + odd,
    "to_local, written": lambda odd: cut().to_local().copy_(odd),
    "vmap": lambda odd: torch.vmap(lambda x: x + cut())(odd),
    "vmap beside": lambda odd: torch.vmap(lambda x: x + odd)(cut()),
    "vmap inside": lambda odd: torch.vmap(lambda x: distribute_tensor(x, mesh(), [Replicate()]))(odd),
    "func.grad": lambda odd: torch.func.grad(lambda x: (x * cut()).sum())(odd),
    "func.jvp": lambda odd: torch.func.jvp(lambda x: x * 2, (cut(),), (odd,)),
    "func.grad inside": lambda odd: torch.func.grad(lambda x: DTensor.from_local(x, mesh(), [Shard(0)]).sum())(odd),
    "all_reduce": lambda odd: dist.all_reduce(odd),
    "all_gather": lambda odd: dist.all_gather([torch.ones(4, 3)] * mesh().size(), odd),
    "all_gather into": lambda odd: dist.all_gather([odd] * mesh().size(), torch.ones(4, 3)),
    "functional all_reduce": lambda odd: collectives.all_reduce(odd, "sum", mesh()),
    "broadcast_object_list": lambda odd: dist.broadcast_object_list([odd]),
    "rank_map": lambda odd: intarsia.experimental.rank_map(lambda rank: odd),
    "fully_shard": lambda odd: trained(intarsia.fully_shard(Holding(odd), mesh=mesh())),
    "fully_shard, a buffer": lambda odd: trained(intarsia.fully_shard(Holding(odd, True), mesh=mesh())),
    "fully_shard of": lambda odd: intarsia.fully_shard(odd, mesh=odd),
    "fully_shard, input": lambda odd: intarsia.fully_shard(nn.Linear(3, 4), mesh=mesh())(odd).sum().backward(),
    "fully_shard, data": sharded_then(lambda model, odd: given_data(model[0].weight, odd)),
    "fully_shard, grad": sharded_then(lambda model, odd: stepped(model[0].weight, odd)),
    "fully_shard, parameter": sharded_then(lambda model, odd: setattr(model[0], "weight", nn.Parameter(odd))),
    "fully_shard, swap": sharded_then(lambda model, odd: swapped(model[0].weight, odd)),
    "fully_shard, state dict": sharded_then(lambda model, odd: model.load_state_dict({"0.weight": odd}, strict=False)),
    "fully_shard, assigned": sharded_then(lambda model, odd: model.load_state_dict({"0.weight": odd}, strict=False, assign=True)),
    "replicate": lambda odd: trained(intarsia.replicate(Holding(odd), device_mesh=mesh())),
    "replicate, a buffer": lambda odd: trained(intarsia.replicate(Holding(odd, True), device_mesh=mesh())),
    "replicate of": lambda odd: intarsia.replicate(odd, device_mesh=odd),
    "distribute_module": lambda odd: trained(distribute_module(Holding(odd), mesh())),
    "checkpoint.save": saved,
    "checkpoint.load": loaded,
}
