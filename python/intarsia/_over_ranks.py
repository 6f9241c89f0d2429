"""For what a program does once, and numbers from all ranks: the functions of C++ of the same names.

They do the same in a process group, in a simulation, and in a process that is alone.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._mesh import core_mesh, current_world
from ._numbers import numbers_of, per_rank


def is_first_rank() -> bool:
    """Whether this process plays rank 0: true in a simulation, which plays all ranks, and in a process that is alone."""
    return current_world().hosted[0] == 0


def restart_count() -> int:
    """How often ``intarsia run --max-restarts`` or torchrun has started this job again; 0 the first time."""
    return _core.restart_count()


def print_once(*values: Any, **options: Any) -> None:
    """``print`` on the first rank only, and flushed."""
    if is_first_rank():
        print(*values, **{"flush": True, **options})


def print_with_rank(*values: Any, **options: Any) -> None:
    """``print`` on every rank, with its rank before: ``[rank 2 of 4]``. A simulation prints one line: ``[ranks 0 to 3 of 4]``."""
    world = current_world()
    hosted = world.hosted
    ranks = f"rank {hosted[0]}" if len(hosted) == 1 else f"ranks {hosted[0]} to {hosted[-1]}"
    print(f"[{ranks} of {world.size}]", *values, **{"flush": True, **options})


def mean_over_ranks(mine: Any, mesh: Any = None) -> float:
    """The mean of a number over all ranks, or over those of a mesh; they all call it.

    A number, or a tensor of one element: plain, per rank in a simulation, or distributed, which is one number for all of its ranks.
    """
    return _reduced("mean_over_ranks", _core.mean_over_ranks, mine, mesh)


def sum_over_ranks(mine: Any, mesh: Any = None) -> float:
    """The sum of a number over all ranks, or over those of a mesh; see :func:`mean_over_ranks`."""
    return _reduced("sum_over_ranks", _core.sum_over_ranks, mine, mesh)


def max_over_ranks(mine: Any, mesh: Any = None) -> float:
    """The largest of a number over all ranks, or over those of a mesh; see :func:`mean_over_ranks`."""
    return _reduced("max_over_ranks", _core.max_over_ranks, mine, mesh)


def _reduced(where: str, reduce: Callable, mine: Any, mesh: Any) -> float:
    world = current_world()
    return reduce(world, _as_tensor(where, mine), None if mesh is None else core_mesh(mesh))


def _as_tensor(where: str, mine: Any) -> torch.Tensor:
    if isinstance(mine, torch.Tensor):
        return mine
    if values := numbers_of(mine):
        return per_rank([torch.tensor(float(value), dtype=torch.float64) for value in values])
    try:
        return torch.tensor(float(mine), dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"[{where}] needs a number or a tensor of one element, but got {mine!r}.") from None
