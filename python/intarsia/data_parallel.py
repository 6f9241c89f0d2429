"""replicate and fully_shard: data parallelism on the C++ engine, under PyTorch's names."""

import contextlib
import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, DataParallelMeshDims, MixedPrecisionPolicy, OffloadPolicy
from torch.utils._pytree import tree_map_only

from . import _core
from ._mesh import core_mesh, current_world, init_device_mesh

__all__ = ["FSDPModule", "ReplicatedModule", "UnshardHandle", "fully_shard", "register_fsdp_forward_method", "replicate"]

_ATTRIBUTE = "_intarsia_data_parallel"  # of a module: its _Sharding or _Replication


def _state(module: nn.Module, kind: type) -> Any:
    found = module.__dict__.get(_ATTRIBUTE)
    return found if isinstance(found, kind) else None


def _whole_world(name: str) -> Any:
    return init_device_mesh("cpu", (current_world().size,), mesh_dim_names=(name,))


def _check_applied_once(module: nn.Module, function: str) -> None:
    if _ATTRIBUTE in module.__dict__:
        raise AssertionError(
            f"Each distinct composable distributed API can only be applied to a module once. {function} or another one has "
            f"already been applied to the following module:\n{module}"
        )


def _check_runs(modules: Iterable[nn.Module], function: str) -> None:
    for module in modules:
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
            raise ValueError(f"{function} does not support containers that do not implement forward: {module}")


def _keep_hooks(parameters: Iterable[torch.Tensor]) -> None:
    """The first ``register_hook`` on a leaf drops the hooks of the core, unless the dictionary is there already."""
    for parameter in parameters:
        if parameter.requires_grad and parameter._backward_hooks is None:
            parameter._backward_hooks = OrderedDict()


