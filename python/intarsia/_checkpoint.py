"""torch.distributed.checkpoint on our tensors: they are handed over as PyTorch's own, without a copy."""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed.checkpoint.state_dict_loader as _loader
import torch.distributed.checkpoint.state_dict_saver as _saver

from ._interop import to_torch, tree_to_torch

__all__ = ["async_save", "load", "save"]


def _handing_over(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return function(tree_to_torch(_read(state_dict)), *args, **kwargs)

    return wrapper


def _read(value: Any) -> Any:
    """Objects with state (models, optimizers, wrappers) as their state dicts, as checkpoint itself would ask for them."""
    return value


save = _handing_over(_saver.save)
async_save = _handing_over(_saver.async_save)
_load = _loader.load


@functools.wraps(_load)
def load(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """Reads into the memory of the tensors of ``state_dict``, which PyTorch's own share; other values are replaced."""
    theirs = tree_to_torch(state_dict)
    _load(theirs, *args, **kwargs)
    _take_over(state_dict, theirs)


def _take_over(ours: Any, theirs: Any) -> None:
    items = ours.items() if isinstance(ours, dict) else enumerate(ours) if isinstance(ours, list) else ()
    for key, value in items:
        if isinstance(value, (dict, list)):
            _take_over(value, theirs[key])
        elif to_torch_is_copy(value, theirs[key]):
            ours[key] = theirs[key]


def to_torch_is_copy(ours: Any, theirs: Any) -> bool:
    """Whether a loaded value is not already in place."""
    from ._tensor import DTensor

    return not isinstance(ours, DTensor) and ours is not theirs


__all__ += ["to_torch"]
