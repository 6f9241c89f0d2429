"""Placements that the core represents differently from PyTorch: masked lookups, and dims that axes shard in another order.

The core has masked sums, whose masks have been applied, and strided shards. A spec that a program gave to a tensor is shown as
long as the tensor keeps that layout.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch

from . import _core

GIVEN = "_given_spec"  # in the tensor's __dict__: its layout then, and the spec
WITHOUT_LAYOUT = "_without_layout"  # in its __dict__: a tensor that waits for a spec
OTHER_NAMES = {"prod", "mul"}  # of products: PyTorch's placements keep the name that they are given


def shown_placements(tensor: torch.Tensor) -> tuple:
    """One placement per axis, as PyTorch would report them."""
    lies, given = _core.placements_of(tensor), tensor.__dict__.get(GIVEN)
    return lies if given is None or given[0] is not lies else given[1].placements


def shown_mesh(tensor: torch.Tensor) -> Any:
    """The mesh that a program has given, or PyTorch's for the mesh of the tensor."""
    from ._mesh import python_mesh

    lies, given = _core.placements_of(tensor), tensor.__dict__.get(GIVEN)
    return python_mesh(_core.mesh_of(tensor)) if given is None or given[0] is not lies else given[1].mesh


def spec_of(tensor: torch.Tensor) -> Any:
    """Mesh, placements and global form, as PyTorch's DTensorSpec. An order that a program writes to it is the tensor's."""
    lies, given = _core.placements_of(tensor), tensor.__dict__.get(GIVEN)
    if given is not None and given[0] is lies:
        spec = _live(given[1])
    else:
        from torch.distributed.tensor._dtensor_spec import TensorMeta

        from ._mesh import python_mesh

        meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
        spec = _live_class()(python_mesh(_core.mesh_of(tensor)), lies, tensor_meta=meta)
    spec.__dict__["_owner"] = tensor
    return spec


@functools.cache
def _live_class() -> type:
    """A DTensorSpec that forwards changes to the tensor it belongs to. Copies are plain specs."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    class LiveSpec(DTensorSpec):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "shard_order" and "_owner" in self.__dict__:
                give_spec(self.__dict__["_owner"], copy.copy(self))

        def __reduce__(self) -> tuple:
            return DTensorSpec, _fields(self)

    LiveSpec.__qualname__ = LiveSpec.__name__ = DTensorSpec.__name__
    return LiveSpec


def _fields(spec: Any) -> tuple:
    order = None if spec.use_strided_shard_as_shard_order else spec.shard_order
    return spec.mesh, spec.placements, spec.tensor_meta, order, spec.use_strided_shard_as_shard_order


def _live(spec: Any) -> Any:
    return _live_class()(*_fields(spec))


def give_spec(tensor: torch.Tensor, spec: Any) -> None:
    """Takes the local tensors that a tensor has for those of another spec, in place."""
    from ._mesh import core_mesh

    with torch.no_grad():
        local, meta = tensor if WITHOUT_LAYOUT in tensor.__dict__ else _core.to_local(tensor), spec.tensor_meta
    mesh, placements = (spec.mesh, in_order(spec)) if _cuts_evenly(spec) else _on_turned_mesh(spec)
    made = _core.from_local(local.detach(), core_mesh(mesh), placements, False, list(meta.shape), list(meta.stride)).detach()
    made.requires_grad_(tensor.requires_grad)
    made.__dict__[GIVEN] = (_core.placements_of(made), spec)
    torch.utils.swap_tensors(tensor, made)


def _cuts_evenly(spec: Any) -> bool:
    """Whether axes that cut a dim in another order than they stand in leave equal parts: then a strided shard is the same."""
    for entry in spec.shard_order or ():
        parts = torch.Size(spec.mesh.size(axis) for axis in entry.mesh_dims).numel()
        if list(entry.mesh_dims) != sorted(entry.mesh_dims) and spec.tensor_meta.shape[entry.tensor_dim] % parts:
            return False
    return True


def _on_turned_mesh(spec: Any) -> tuple:
    """A mesh of the same ranks whose axes stand in the order in which they cut, and the placements on it."""
    from torch.distributed.device_mesh import DeviceMesh

    axes = list(range(spec.mesh.ndim))
    for entry in spec.shard_order:
        for place, axis in zip(sorted(entry.mesh_dims), entry.mesh_dims):
            axes[place] = axis
    names = spec.mesh.mesh_dim_names
    names = None if names is None else tuple(names[axis] for axis in axes)
    ranks, first = spec.mesh.mesh.permute(axes), int(spec.mesh.mesh.flatten()[0])
    mesh = DeviceMesh(spec.mesh.device_type, ranks, mesh_dim_names=names, _init_backend=False, _rank=first)
    return mesh, tuple(spec.placements[axis] for axis in axes)


def named_as_given(tensor: torch.Tensor, placements: Sequence[Any]) -> torch.Tensor:
    """The tensor, whose pending reductions are shown by the names that a program has for them."""
    spec = copy.copy(spec_of(tensor))
    spec.placements = tuple(given if given.is_partial() else lies for given, lies in zip(placements, spec.placements))
    tensor.__dict__[GIVEN] = (_core.placements_of(tensor), spec)
    return tensor


def have_different_shapes(local: torch.Tensor) -> bool:
    """Whether simulated ranks hold values of different shapes."""
    return _core.is_per_rank(local) and len({tuple(value.shape) for value in _core.values_of(local)}) > 1


def without_layout(local: torch.Tensor) -> torch.Tensor:
    """The values of the ranks, to be laid out by the spec that a program gives it next: no layout has such shapes on all of them.

    Until then it is what PyTorch's replicated tensor is: a separate value for every rank.
    """
    made = local.detach().view_as(local)
    made.__dict__[WITHOUT_LAYOUT] = True
    return made


def in_order(spec: Any) -> tuple:
    """The placements of PyTorch's spec. Axes that cut a dim in another order than they stand in leave strided shards."""
    from torch.distributed.tensor.placement_types import _StridedShard

    placements = list(spec.placements)
    for entry in spec.shard_order or ():
        for place, axis in enumerate(entry.mesh_dims):
            split = 1
            for earlier in entry.mesh_dims[:place]:
                split *= spec.mesh.size(earlier) if earlier > axis else 1
            if split > 1 and not isinstance(placements[axis], _StridedShard):
                placements[axis] = _StridedShard(entry.tensor_dim, split_factor=split)
    return tuple(placements)


