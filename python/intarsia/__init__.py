"""Distributed tensors for PyTorch, on a C++ core.

A distributed tensor is an ordinary ``torch.Tensor`` whose data is sharded over a mesh of ranks. The names here are those of
``torch.distributed.tensor``; :func:`install` replaces it by them, and :func:`simulate` hosts many ranks in one process.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _version

__version__ = _version.VERSION
_version.check_torch()

from . import _backend as _backend, _local_tensor as _local_tensor, _ranks as _ranks, _seeds as _seeds, _whole_numbers as _whole_numbers  # noqa: E402
from ._mesh import DeviceMesh, init_device_mesh, simulate  # noqa: E402
from ._tensor import DTensor, distribute_tensor  # noqa: E402
from . import _factory_scope as _factory_scope, _init as _init, _methods as _methods, _recompute as _recompute  # noqa: E402
from ._over_ranks import (  # noqa: E402
    is_first_rank,
    max_over_ranks,
    mean_over_ranks,
    print_once,
    print_with_rank,
    restart_count,
    sum_over_ranks,
)

if _TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

    from . import checkpoint, data_parallel, debug, experimental, parallel
    from ._dropin import install, installed, uninstall
    from ._factories import empty, full, ones, rand, randn, zeros
    from ._interop import from_torch, to_torch
    from ._module import distribute_module
    from ._redistribute import redistribute
    from .data_parallel import fully_shard, replicate

# The modules of names that are loaded when first used. PyTorch's placements are among them:
# their module takes about a second to load, which `import intarsia` avoids.
_LATER = {
    "Placement": "torch.distributed.tensor.placement_types",
    "Shard": "torch.distributed.tensor.placement_types",
    "Replicate": "torch.distributed.tensor.placement_types",
    "Partial": "torch.distributed.tensor.placement_types",
    "distribute_module": "intarsia._module",
    "redistribute": "intarsia._redistribute",
    "fully_shard": "intarsia.data_parallel",
    "replicate": "intarsia.data_parallel",
    "empty": "intarsia._factories",
    "full": "intarsia._factories",
    "ones": "intarsia._factories",
    "rand": "intarsia._factories",
    "randn": "intarsia._factories",
    "zeros": "intarsia._factories",
    "from_torch": "intarsia._interop",
    "to_torch": "intarsia._interop",
    "install": "intarsia._dropin",
    "installed": "intarsia._dropin",
    "uninstall": "intarsia._dropin",
}
_SUBMODULES = ("checkpoint", "data_parallel", "debug", "experimental", "parallel")

_RANKS = ("is_first_rank", "max_over_ranks", "mean_over_ranks", "print_once", "print_with_rank", "restart_count", "sum_over_ranks")

__all__ = ["DTensor", "DeviceMesh", "distribute_tensor", "init_device_mesh", "simulate", *_RANKS, *_LATER, *_SUBMODULES]


def __getattr__(name: str):
    if name in _SUBMODULES:
        return _import_module(f"intarsia.{name}")
    if name in _LATER:
        value = getattr(_import_module(_LATER[name]), name)
        if not _LATER[name].startswith("torch."):
            globals()[name] = value
        return value
    raise AttributeError(f"module 'intarsia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
