"""redistribute: the same values in another layout, on their mesh or on another one of the same world."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from . import _core
from ._kinds import OTHER_NAMES, kinds_of, named_as_given
from ._mesh import core_mesh, python_mesh
from ._wrapped_module import check_layout_is_free

moving = threading.local()  # its tensor is the one that a program moves now
Plan = Callable[[str, torch.Tensor], Sequence[Any]]


def redistribute_tensor(
    self: torch.Tensor,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
    *,
    async_op: bool = False,
    forward_dtype: "torch.dtype | None" = None,
    backward_dtype: "torch.dtype | None" = None,
) -> torch.Tensor:
    """The same tensor in another layout. Differentiable; the dtypes are those in which data and gradient are sent.

    The mesh may be another one of the same world, larger, smaller or of other ranks: then all ranks of both meshes call it.
    """
    if placements is None:
        raise RuntimeError("[redistribute] placements is needed for redistribute!")
    mesh = _another_mesh(self, device_mesh)
    _check_not_pending(placements, self.placements, stays=mesh is None)
    moving.tensor = self
    try:
        if forward_dtype is None and backward_dtype is None:
            moved = _moved(self, mesh, placements, async_op)
        else:
            moved = _TravelsAs.apply(self, mesh, tuple(placements), async_op, forward_dtype or self.dtype, backward_dtype or self.dtype)
    finally:
        moving.tensor = None
    if async_op and mesh is None and _dressed(self, moved):
        moved._came_later = True
    return named_as_given(moved, placements) if kinds_of(placements) & OTHER_NAMES else moved


def _another_mesh(tensor: torch.Tensor, wanted: Any) -> "_core.Mesh | None":
    """The core's mesh for the wanted one, if the tensor is on another."""
    wanted, lies = tensor.device_mesh if wanted is None else wanted, python_mesh(_core.mesh_of(tensor))
    return None if wanted is lies or wanted == lies else core_mesh(wanted)


def _check_not_pending(placements: Sequence[Any], now: Sequence[Any], *, stays: bool) -> None:
    """What is pending may only stay as it is, on its mesh."""
    for axis, placement in enumerate(placements):
        kept = stays and axis < len(now) and _core.same_placement(placement, now[axis])
        if placement.is_partial() and not kept:
            before = now[axis] if stays and axis < len(now) else f"{tuple(now)}{'' if stays else ' on another mesh'}"
            raise RuntimeError(
                f"[redistribute] Can not redistribute from {before} to {placement}, "
                "redistributing to Partial is for internal use only!"
            )


def _moved(tensor: torch.Tensor, mesh: "_core.Mesh | None", placements: Sequence[Any], async_op: bool = False) -> torch.Tensor:
    if mesh is None:
        return _core.redistribute(tensor, placements, async_op)
    return _core.redistribute_to(tensor, mesh, placements)