def kind_of_partial(placement: Any) -> str:
    """What distinguishes a pending reduction from another one that does not commute with it."""
    order = getattr(placement, "norm_type", None)
    return placement.reduce_op if order is None else f"norm {order}"


def kinds_of(placements: Sequence[Any]) -> set[str]:
    """Those of the reductions that are pending."""
    return {kind_of_partial(placement) for placement in placements if getattr(placement, "is_partial", bool)()}


def is_known(placement: Any) -> bool:
    """Whether the core has such a placement."""
    from torch.distributed.tensor._ops._math_ops import _NormPartial
    from torch.distributed.tensor.placement_types import Partial, _MaskPartial

    if isinstance(placement, _NormPartial):
        return placement.norm_type > 0
    return not placement.is_partial() or type(placement) in (Partial, _MaskPartial)


def masked(local: torch.Tensor, placements: Sequence[Any]) -> torch.Tensor:
    """The local tensor as a term of sums: what masks cover is zero."""
    from torch.distributed.tensor.placement_types import _MaskPartial

    for placement in placements:
        if not isinstance(placement, _MaskPartial):
            continue
        covered = placement.mask_buffer.data
        if covered is None:
            raise AssertionError(f"[placements] {placement!r} has no mask, so the values that it selects are unknown. Use Partial.")
        local = local.masked_fill(covered if covered.ndim == local.ndim else covered.unsqueeze(-1), 0)
    return local


def kept(placement: Any) -> Any:
    """What pickle keeps of a placement: PyTorch's own norms come back as norms of order 2, and masks have been used."""
    from torch.distributed.tensor.placement_types import _MaskPartial

    if hasattr(placement, "norm_type"):
        return ("norm", placement.norm_type)
    if isinstance(placement, _MaskPartial):
        return ("mask", tuple(placement.offset_shape or ()), placement.offset_dim)
    return placement


def from_kept(value: Any) -> Any:
    """The placement again."""
    from torch.distributed.tensor._ops._math_ops import _NormPartial
    from torch.distributed.tensor.placement_types import _MaskPartial

    if not isinstance(value, tuple):
        return value
    if value[0] == "norm":
        return _NormPartial(value[1])
    return _MaskPartial(offset_shape=torch.Size(value[1]) if value[1] else None, offset_dim=value[2])
