"""PyTorch's function for the shape and offset of a rank's shard: in a simulation it returns per-rank numbers."""

import functools
from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as _theirs

from ._mesh import core_mesh, simulated_world
from ._numbers import joined

__all__ = ["compute_local_shape_and_global_offset"]


@functools.wraps(_theirs)
def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: Any, placements: Sequence[Any], skip_offset: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    world = simulated_world()
    if world is None or world.size == 1:
        return _theirs(global_shape, mesh, placements, skip_offset)  # type: ignore[arg-type]
    core = core_mesh(mesh)
    found = [core.local_shape_and_offset(placements, list(global_shape), place) for place in core.coordinates]
    shape, offset = joined([(tuple(shape), tuple(offset)) for shape, offset in found], "compute_local_shape_and_global_offset")
    return shape, () if skip_offset else offset
