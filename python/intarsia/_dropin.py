"""Replaces torch.distributed.tensor by Intarsia, for unmodified programs."""

import functools
import importlib
import multiprocessing.spawn as _spawn
import os
import sys
import types
import zlib
from collections.abc import Callable
from typing import Any

import torch

from . import _compile, _local_tensor, _pickling

_TENSOR = "torch.distributed.tensor"
_FACTORIES = ("empty", "full", "ones", "rand", "randn", "zeros")
_STYLES = (
    "ColwiseParallel",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
)

# The replaced names: PyTorch's place and ours.
_REPLACED = {
    f"{_TENSOR}._api": {
        "DTensor": "intarsia._tensor",
        "distribute_tensor": "intarsia._tensor",
        "distribute_module": "intarsia._module",
        **dict.fromkeys(_FACTORIES, "intarsia._factories"),
    },
    f"{_TENSOR}.parallel.api": {"parallelize_module": "intarsia.parallel"},
    f"{_TENSOR}.parallel.style": dict.fromkeys(_STYLES, "intarsia.parallel"),
    f"{_TENSOR}.parallel.loss": {"loss_parallel": "intarsia.parallel"},
    f"{_TENSOR}.debug._comm_mode": {"CommDebugMode": "intarsia.debug"},
    f"{_TENSOR}.debug._visualize_sharding": {"visualize_sharding": "intarsia.debug"},
    f"{_TENSOR}.experimental": {"implicit_replication": "intarsia.experimental"},
    f"{_TENSOR}._random": {"manual_seed": "intarsia._factories"},
    f"{_TENSOR}._utils": {
        "ExplicitRedistributionContext": "intarsia.experimental",
        "compute_local_shape_and_global_offset": "intarsia._shapes",
    },
    f"{_TENSOR}.experimental._func_map": {"local_map": "intarsia.experimental"},
    f"{_TENSOR}.experimental._register_sharding": {"register_sharding": "intarsia.experimental"},
    "torch.distributed._local_tensor": dict.fromkeys(_local_tensor.__all__, "intarsia._local_tensor"),
    "torch.distributed.fsdp": dict.fromkeys(
        ("FSDPModule", "UnshardHandle", "fully_shard", "register_fsdp_forward_method", "share_comm_ctx"), "intarsia.data_parallel"
    ),
    "torch.distributed._composable.replicate": {"replicate": "intarsia.data_parallel"},
    "torch.distributed._composable.replicate_with_fsdp": dict.fromkeys(("ReplicateModule", "replicate"), "intarsia._replicate_fsdp"),
    "torch.distributed.checkpoint.state_dict_saver": {
        "save": "intarsia._checkpoint",
        "async_save": "intarsia._checkpoint",
    },
    "torch.distributed.checkpoint.state_dict_loader": {"load": "intarsia._checkpoint"},
}

# Modules of PyTorch that export these names to programs. The rest of PyTorch, such as the internals of its DTensor, keeps its
# own definitions.
_FRONT = (
    _TENSOR,
    f"{_TENSOR}._api",
    f"{_TENSOR}._random",
    f"{_TENSOR}._utils",
    f"{_TENSOR}.debug",
    f"{_TENSOR}.experimental",
    f"{_TENSOR}.parallel",
    f"{_TENSOR}.parallel.api",
    f"{_TENSOR}.parallel.input_reshard",
    f"{_TENSOR}.parallel.style",
    "torch.distributed._tensor",
    "torch.distributed._tensor.api",
    "torch.distributed._local_tensor",
    "torch.distributed._composable",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed._composable.replicate",
    "torch.distributed._composable.replicate_with_fsdp",
    "torch.distributed._state_dict_utils",
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint._traverse",
    "torch.distributed.checkpoint.default_planner",
    "torch.distributed.checkpoint.optimizer",
    "torch.distributed.checkpoint.planner_helpers",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.checkpoint.state_dict_loader",
    "torch.distributed.checkpoint.utils",
    f"{_TENSOR}.debug._comm_mode",
    f"{_TENSOR}.debug._visualize_sharding",
    f"{_TENSOR}.experimental._func_map",
    f"{_TENSOR}.experimental._register_sharding",
    f"{_TENSOR}.parallel.loss",
)

