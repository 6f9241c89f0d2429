"""fully_shard and replicate are PyTorch's own: they take plain modules, and say so."""

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed._composable.replicate import replicate as _replicate
from torch.distributed.fsdp import fully_shard as _fully_shard

from . import _core

__all__ = ["fully_shard", "replicate"]


def _for_plain_modules(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(module: Any, *args: Any, **kwargs: Any) -> Any:
        for one in module if isinstance(module, (list, tuple)) else (module,):
            _check_plain(function.__name__, one)
        return function(module, *args, **kwargs)

    return wrapper


def _check_plain(where: str, module: Any) -> None:
    for name, parameter in module.named_parameters():
        if _core.is_dtensor(parameter):
            raise NotImplementedError(
                f"[{where}] is PyTorch's own and not covered for distributed tensors of Intarsia, but {name} is one, laid "
                f"out as {parameter.placements}. Apply it to plain modules, or cut the parameters over two mesh axes at once."
            )


fully_shard = _for_plain_modules(_fully_shard)
replicate = _for_plain_modules(_replicate)
