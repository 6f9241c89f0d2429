"""replicate: a model on every rank, whose gradients are averaged in buckets, on the C++ engine, under PyTorch's names."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import _core
from ._mesh import core_mesh
from ._wrapped_module import (
    Registrations,
    WrappedModule,
    check_applied_once,
    check_runs,
    free_parameters,
    keep_hooks,
    keep_state,
    note_in_registry,
    own_class,
    set_data_scope,
    state_of,
    whole_world,
)


class _Replication:
    """What replicate knows of a module. The core's reducer is made at once; under the drop-in, in the first forward."""

    function = "replicate"

    def __init__(self, module: nn.Module, mesh: Any, names: list[str], make: Callable, device_ids: "list | None") -> None:
        self._module, self.mesh, self._names, self._make, self.device_ids = module, mesh, names, make, device_ids
        self._made: _core.Reducer | None = None
        self._settings: dict[str, tuple] = {}  # of the reducer

    def taken(self) -> set[int]:
        if self._made is not None:
            return set()  # the core knows them
        return self.holds()

    def holds(self) -> set[int]:
        now = dict(self._module.named_parameters(remove_duplicate=False))
        return {id(now[name]) for name in self._names if name in now}

    def refusal(self, function: str, mesh: Any) -> str:
        """Why parallelize_module may not shard the parameters: each rank holds the whole along the axis of replicate."""
        if function != "parallelize_module" or len({*self.mesh.mesh.flatten().tolist()} & {*mesh.mesh.flatten().tolist()}) < 2:
            return ""
        return (
            f"replicated over the same ranks, on {self.mesh}. Parallelize it over another axis of a mesh, such as mesh['tp'] beside "
            "replicate on mesh['dp'], or leave it out of replicate with ignored_modules."
        )

    def make(self, *_: Any) -> None:
        if self._made is not None:
            return
        parameters = [(name, self._module.get_parameter(name)) for name in self._names]
        keep_hooks(parameter for _, parameter in parameters)
        self._made = self._make(parameters)
        for setting, values in self._settings.items():
            getattr(self._made, setting)(*values)

    def set(self, setting: str, *values: Any) -> None:
        """Calls a method of the reducer, now or when it is made."""
        self._settings[setting] = values
        if self._made is not None:
            getattr(self._made, setting)(*values)

    def _ddp_weakref(self) -> "_Replication":  # where PyTorch keeps what has device_ids
        return self


class ReplicatedModule(WrappedModule):
    """The class that :func:`replicate` gives a module."""

    def _set(self, setting: str, *values: Any) -> None:
        states = [state_of(module, _Replication) for module in self.modules()]
        for state in states:
            if state is not None:
                state.set(setting, *values)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Whether backward passes average gradients. Without, they add up, and the next pass with it averages all."""
        self._set("set_syncs", requires_gradient_sync)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside average nothing."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        with set_data_scope():
            return super()._apply(*args, **kwargs)  # type: ignore[misc]

    def register_comm_hook(self, state: Any, hook: Callable) -> None:
        """``hook(state, bucket)`` returns a future of the averaged bucket, as DDP's."""
        self._set("set_comm_hook", functools.partial(_run_comm_hook, state, hook))


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
    init_sync, device_mesh or process_group, device_id. Parameters are taken from the first rank: at once, or under the
    drop-in, as PyTorch does it, in the first forward.
    """
    from ._dropin import installed

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
    ignored = list(ignored_modules or ())
    parameters = free_parameters(module, {id(parameter) for one in ignored for parameter in one.parameters()})
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
        )

    plain_name = type(module).__name__

    def make(parameters: list) -> "_core.Reducer":
        left_out = {id(buffer) for one in ignored for buffer in one.buffers()}
        buffers = [(name, buffer) for name, buffer in module.named_buffers() if id(buffer) not in left_out]
        cap = 25 if options["bucket_cap_mb"] is None else options["bucket_cap_mb"]
        return _core.Reducer(
            id(module), plain_name, core_mesh(mesh), parameters, buffers, min(1, cap), cap,
            options["gradient_as_bucket_view"], options["find_unused_parameters"], options["static_graph"],
            options["broadcast_buffers"], options["init_sync"], _late_parameters(module, list(ignored_modules or ())),
        )

    state = _Replication(module, mesh, [name for name, _ in parameters], make, device_ids)
    if installed():
        module.register_forward_pre_hook(state.make, prepend=True)
    else:
        state.make()
    keep_state(module, state)
    note_in_registry(module, "replicate")
    own_class(module, ReplicatedModule, "DDP")
    return module


def _late_parameters(module: nn.Module, ignored_modules: list[nn.Module]) -> Callable[[], list[str]]:
    """A function that names parameters whose gradients are not averaged, because they were registered after replicate."""
    Registrations.watch()
    root, ignored = weakref.ref(module), [weakref.ref(one) for one in ignored_modules]
    searched = -1

    def find() -> list[str]:
        nonlocal searched
        found = root()
        if found is None or searched == Registrations.count:
            return []
        skipped = {id(tensor) for one in ignored if one() is not None for tensor in one().parameters()}
        late = [item for item in found.named_parameters() if id(item[1]) not in skipped and not _core.is_watched(item[1])]
        if not late:
            searched = Registrations.count
        return [name for name, parameter in late if parameter.requires_grad and parameter.grad is not None]

    return find


def _checked_device(kwargs: dict) -> "list | None":
    device = kwargs.pop("device_id", None)
    if device is not None and not isinstance(device, (int, torch.device)):
        raise RuntimeError(f"Expected device_id to be int or torch.device, but got {type(device)}")
    if kwargs.pop("device_ids", None) is not None or isinstance(device, int) or (device is not None and device.type != "cpu"):
        raise NotImplementedError("[replicate] tensors are in CPU memory: give no device, or torch.device('cpu').")
    return None


def _replicate_mesh(kwargs: dict) -> Any:
    mesh, group = kwargs.pop("device_mesh", None), kwargs.pop("process_group", None)
    if mesh is not None and group is not None:
        raise RuntimeError("[replicate] cannot specify both process_group and device_mesh.")
    if group is not None:
        return dist.device_mesh.DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    return whole_world("dp") if mesh is None else mesh


replicate.state = lambda module: state_of(module, _Replication)
