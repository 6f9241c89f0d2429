"""Kinds of placements that the core tells otherwise than PyTorch: masked lookups, and dims that axes cut in an order of their own.

The core has masked sums, whose masks have been used, and strided shards. A spec that a program gave to a tensor is shown as long
as the tensor lies as it did then.
"""

from collections.abc import Sequence
from typing import Any

import torch

from . import _core

GIVEN = "_given_spec"  # in the tensor's __dict__: how it lay, and the spec


def shown_placements(tensor: torch.Tensor) -> tuple:
    """One placement per axis, as PyTorch would tell them."""
    lies, given = _core.placements_of(tensor), tensor.__dict__.get(GIVEN)
    return lies if given is None or given[0] is not lies else given[1].placements


def spec_of(tensor: torch.Tensor) -> Any:
    """Mesh, placements and global form, as PyTorch's DTensorSpec."""
    lies, given = _core.placements_of(tensor), tensor.__dict__.get(GIVEN)
    if given is not None and given[0] is lies:
        return given[1]
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    from ._mesh import python_mesh

    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    return DTensorSpec(python_mesh(_core.mesh_of(tensor)), lies, tensor_meta=meta)


def give_spec(tensor: torch.Tensor, spec: Any) -> None:
    """Takes the local tensors that a tensor has for those of another spec, in place."""
    from ._mesh import core_mesh

    with torch.no_grad():
        local, meta = _core.to_local(tensor), spec.tensor_meta
    made = _core.from_local(local.detach(), core_mesh(spec.mesh), in_order(spec), False, list(meta.shape), list(meta.stride)).detach()
    made.requires_grad_(tensor.requires_grad)
    made.__dict__[GIVEN] = (_core.placements_of(made), spec)
    torch.utils.swap_tensors(tensor, made)


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
    """What tells a pending reduction from another one that does not commute with it."""
    order = getattr(placement, "norm_type", None)
    return placement.reduce_op if order is None else f"norm {order}"


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
            raise AssertionError(f"[placements] {placement!r} has no mask, so nothing tells which values count. Use Partial.")
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