def _dressed(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether to_local of what travelled is an AsyncCollectiveTensor: programs of the drop-in may ask for it."""
    from ._dropin import installed

    sent = any(p.is_shard() or p.is_partial() for p, q in zip(before.placements, after.placements) if p != q)
    return sent and installed() and len(_core.shards_of(after)) == 1


class _TravelsAs(torch.autograd.Function):
    """A redistribution whose data and gradient travel in the given dtypes. The result has the dtype of the input."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Any, placements: tuple, async_op: bool, dtype: Any, back: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.before, ctx.dtype, ctx.back = tensor.placements, tensor.dtype, back
        ctx.mesh = None if mesh is None else _core.mesh_of(tensor)
        return _moved(_cast(tensor, dtype), mesh, placements, async_op)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad is None:
            return None, None, None, None, None, None
        travels = grad.to(ctx.back)
        now = travels.placements if ctx.mesh is None else ctx.before
        way_back = tuple(_settled(p, q, ctx.mesh is None) for p, q in zip(ctx.before, now))
        return _moved(travels, ctx.mesh, way_back).to(ctx.dtype), None, None, None, None, None


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor with its local tensors cast, pending terms as they are."""
    if tensor.dtype == dtype:
        return tensor
    mesh, placements = _core.mesh_of(tensor), _core.placements_of(tensor)
    if not _core.shards_of(tensor):  # of a rank that is not on the mesh
        return _core.empty(list(tensor.shape), mesh, placements, dtype, False)
    with torch.no_grad():
        local = _core.to_local(tensor).to(dtype)
    return _core.from_local(local, mesh, placements, False, list(tensor.shape), list(tensor.stride()))


def _settled(placement: Any, now: Any, may_stay: bool) -> Any:
    """Where a gradient goes: what was pending is not asked for, but one that comes pending alike may stay so."""
    from torch.distributed.tensor.placement_types import Replicate

    stays = may_stay and _core.same_placement(placement, now)
    return Replicate() if placement.is_partial() and not stays else placement


def redistribute(what: Any, device_mesh: Any, plan: "Plan | Sequence[Any]") -> Any:
    """Moves a distributed tensor, a module or a dict of tensors to a mesh of the same world; a module or a dict in one exchange.

    ``plan`` is a list of placements, or a function of name and tensor that returns one. A tensor and the tensors of a dict are
    returned, differentiably for a tensor. A module is moved in place with its gradients: parameters keep their identity, so an
    optimizer made before sees them. Plain tensors stay as they are. All ranks of the old meshes and of the new one call it.
    """
    if isinstance(what, torch.Tensor):
        if not _core.is_dtensor(what):
            raise TypeError("[redistribute] takes distributed tensors. Distribute a plain one with distribute_tensor.")
        return what.redistribute(device_mesh, plan("", what) if callable(plan) else plan)
    removal = _Removal(device_mesh, plan)
    if isinstance(what, torch.nn.Module):
        check_layout_is_free(what, "redistribute", device_mesh)
        with torch.no_grad():
            _move_module(what, removal)
        return what
    if not isinstance(what, Mapping):
        raise TypeError(f"[redistribute] takes tensors, modules and dicts of tensors, but got {type(what).__name__}.")
    for name, value in what.items():
        removal.add(name, value)
    with torch.no_grad():
        return {**what, **removal.run()}


class _Removal:
    """Tensors by key that share an exchange."""

    def __init__(self, mesh: Any, plan: "Plan | Sequence[Any]") -> None:
        self.mesh, self.plan = core_mesh(mesh), plan if callable(plan) else lambda name, tensor: plan
        self.keys: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.placements: list[Sequence[Any]] = []

    def add(self, name: str, tensor: Any, key: Any = None) -> None:
        if not isinstance(tensor, torch.Tensor) or not _core.is_dtensor(tensor):
            return
        placements = self.plan(name, tensor)
        _check_not_pending(placements, tensor.placements, stays=False)
        self.keys.append(name if key is None else key)
        self.tensors.append(tensor.detach())
        self.placements.append(placements)

    def run(self) -> dict[Any, torch.Tensor]:
        return dict(zip(self.keys, _core.redistribute_all(self.tensors, self.mesh, self.placements)))


def _move_module(module: torch.nn.Module, removal: _Removal) -> None:
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in tensors.items():
        removal.add(name, tensor, (name, "data"))
        removal.add(name, tensor.grad, (name, "grad"))
    moved = removal.run()
    before = {name: (tensor.data, tensor.grad) for name, tensor in tensors.items() if (name, "data") in moved}
    try:
        for name in before:
            _put(tensors[name], moved[name, "data"], moved.get((name, "grad")))
    except BaseException:  # the module is as it was
        for name, (data, grad) in before.items():
            _put(tensors[name], data, grad)
        raise


def _put(tensor: torch.Tensor, data: torch.Tensor, grad: "torch.Tensor | None") -> None:
    tensor.grad = None
    tensor.data = data
    tensor.grad = grad
