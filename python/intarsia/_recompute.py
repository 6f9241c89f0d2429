"""torch.utils.checkpoint runs a function again in backward: in the LocalRandomScope of its first run, whatever surrounds backward.

A simulation runs the backward of each rank in a task of its own; for checkpoints, all of them are one, which recomputes once.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as _theirs

from . import _core
from ._mesh import simulated_world


def _replayed(function: Callable) -> Callable:
    """The function, as it runs in the scope that is open now, or without any if none is."""
    parts = _core.local_random_parts()

    @functools.wraps(function)
    def again(*args: Any, **kwargs: Any) -> Any:
        with _core.ReplayedLocalRandomScope(parts):
            return function(*args, **kwargs)

    return again


# Checkpoints call both by their class, so programs that have imported `checkpoint` before use these as well.
def _reentrant(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def forward(ctx: Any, run_function: Callable, *args: Any) -> Any:
        return theirs(ctx, _replayed(run_function), *args)

    return forward


def _not_reentrant(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def init(self: Any, recompute_fn: Callable, early_stop: bool, *args: Any) -> None:
        # A rank without rows saves nothing in a dropout, and would stop before the draw for which the others wait.
        early_stop = early_stop and _core.local_random_parts() is None
        theirs(self, _replayed(recompute_fn), early_stop, *args)

    return init


def _as_one_task(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def run(*args: Any, **kwargs: Any) -> Any:
        world = simulated_world()
        if world is None or world.size == 1 or torch._C._get_graph_exec_group() is not None:
            return theirs(*args, **kwargs)
        with _theirs.GraphExecGroup():
            return theirs(*args, **kwargs)

    return run


_theirs.CheckpointFunction.forward = staticmethod(_reentrant(_theirs.CheckpointFunction.forward))
_theirs._CheckpointFrame.__init__ = _not_reentrant(_theirs._CheckpointFrame.__init__)
torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = _as_one_task(torch.autograd.graph._engine_run_backward)
