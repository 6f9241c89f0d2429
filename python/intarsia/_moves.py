"""How a distributed tensor gets to local ones, to the whole and to other layouts."""

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
    """What to_local of a parameter returns is an instance of Parameter, too. The shard itself is not marked."""
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


def redistribute(
    self: torch.Tensor,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
    *,
    async_op: bool = False,
    forward_dtype: "torch.dtype | None" = None,
    backward_dtype: "torch.dtype | None" = None,
) -> torch.Tensor:
    """The same tensor in another layout. Differentiable; the dtypes say in which precision data and gradient travel."""
    if placements is None:
        raise RuntimeError("[redistribute] placements is needed for redistribute!")
    if device_mesh is not None and device_mesh is not self.device_mesh and device_mesh != self.device_mesh:
        raise NotImplementedError("[redistribute] Cross device mesh comm not supported yet!")
    for placement, now in zip(placements, self.placements):
        if placement.is_partial() and not _core.same_placement(placement, now):
            raise RuntimeError(
                f"[redistribute] Can not redistribute from {now} to {placement}, "
                "redistributing to Partial is for internal use only!"
            )
    if forward_dtype is None and backward_dtype is None:
        moved = _core.redistribute(self, placements, async_op)
    else:
        moved = _TravelsAs.apply(self, tuple(placements), async_op, forward_dtype or self.dtype, backward_dtype or self.dtype)
    if async_op and _dressed(self, moved):
        moved._came_later = True
    return moved


def _dressed(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether to_local of what travelled is an AsyncCollectiveTensor: programs of the drop-in may ask for it."""
    from ._dropin import installed

    sent = any(p.is_shard() or p.is_partial() for p, q in zip(before.placements, after.placements) if p != q)
    return sent and installed() and len(_core.shards_of(after)) == 1


class _TravelsAs(torch.autograd.Function):
    """A redistribution whose data and gradient travel in dtypes of their own. The result has the dtype in which it came."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, placements: tuple, async_op: bool, dtype: Any, back: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.before, ctx.dtype, ctx.back = tensor.placements, tensor.dtype, back
        return _core.redistribute(_cast(tensor, dtype), placements, async_op)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return None, None, None, None, None
        travels = grad.to(ctx.back)
        way_back = tuple(_settled(p, now) for p, now in zip(ctx.before, travels.placements))
        return _core.redistribute(travels, way_back).to(ctx.dtype), None, None, None, None


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor with its local tensors cast, pending terms as they are."""
    if tensor.dtype == dtype:
        return tensor
    with torch.no_grad():
        local = _core.to_local(tensor).to(dtype)
    return _core.from_local(
        local, _core.mesh_of(tensor), _core.placements_of(tensor), False, list(tensor.shape), list(tensor.stride())
    )


def _settled(placement: Any, now: Any) -> Any:
    """Where a gradient goes: what was pending is not asked for, but one that comes pending alike may stay so."""
    from torch.distributed.tensor.placement_types import Replicate

    return Replicate() if placement.is_partial() and not _core.same_placement(placement, now) else placement