def _named(module: nn.Module, skipped: set[int], prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Parameters that nobody has taken yet, each once."""
    found = []
    for inner in module.modules():
        state = _state(inner, _Sharding)
        if state is not None and state.shared is not None:
            skipped |= {id(owner._parameters[name]) for owner, name, *_ in state.shared.places}
    for name, parameter in module.named_parameters():
        if id(parameter) not in skipped and not _core.is_watched(parameter):
            skipped.add(id(parameter))
            found.append((prefix + name, parameter))
    return found


def _own_class(module: nn.Module, base: type, prefix: str) -> None:
    """The module's class gets the methods of ``base``, under another name."""
    module.__class__ = _class_with(type(module), base, prefix)


@functools.cache
def _class_with(cls: type, base: type, prefix: str) -> type:
    return type(f"{prefix}{cls.__name__}", (base, cls), {"__deepcopy__": _refuse_deepcopy, "_plain_class": cls})


def _refuse_deepcopy(self: nn.Module, memo: Any) -> Any:
    raise AssertionError(
        f"{type(self).__name__} does not support deepcopy. Please use state dict for serialization: copy the plain module, and "
        "load a state dict into the copy."
    )


# --- fully_shard


class UnshardHandle:
    """A gathering that has been begun."""

    def wait(self) -> None:
        """The parameters are whole afterwards."""


class _Gathering(UnshardHandle):
    def __init__(self, group: "_core.ShardGroup | None") -> None:
        self._group = group

    def wait(self) -> None:
        if self._group is not None:
            self._group.unshard()
        self._group = None


class _Group:
    """The parameters of one call. The core's group is made at once, or for parameters on meta when it is first needed."""

    def __init__(self, modules: list[nn.Module], mesh: Any, reshards: tuple, policy: MixedPrecisionPolicy) -> None:
        self.modules, self.mesh, self.reshards, self.policy = modules, mesh, reshards, policy
        self.is_root, self.name = True, type(modules[0]).__name__
        self.made: "_core.ShardGroup | None" = None
        self.places: list[tuple[nn.Module, str, str, int | None]] = []  # module, name there, full name, dim

    def lay_out_on_meta(self) -> None:
        """Until there are values, a parameter is a distributed tensor without data, laid out as it will be."""
        from torch.distributed.tensor.placement_types import Replicate, Shard

        for module, name, _, dim in self.places:
            parameter = module._parameters[name]
            cut = Replicate() if dim is None else Shard(dim)
            made = _core.distribute_tensor(parameter.detach(), core_mesh(self.mesh), self._placements(cut, Replicate()), None)
            module._parameters[name] = nn.Parameter(made, parameter.requires_grad)

    def _placements(self, cut: Any, whole: Any) -> list:
        return [whole] * (self.mesh.ndim - 1) + [cut]

    def core(self) -> "_core.ShardGroup":
        if self.made is None:
            self._make()
        return self.made

    def _make(self) -> None:
        parameters = [(full_name, module._parameters[name]) for module, name, full_name, _ in self.places]
        missing = [name for name, parameter in parameters if parameter.is_meta]
        if missing:
            raise RuntimeError(
                "FSDP parameters should be materialized from meta device before training, but the following were still on meta "
                f"device: {missing}\nFor example, call module.to_empty(device) to materialize to device and call "
                "module.reset_parameters() on each module to initialize values."
            )
        were_shards = _core.is_dtensor(parameters[0][1]) and not _lies_elsewhere(parameters[0][1], self.mesh)
        if were_shards:
            for _, parameter in parameters:
                parameter.data = _core.full_tensor(parameter.detach(), None)
        _keep_hooks(parameter for _, parameter in parameters)
        buffers = [buffer for module in self.modules for buffer in module.named_buffers()]
        self.made = _core.ShardGroup(
            id(self.modules[0]), self.name, core_mesh(self.mesh), parameters, buffers, [dim for *_, dim in self.places],
            *self.reshards, self.policy.param_dtype, self.policy.reduce_dtype, not were_shards,
        )
        self.made.set_root(self.is_root)

    def become_inner(self, path: str) -> None:
        self.is_root, self.name = False, path
        if self.made is not None:
            self.made.set_root(False)
            self.made.set_name(path)


def _lies_elsewhere(parameter: torch.Tensor, mesh: Any) -> bool:
    """Whether a distributed parameter is one of tensor parallelism."""
    return _core.mesh_of(parameter).id != core_mesh(mesh).id


class _Sharding:
    """What fully_shard knows of a module."""

    def __init__(self, module: nn.Module, shared: "_Group | None", policy: MixedPrecisionPolicy) -> None:
        self.module, self.shared, self.policy = module, shared, policy

    @property
    def group(self) -> "_core.ShardGroup | None":
        """None where other calls have taken all parameters."""
        return None if self.shared is None else self.shared.core()

    def before(self, _: nn.Module, args: tuple, kwargs: dict) -> Any:
        if self.group is not None:
            self.group.need_whole()
            self.group.set_pinned(True)
        if self.policy.param_dtype is None or not self.policy.cast_forward_inputs:
            return args, kwargs
        return _cast((args, kwargs), self.policy.param_dtype)

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        if self.group is not None:
            self.group.set_pinned(False)
            if self.group.reshards_after_forward:
                self.group.reshard_after_forward()
        return output if self.policy.output_dtype is None else _cast(output, self.policy.output_dtype)

    def reshard(self, *_: Any) -> None:
        if self.shared is not None and self.shared.made is not None:
            self.shared.made.reshard()

    def hook(self) -> None:
        self.module.register_forward_pre_hook(self.before, prepend=True, with_kwargs=True)
        self.module.register_forward_hook(self.after, prepend=False)
        self.module.register_state_dict_pre_hook(self.reshard)
        self.module.register_load_state_dict_pre_hook(self.reshard)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, values)


