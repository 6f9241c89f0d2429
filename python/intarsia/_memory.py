"""Methods of tensors that need memory, which distributed tensors lack: their errors say what to call instead."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._compile import leave_tracing
from ._numbers import joined

_is_dtensor = _core.is_dtensor


def has_no_memory(tensor: torch.Tensor) -> bool:
    return _is_dtensor(tensor) or _core.is_per_rank(tensor)


def explaining(name: str) -> Callable:
    """A method that needs memory: its error says what to call instead."""
    theirs = getattr(torch.Tensor, name)

    @functools.wraps(theirs)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(self, *args, **kwargs)
        except RuntimeError as error:
            if not has_no_memory(self):
                raise
            if _core.is_per_rank(self) and name in ("numpy", "tolist", "__array__"):
                return _reconciled(name, self, *args, **kwargs)
            leave_tracing()
            what = f"[{name}] a distributed tensor of shape {list(self.shape)} has no memory of its own. "
            advice = f"Use x.to_local().{name}() for the local shard, or x.full_tensor().{name}() for the whole."
            if not _is_dtensor(self):
                what, advice = f"[{name}] this tensor stands for one per simulated rank. ", "Use x._local_tensors[rank]."
            raise type(error)(what + advice) from None

    return method


def _reconciled(name: str, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Lists and arrays of a tensor that is one per rank are those of its one value, if the ranks agree. Whole numbers may differ."""
    values = _core.values_of(tensor)
    if name == "tolist":
        return joined([value.tolist() for value in values], name)
    if not all(torch.equal(values[0], value) for value in values):
        raise AssertionError(f"[{name}] the simulated ranks hold different values. Use x._local_tensors[rank].")
    return getattr(values[0], name)(*args, **kwargs)