# Modules whose functions keep PyTorch's names: programs get a copy.
_COPIED = (
    f"{_TENSOR}._api",
    "torch.distributed._composable.replicate_with_fsdp",
    "torch.distributed.fsdp._fully_shard._fully_shard",
)

_undo: list[Callable[[], None]] = []


_originals: dict[tuple[str, str], Any] = {}  # what was replaced, by module and name


def original(path: str, name: str) -> Any:
    """PyTorch's own object that :func:`install` has replaced; None before."""
    return _originals.get((path, name))


def installed() -> bool:
    """Whether :func:`install` is in effect."""
    return bool(_undo)


def install(layouts: "str | None" = None) -> None:
    """Makes the names of ``torch.distributed.tensor`` refer to Intarsia's, including those already imported.

    Processes that multiprocessing starts from here do the same. What Intarsia does not offer stays PyTorch's.

    With ``layouts="pytorch"``, which is the default, results have the layouts of PyTorch's DTensor, whose rules are asked:
    programs may rely on whole results after a softmax over a sharded dim. With ``"intarsia"`` results stay sharded and less is
    sent. Without the argument, the environment variable ``INTARSIA_LAYOUTS`` decides.
    """
    layouts = layouts or os.environ.get("INTARSIA_LAYOUTS") or "pytorch"
    if layouts not in ("pytorch", "intarsia"):
        raise ValueError(f"[install] layouts are 'pytorch' or 'intarsia', but got {layouts!r}.")
    if installed():
        return
    from ._interop import torch_dtensor_class

    torch_dtensor_class()
    if installed():  # by the import hook of sitecustomize, just now
        return
    _let_pytorch_find_its_class()
    ours_by_theirs = _pairs()
    for name in _FRONT:
        importlib.import_module(name)
    for name in _COPIED:
        ours_by_theirs |= _shown_copy(name)
    for module in _modules_of_programs():
        _rebind(module, ours_by_theirs)
    _compile.follow(_undo)
    _show_to_optimizers()
    _pickling.follow(_undo)
    _refuse_dropout_of_pending()
    _refuse_writes_to_pending()
    _follow_first_generator()
    _lay_out_as(layouts)
    _teach_children(layouts)


def uninstall() -> None:
    """Undoes :func:`install`. Tensors and modules that were made meanwhile stay as they are."""
    while _undo:
        _undo.pop()()


def _let_pytorch_find_its_class() -> None:
    """PyTorch's C++ looks its DTensor up by name at the first op on one, and keeps it."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor.placement_types import Replicate

    from ._interop import torch_dtensor_class

    mesh = torch.distributed.device_mesh.DeviceMesh("cpu", torch.zeros(1, dtype=torch.int), _init_backend=False, _rank=0)
    meta = TensorMeta(torch.Size([0]), (1,), torch.float32)
    torch_dtensor_class()(torch.empty(0), DTensorSpec(mesh, (Replicate(),), meta), requires_grad=False).detach()


def _pairs() -> dict[int, tuple[Any, Any]]:
    """PyTorch's objects and ours, by the id of the former."""
    pairs = {}
    for path, names in _REPLACED.items():
        module = importlib.import_module(path)
        for name, ours in names.items():
            theirs = getattr(module, name)
            pairs[id(theirs)] = (theirs, getattr(importlib.import_module(ours), name))
            _originals[path, name] = theirs
    return pairs


def _shown_copy(name: str) -> dict[int, tuple[Any, Any]]:
    """Puts a copy of a module in its place; returns the pair."""
    theirs = sys.modules[name]
    copy = types.ModuleType(name, theirs.__doc__)
    copy.__dict__.update(theirs.__dict__)
    sys.modules[name] = copy
    _undo.append(lambda: sys.modules.__setitem__(name, theirs))
    return {id(theirs): (theirs, copy)}