class FSDPModule:
    """What a module gets by :func:`fully_shard`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Indexing a container makes a new one, of the plain class.
        plain = cls._plain_class
        made = plain.__new__(plain, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made

    def _sharding(self) -> _Sharding:
        return _state(self, _Sharding)

    def _groups(self, recurse: bool) -> "list[_core.ShardGroup]":
        modules = self.modules() if recurse else (self,)
        states = [_state(module, _Sharding) for module in modules]
        return [state.group for state in states if state is not None and state.group is not None]

    def unshard(self, async_op: bool = False) -> "UnshardHandle | None":
        """Gathers the parameters of this module; those of wrapped submodules stay as they are."""
        group = self._sharding().group
        if group is None:
            return _Gathering(None) if async_op else None
        if not async_op:
            return group.unshard()
        group.begin_unshard()
        return _Gathering(group)

    def reshard(self) -> None:
        """Frees the whole parameters."""
        self._sharding().reshard()

    def reset_iter_state(self) -> None:
        """Not needed: a step that failed leaves nothing behind."""

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Every backward pass ends with its gradients in place, so there is nothing to set."""

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Without, gradients of the whole add up on each rank, and the next backward pass with it reduces the sum."""
        for group in self._groups(recurse):
            group.set_syncs(requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """As :meth:`set_requires_gradient_sync`: what is not to be reduced over the copies stays on each rank."""
        self.set_requires_gradient_sync(requires_all_reduce, recurse=recurse)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether the whole is freed after forward and gathered again in backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for group in self._groups(recurse):
            group.set_reshard_after_forward(reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether the whole is freed after backward."""
        for group in self._groups(recurse):
            group.set_reshard_after_backward(reshard_after_backward)

    def set_modules_to_forward_prefetch(self, modules: "list[FSDPModule]") -> None:
        """Modules whose gathering begins when this one is gathered in forward."""
        self._set_prefetched(False, modules)

    def set_modules_to_backward_prefetch(self, modules: "list[FSDPModule]") -> None:
        """The same for backward."""
        self._set_prefetched(True, modules)

    def _set_prefetched(self, in_backward: bool, modules: "list[FSDPModule]") -> None:
        for module in modules:
            if not isinstance(module, FSDPModule):
                raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")
        groups = [group for module in modules for group in module._groups(False)]
        for group in self._groups(False):
            group.set_prefetched(in_backward, groups)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Gradients are the sum over all ranks divided by this instead of their number."""
        for group in self._groups(False):
            group.set_divide_factor(factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of :meth:`set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """Whether a parameter that gets no gradient counts as zeros."""
        for group in self._groups(recurse):
            group.set_unused_as_zeros(reduce_scatter_unused_params)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """The engine's sums have no other form."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Parameters are gathered when a formula of backward uses them, and only then."""

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Messages of the two directions do not wait for each other anyhow."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """The engine keeps two."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers)}")
        if max_input_buffers <= 0:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_OFFERED:
            raise NotImplementedError(f"[fully_shard] {name} is not there: messages are the engine's own.")
        return super().__getattr__(name)


_NOT_OFFERED = (
    "set_custom_all_gather set_custom_reduce_scatter set_all_reduce_hook set_post_optim_event "
    "set_allocate_memory_from_process_group_for_comm set_symm_mem_for_comm"
).split()


def fully_shard(
    module: Any,
    *,
    mesh: Any = None,
    reshard_after_forward: "bool | int | None" = None,
    shard_placement_fn: "Callable | None" = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: "set[nn.Parameter] | None" = None,
    dp_mesh_dims: "DataParallelMeshDims | None" = None,
) -> Any:
    """Keeps each parameter in shards, gathers it for use and reduces its gradient to shards; in place.

    Each call makes a group of the parameters that are in none yet: one gathering, one reduction. The mesh has one axis, or two
    (copies along the first, shards along the second). Parameters are taken from the first rank.
    """
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    if not modules:
        raise ValueError("[fully_shard] the list of modules is empty. Give at least one.")
    _check_runs(modules, "fully_shard")
    for one in modules:
        _check_applied_once(one, "fully_shard")
    _check_offered(offload_policy, dp_mesh_dims)
    mesh = _checked_mesh(mesh)
    reshards = _checked_reshard(reshard_after_forward, mesh)
    _name_inner(modules)
    group = _Group(modules, mesh, reshards, mp_policy)
    skipped = {id(parameter) for parameter in ignored_params or ()}
    for one in modules:
        prefix = f"{type(one).__name__}." if len(modules) > 1 else ""
        for full_name, parameter in _named(one, skipped, prefix):
            path, _, name = full_name.removeprefix(prefix).rpartition(".")
            group.places.append((one.get_submodule(path), name, full_name, _shard_dim(full_name, parameter, shard_placement_fn)))
    if any(module._parameters[name].is_meta for module, name, *_ in group.places):
        group.lay_out_on_meta()
    elif group.places:
        group.core()
    for one in modules:
        state = one.__dict__[_ATTRIBUTE] = _Sharding(one, group if group.places else None, mp_policy)
        state.hook()
        _own_class(one, FSDPModule, "FSDP")
    return module


def _check_offered(offload_policy: OffloadPolicy, dp_mesh_dims: Any) -> None:
    if dp_mesh_dims is not None:
        raise NotImplementedError("[fully_shard] dp_mesh_dims is not there. Give the data-parallel axes of the mesh as `mesh`.")
    if not isinstance(offload_policy, (OffloadPolicy, CPUOffloadPolicy)):
        raise ValueError(f"[fully_shard] the offload policy is {offload_policy!r}. Parameters stay in CPU memory.")


def _checked_mesh(mesh: Any) -> Any:
    mesh = _whole_world("fsdp") if mesh is None else mesh
    if mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        raise AssertionError("Please init the 2D mesh for HSDP with mesh_dim_names specified")
    return mesh


