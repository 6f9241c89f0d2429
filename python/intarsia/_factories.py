"""Factory functions that create only the local shards."""

from collections.abc import Sequence
from typing import Any

import torch

from . import _core
from ._mesh import core_mesh
from ._tensor import _given_mesh, _replicated


def _size_of(size: tuple) -> list[int]:
    return list(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else [int(extent) for extent in size]


def _place(device_mesh: Any, placements: Any, layout: torch.layout, where: str) -> tuple:
    if layout is not torch.strided:
        raise NotImplementedError(f"[{where}] the layout {layout} is not supported: only torch.strided is.")
    mesh = _given_mesh(device_mesh, where)
    return core_mesh(mesh), _replicated(mesh) if placements is None else placements


def full(
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: "torch.dtype | None" = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
) -> torch.Tensor:
    """A distributed tensor filled with a value."""
    mesh, placements = _place(device_mesh, placements, layout, "full")
    if dtype is None and isinstance(fill_value, float):
        dtype = torch.get_default_dtype()
    return _core.full(_size_of((size,)), fill_value, mesh, placements, dtype, requires_grad)


def zeros(
    *size: Any,
    requires_grad: bool = False,
    dtype: "torch.dtype | None" = None,
    layout: torch.layout = torch.strided,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
) -> torch.Tensor:
    """A distributed tensor of zeros."""
    mesh, placements = _place(device_mesh, placements, layout, "zeros")
    return _core.full(_size_of(size), 0, mesh, placements, dtype or torch.get_default_dtype(), requires_grad)


def ones(
    *size: Any,
    dtype: "torch.dtype | None" = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
) -> torch.Tensor:
    """A distributed tensor of ones."""
    mesh, placements = _place(device_mesh, placements, layout, "ones")
    return _core.full(_size_of(size), 1, mesh, placements, dtype or torch.get_default_dtype(), requires_grad)


def empty(
    *size: Any,
    dtype: "torch.dtype | None" = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
) -> torch.Tensor:
    """A distributed tensor without values."""
    mesh, placements = _place(device_mesh, placements, layout, "empty")
    return _core.empty(_size_of(size), mesh, placements, dtype or torch.get_default_dtype(), requires_grad)


def rand(
    *size: Any,
    requires_grad: bool = False,
    dtype: "torch.dtype | None" = None,
    layout: torch.layout = torch.strided,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
) -> torch.Tensor:
    """A distributed tensor of numbers drawn evenly from [0, 1)."""
    made = empty(*size, dtype=dtype, layout=layout, device_mesh=device_mesh, placements=placements)
    return made.uniform_().requires_grad_(requires_grad)


def randn(
    *size: Any,
    requires_grad: bool = False,
    dtype: "torch.dtype | None" = None,
    layout: torch.layout = torch.strided,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
) -> torch.Tensor:
    """A distributed tensor of normally distributed numbers."""
    made = empty(*size, dtype=dtype, layout=layout, device_mesh=device_mesh, placements=placements)
    return made.normal_().requires_grad_(requires_grad)


def manual_seed(seed: int, device_mesh: Any) -> None:
    """Makes the following draws repeatable: distributed tensors draw from the default generator."""
    torch.manual_seed(seed)
