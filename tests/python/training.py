"""What the tests of data parallelism share: a model, its data, its training on one process, and comparisons."""

import copy

import torch
from torch import nn

import intarsia
from intarsia import DTensor, Shard, distribute_tensor, fully_shard, init_device_mesh
from intarsia.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BATCH = 24


class Block(nn.Module):
    """Uneven sizes, a scalar, a frozen and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(5, 7), nn.Linear(7, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.tied = nn.Linear(5, 7, bias=False)
        self.tied.weight = self.up.weight
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(torch.tanh(self.up(x) + self.tied(x))) * self.frozen


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(Block(), nn.Tanh(), Block(), nn.Linear(5, 3)).double()


def data() -> tuple:
    torch.manual_seed(2)
    return torch.randn(BATCH, 5).double(), torch.randn(BATCH, 3).double()


def line(name: str = "dp"):
    return init_device_mesh("cpu", (world_size(),), mesh_dim_names=(name,))


def world_size() -> int:
    return intarsia._mesh.current_world().size


def mine(tensor: torch.Tensor, mesh=None) -> torch.Tensor:
    """This rank's part of a batch."""
    mesh = mesh or line()
    return distribute_tensor(tensor, mesh, [Shard(0)] * mesh.ndim).to_local()


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 4, micro: int = 1) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def plain() -> nn.Module:
    model = net()
    train(model, *data())
    return model


def same_parameters(model: nn.Module, expected: nn.Module, tolerance: float = 1e-12) -> None:
    theirs = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        values = [parameter.full_tensor()] if isinstance(parameter, DTensor) else [parameter]
        for value in values:
            torch.testing.assert_close(value.detach(), theirs[name].detach(), rtol=tolerance, atol=tolerance, msg=name)


def trains_as_one(prepare) -> None:
    model = net()
    prepare(model)
    train(model, *(mine(t) for t in data()))
    same_parameters(model, plain())


def tensor_parallel_trains_as_one(prepare) -> None:
    """On a 2 x 2 grid; ``prepare`` takes the model and the mesh of its data parallelism."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    expected = copy.deepcopy(model)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    prepare(model, mesh["dp"])
    train(model, *(mine(t, mesh["dp"]) for t in data()))
    train(expected, *data())
    same_parameters(model, expected)


def shard_blocks(model: nn.Module, **options) -> None:
    for block in (model[0], model[2]):
        fully_shard(block, mesh=line(), **options)
    fully_shard(model, mesh=line(), **options)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return DTensor.from_local(tensor.detach(), line(), [Shard(0)]).full_tensor()
