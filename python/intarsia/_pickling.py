"""Copies of distributed tensors, and what pickle keeps of them."""

import copy
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from ._kinds import GIVEN, from_kept, kept
from ._interop import pytorchs
from ._mesh import core_mesh, python_mesh, simulated_world

_is_dtensor = _core.is_dtensor


def _rebuild(shards: list, mesh: Any, placements: tuple, shape: Any, stride: Any, requires_grad: bool) -> torch.Tensor:
    """Makes a distributed tensor again from what pickle kept."""
    placements = tuple(from_kept(placement) for placement in placements)
    local = shards[0] if len(shards) == 1 else _core.per_rank(shards)
    if len(shards) == 1 and mesh.size() > 1 and not dist.is_initialized() and simulated_world() is None:
        return pytorchs(local, mesh, placements, shape, stride, requires_grad)  # there are no other ranks: it is looked at alone
    made = _core.from_local(local, core_mesh(mesh), placements, False, list(shape), list(stride)).detach()
    return made.requires_grad_(requires_grad)


def deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():  # of a tensor that is one per rank, all are copied
        made = self.detach().clone()
    if type(self) is not torch.Tensor:
        made = made.as_subclass(type(self))
    made.requires_grad_(self.requires_grad)
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    made.__dict__.update(copy.deepcopy({name: value for name, value in self.__dict__.items() if name != GIVEN}, memo))
    return made


def _rebuild_per_rank(values: list, requires_grad: bool) -> torch.Tensor:
    """Makes a tensor that is one per simulated rank again from what pickle kept."""
    return _core.per_rank(values).requires_grad_(requires_grad)


def reduce(self: torch.Tensor, protocol: int) -> Any:
    if not _is_dtensor(self):
        state = [value.detach() for value in _core.values_of(self)], self.requires_grad
        if isinstance(self, torch.nn.Parameter):
            return (torch._utils._rebuild_parameter, (_rebuild_per_rank(*state), self.requires_grad, {}))
        return (_rebuild_per_rank, state)
    shards = [shard.detach() for shard in _core.shards_of(self)]
    placements = tuple(kept(placement) for placement in _core.placements_of(self))
    state = (shards, python_mesh(_core.mesh_of(self)), placements, tuple(self.shape), self.stride(), self.requires_grad)
    if isinstance(self, torch.nn.Parameter):
        return (torch._utils._rebuild_parameter, (_Rebuilt(state), self.requires_grad, {}))
    return (_rebuild, state)


class _Rebuilt:
    """Pickles as a distributed tensor."""

    def __init__(self, state: tuple) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return (_rebuild, self.state)


torch.serialization.add_safe_globals([_rebuild, _rebuild_per_rank])
torch.serialization.add_safe_globals([(f, f"intarsia._methods.{f.__name__}") for f in (_rebuild, _rebuild_per_rank)])  # of older files
