"""replicate: a model on every rank, whose gradients are averaged in buckets, on the C++ engine, under PyTorch's names."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import _core
from ._mesh import core_mesh
from ._wrapped_module import (
    ATTRIBUTE,
    WrappedModule,
    check_applied_once,
    check_runs,
    free_parameters,
    keep_hooks,
    note_in_registry,
    own_class,
    state_of,
    whole_world,
)


class _Replication:
    """What replicate knows of a module."""

    function = "replicate"

    def __init__(self, reducer: "_core.Reducer", device_ids: "list | None") -> None:
        self.reducer, self.device_ids = reducer, device_ids

    def taken(self) -> set[int]:
        return set()  # the core knows them

    def _ddp_weakref(self) -> "_Replication":  # where PyTorch keeps what has device_ids
        return self


class ReplicatedModule(WrappedModule):
    """What a module gets by :func:`replicate`."""

    def _reducers(self) -> "list[_core.Reducer]":
        states = [state_of(module, _Replication) for module in self.modules()]
        return [state.reducer for state in states if state is not None]

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Whether backward passes average gradients. Without, they add up, and the next pass with it averages all."""
        for reducer in self._reducers():
            reducer.set_syncs(requires_gradient_sync)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside average nothing."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)

    def register_comm_hook(self, state: Any, hook: Callable) -> None:
        """``hook(state, bucket)`` returns a future of the averaged bucket, as DDP's."""
        for reducer in self._reducers():
            reducer.set_comm_hook(functools.partial(_run_comm_hook, state, hook))


class _Bucket:
    """What a communication hook gets: gradients side by side."""

    def __init__(self, buffer: torch.Tensor, index: int, is_last: bool, names: list[str]) -> None:
        self._buffer, self._index, self._is_last, self._names = buffer, index, is_last, names

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self._buffer = tensor

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last

    def parameter_names(self) -> list[str]:
        return self._names


def _run_comm_hook(
    state: Any, hook: Callable, values: list[torch.Tensor], index: int, is_last: bool, names: list[str]
) -> Callable:
    whole = values[0] if len(values) == 1 else _core.per_rank(values)
    future = hook(state, _Bucket(whole, index, is_last, names))

    def finish() -> None:
        result = future.wait()
        result = result[0] if isinstance(result, (list, tuple)) else result
        parts = [result] if len(values) == 1 else _core.values_of(result)
        for value, part in zip(values, parts):
            if part.data_ptr() != value.data_ptr():
                value.copy_(part.view_as(value))

    return finish


_DEFAULTS = {  # of DDP, that the engine has
    "bucket_cap_mb": None,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "broadcast_buffers": True,
    "init_sync": True,
}
_IGNORED = {"dim": 0, "check_reduction": False, "output_device": None, "skip_all_reduce_unused_params": False}


def replicate(module: nn.Module, ignored_modules: "Iterable[nn.Module] | None" = None, **kwargs: Any) -> nn.Module:
    """Keeps the whole model on every rank and averages gradients in backward, in buckets; in place.

    ``kwargs`` are DDP's: bucket_cap_mb, find_unused_parameters, gradient_as_bucket_view, static_graph, broadcast_buffers,
    init_sync, device_mesh or process_group, device_id.
    """
    check_runs([module], "replicate")
    check_applied_once(module, "replicate")
    device_ids = _checked_device(kwargs)
    mesh = _replicate_mesh(kwargs)
    options = {name: kwargs.pop(name, default) for name, default in _DEFAULTS.items()}
    for name, default in _IGNORED.items():
        if kwargs.pop(name, default) != default:
            raise NotImplementedError(f"[replicate] {name} is not there.")
    if kwargs:
        raise TypeError(f"[replicate] got unexpected arguments: {', '.join(kwargs)}.")
    skipped = {id(tensor) for one in ignored_modules or () for tensor in (*one.parameters(), *one.buffers())}
    parameters = free_parameters(module, skipped)
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
        )
    buffers = [(name, buffer) for name, buffer in module.named_buffers() if id(buffer) not in skipped]
    keep_hooks(parameter for _, parameter in parameters)
    cap = 25 if options["bucket_cap_mb"] is None else options["bucket_cap_mb"]
    reducer = _core.Reducer(
        id(module), type(module).__name__, core_mesh(mesh), parameters, buffers, min(1, cap), cap,
        options["gradient_as_bucket_view"], options["find_unused_parameters"], options["static_graph"],
        options["broadcast_buffers"], options["init_sync"],
    )
    module.__dict__[ATTRIBUTE] = _Replication(reducer, device_ids)
    note_in_registry(module, "replicate")
    own_class(module, ReplicatedModule, "DDP")
    return module


def _checked_device(kwargs: dict) -> "list | None":
    device = kwargs.pop("device_id", None)
    if device is not None and not isinstance(device, (int, torch.device)):
        raise RuntimeError(f"Expected device_id to be int or torch.device, but got {type(device)}")
    if kwargs.pop("device_ids", None) is not None or isinstance(device, int) or (device is not None and device.type != "cpu"):
        raise NotImplementedError("[replicate] tensors lie in CPU memory: give no device, or torch.device('cpu').")
    return None


def _replicate_mesh(kwargs: dict) -> Any:
    mesh, group = kwargs.pop("device_mesh", None), kwargs.pop("process_group", None)
    if mesh is not None and group is not None:
        raise RuntimeError("[replicate] cannot specify both process_group and device_mesh.")
    if group is not None:
        return dist.device_mesh.DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    return whole_world("dp") if mesh is None else mesh


replicate.state = lambda module: state_of(module, _Replication)