def _modules_of_programs() -> list[Any]:
    """Those whose names are replaced: the front of PyTorch, its test helpers, and everything that is not PyTorch."""
    found = []
    for name, module in list(sys.modules.items()):
        inside = name == "torch" or name.startswith("torch.")
        ours = name == "intarsia" or name.startswith("intarsia.")
        if module is None or ours or (inside and name not in _FRONT and not name.startswith("torch.testing._internal")):
            continue
        found.append(module)
    return found


def _rebind(module: Any, pairs: dict[int, tuple[Any, Any]]) -> None:
    names = getattr(module, "__dict__", None)
    if not isinstance(names, dict):
        return
    for name, value in list(names.items()):
        theirs, ours = pairs.get(id(value), (None, None))
        if theirs is value and theirs is not None:
            names[name] = ours
            _undo.append(lambda names=names, name=name, theirs=theirs: names.__setitem__(name, theirs))  # type: ignore[misc]


_DROPOUTS = ("alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


def _refuse_dropout_of_pending() -> None:
    """PyTorch's DTensor takes no pending reduction into dropout, and programs count on the error. Ours would."""
    import torch.nn.functional as functional

    for name in _DROPOUTS:
        theirs = getattr(functional, name)
        setattr(functional, name, _settled_only(theirs))
        _undo.append(lambda name=name, theirs=theirs: setattr(functional, name, theirs))  # type: ignore[misc]


def _refuse_writes_to_pending() -> None:
    """An in-place op that cannot leave a reduction pending is an error of PyTorch's DTensor. Ours would reduce first."""
    from . import _core

    _core.set_pending_writes(_core.PendingWrites.error)
    _undo.append(lambda: _core.set_pending_writes(_core.PendingWrites.settle))


def _follow_first_generator() -> None:
    """Programs for PyTorch's DTensor may seed each rank differently: there, a mesh takes its seed from the first rank."""
    from . import _core

    _core.set_generators(_core.Generators.follow)
    _undo.append(lambda: _core.set_generators(_core.Generators.compare))


def _lay_out_as(layouts: str) -> None:
    from . import _core

    if layouts == "pytorch":
        from . import _guide, _strategies

        _order_placements()
        _strategies.follow(_undo)
        _strategies.see_custom_ops(_undo)
        _core.set_guide(_guide.advise)
        _undo.append(lambda: _core.set_guide(None))


def _order_placements() -> None:
    """PyTorch's rules keep placements in sets, and the order of these decides between equal costs.

    The hash of a Partial is that of a text, which is another one in every process: ranks would choose differently.
    """
    from torch.distributed.tensor.placement_types import Partial

    theirs = Partial.__hash__
    Partial.__hash__ = lambda self: 1 + zlib.crc32(self.reduce_op.encode())
    _undo.append(lambda: setattr(Partial, "__hash__", theirs))


def _settled_only(dropout: Callable[..., Any]) -> Callable[..., Any]:
    from ._tensor import DTensor

    @functools.wraps(dropout)
    def checked(input: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(input, DTensor) and any(p.is_partial() for p in input.placements):
            raise RuntimeError(
                f"[{dropout.__name__}] {input.placements}: dropout of a pending reduction is not supported. "
                "Redistribute to Replicate or Shard first."
            )
        return dropout(input, *args, **kwargs)

    return checked


def _show_to_optimizers() -> None:
    """Programs ask whether DTensor is among the types that optimizers take in lists."""
    from torch.optim.optimizer import _foreach_supported_types as known

    from ._tensor import DTensor

    known.append(DTensor)
    _undo.append(lambda: known.remove(DTensor))


class _InstallsOnArrival:
    """Installs Intarsia in the process that unpickles it."""

    def __init__(self, layouts: str) -> None:
        self._layouts = layouts

    def __reduce__(self) -> Any:
        return (exec, (f"import sys; sys.path[:] = {sys.path!r}; import intarsia; intarsia.install({self._layouts!r})",))


def _teach_children(layouts: str) -> None:
    """A process that is spawned gets a parcel before it imports the program; one that is forked has all of this."""
    theirs = _spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {"intarsia": _InstallsOnArrival(layouts), **theirs(name)}

    _spawn.get_preparation_data = get_preparation_data
    _undo.append(lambda: setattr(_spawn, "get_preparation_data", theirs))