def _checked_reshard(given: Any, mesh: Any) -> "tuple[bool | None, int | None]":
    """Whether to free the whole after forward, and how many ranks keep it together."""
    if given is None or isinstance(given, bool):
        return given, None
    size = mesh.size(mesh.ndim - 1)
    if not isinstance(given, int):
        raise ValueError(
            f"reshard_after_forward should be a bool or an int representing the group size to reshard to, not {given}"
        )
    if given < 1 or size % given:
        raise ValueError(f"If passing reshard_after_forward as an int, it should be a factor of {size}, not {given}")
    if given == 1:
        warnings.warn("reshard_after_forward=1 means False: nothing is freed after forward.", stacklevel=3)
        return False, None
    return True, None if given == size else given


def _shard_dim(name: str, parameter: torch.Tensor, placement_fn: "Callable | None") -> "int | None":
    if parameter.device.type not in ("cpu", "meta"):
        raise NotImplementedError(f'[fully_shard] "{name}" is on {parameter.device}. Parameters must lie in CPU memory.')
    placement = placement_fn(parameter) if placement_fn is not None else None
    if placement is None:
        return 0 if parameter.ndim else None
    if not hasattr(placement, "is_shard") or not placement.is_shard():
        raise ValueError(f"Invalid shard_placement_fn result: {placement}. Return Shard(dim) or None.")
    dim = placement.dim + parameter.ndim if placement.dim < 0 else placement.dim
    if not 0 <= dim < parameter.ndim:
        raise AssertionError(f"Shard dim {placement.dim} is invalid for {parameter.ndim}D tensor: {parameter.shape}")
    return dim


def _name_inner(modules: list[nn.Module]) -> None:
    """Groups inside are not the outermost any more, and are known by their paths."""
    for module in modules:
        for path, inner in module.named_modules():
            state = _state(inner, _Sharding)
            if state is not None and state.shared is not None and state.shared.modules[0] is inner:
                state.shared.become_inner(path)


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Has a method do what forward does: gather before, free after."""
    state = _state(module, _Sharding)
    if state is None:
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    method = getattr(module, method_name)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = state.before(module, args, kwargs)
        return state.after(module, args, method(*args, **kwargs))

    setattr(module, method_name, wrapped)


# --- replicate


class _Replication:
    """What replicate knows of a module."""

    def __init__(self, reducer: "_core.Reducer", device_ids: "list | None") -> None:
        self.reducer, self.device_ids = reducer, device_ids

    def _ddp_weakref(self) -> "_Replication":  # where PyTorch keeps what has device_ids
        return self


class ReplicatedModule:
    """What a module gets by :func:`replicate`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        plain = cls._plain_class
        made = plain.__new__(plain, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made

    def _reducers(self) -> "list[_core.Reducer]":
        states = [_state(module, _Replication) for module in self.modules()]
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
    _check_runs([module], "replicate")
    if _state(module, _Sharding) is not None:
        raise RuntimeError("Cannot apply `replicate()` on a Module already managed by `fully_shard`")
    _check_applied_once(module, "replicate")
    device_ids = _checked_device(kwargs)
    mesh = _replicate_mesh(kwargs)
    options = {name: kwargs.pop(name, default) for name, default in _DEFAULTS.items()}
    for name, default in _IGNORED.items():
        if kwargs.pop(name, default) != default:
            raise NotImplementedError(f"[replicate] {name} is not there.")
    if kwargs:
        raise TypeError(f"[replicate] got unexpected arguments: {', '.join(kwargs)}.")
    skipped = {id(tensor) for one in ignored_modules or () for tensor in (*one.parameters(), *one.buffers())}
    parameters = _named(module, skipped)
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
        )
    buffers = [(name, buffer) for name, buffer in module.named_buffers() if id(buffer) not in skipped]
    _keep_hooks(parameter for _, parameter in parameters)
    cap = 25 if options["bucket_cap_mb"] is None else options["bucket_cap_mb"]
    reducer = _core.Reducer(
        id(module), type(module).__name__, core_mesh(mesh), parameters, buffers, min(1, cap), cap,
        options["gradient_as_bucket_view"], options["find_unused_parameters"], options["static_graph"],
        options["broadcast_buffers"], options["init_sync"],
    )
    module.__dict__[_ATTRIBUTE] = _Replication(reducer, device_ids)
    _own_class(module, ReplicatedModule, "DDP")
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
    return _whole_world("dp") if mesh is None else mesh


fully_shard.state = lambda module: _state(module, _Sharding)
replicate.state = lambda module: _state(module, _Replication)
