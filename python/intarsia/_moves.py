"""Conversions from distributed tensors to local ones and to the whole."""

from collections.abc import Sequence
from typing import Any

import torch

from . import _core
from ._numbers import expect_numbers


def to_local(self: torch.Tensor, *, grad_placements: "Sequence[Any] | None" = None) -> torch.Tensor:
    """This rank's shard, sharing memory. In a simulation, one tensor that stands for the shards of all ranks."""
    expect_numbers()
    try:
        local = _core.to_local(self, grad_placements)
    except RuntimeError:
        return _nothing_of(self)
    if "_came_later" in self.__dict__ or (self._base is not None and "_came_later" in self._base.__dict__):
        return _Arriving.apply(local)
    return local if type(self) is torch.Tensor else _kind_of(self, local)


class _Arriving(torch.autograd.Function):
    """A local tensor in the dress that PyTorch's DTensor gives to what is still under way. Ours has come when it is asked for."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        return AsyncCollectiveTensor(local)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.trigger_wait() if hasattr(grad, "trigger_wait") else grad


def _kind_of(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """What to_local of a parameter returns is also an instance of Parameter. The shard itself is not marked."""
    if isinstance(tensor, torch.nn.Parameter):
        local = local if torch.is_grad_enabled() else local.view_as(local)
        local._is_param = True
    return local


def _nothing_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a rank that is not on the mesh holds. Other ranks have had an error, which goes on."""
    if _core.shards_of(tensor):
        raise
    return torch.empty(0, dtype=tensor.dtype) if tensor.ndim else torch.zeros((), dtype=tensor.dtype)


def full_tensor(self: torch.Tensor, *, grad_placements: "Sequence[Any] | None" = None) -> torch.Tensor:
    """The whole tensor, on every rank."""
    try:
        return _core.full_tensor(self, grad_placements)
    except RuntimeError:
        return _nothing_of(self)
