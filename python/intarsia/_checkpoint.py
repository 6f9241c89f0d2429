"""torch.distributed.checkpoint on our tensors: they are passed as PyTorch's own, without a copy."""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed.checkpoint.state_dict_loader as _loader
import torch.distributed.checkpoint.state_dict_saver as _saver
from torch.distributed.checkpoint.stateful import Stateful

from ._interop import to_torch, tree_from_torch
from ._tensor import DTensor

__all__ = ["async_save", "load", "save"]

_load = _loader.load


class _HandedOver:
    """An object with a state dict that shows its tensors as PyTorch's own."""

    def __init__(self, inner: Stateful) -> None:
        self._inner = inner

    def state_dict(self) -> dict[str, Any]:
        return _shown(self._inner.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(tree_from_torch(state_dict))


def _handed_over(state_dict: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _HandedOver(value) if isinstance(value, Stateful) and not isinstance(value, DTensor) else _shown(value)
        for key, value in state_dict.items()
    }


def _shown(value: Any) -> Any:
    """Tensors in dicts and lists as PyTorch's own. Other objects, such as tuples, are pickled there, with ours in them."""
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list) else to_torch(value) if isinstance(value, DTensor) else value


def _saving(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return function(_handed_over(state_dict), *args, **kwargs)

    return wrapper


save = _saving(_saver.save)
async_save = _saving(_saver.async_save)


@functools.wraps(_load)
def load(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """Reads into the memory of the tensors of ``state_dict``, which PyTorch's own share; other values are replaced."""
    theirs = _handed_over(state_dict)
    _load(theirs, *args, **kwargs)
    _take_over(state_dict, theirs)


def _take_over(ours: Any, theirs: Any) -> None:
    """Puts what was not read in place, such as numbers, where it belongs."""
    for key, value in list(ours.items() if isinstance(ours, dict) else enumerate(ours)):
        if isinstance(value, (dict, list)):
            _take_over(value, theirs[key])
        elif not isinstance(value, DTensor) and not isinstance(theirs[key], _HandedOver):
            ours[key] = theirs[key]
