"""fully_shard: parameters, gradients and optimizer states in shards, on the C++ engine, under PyTorch's names."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, DataParallelMeshDims, MixedPrecisionPolicy, OffloadPolicy
from torch.utils._pytree import tree_map_only

from . import _core
from ._mesh import core_mesh
from ._wrapped_module import (
    ATTRIBUTE,
    WrappedModule,
    check_applied_once,
    check_runs,
    free_parameters,
    keep_hooks,
    own_class,
    state_of,
    whole_world,
)


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
        keep_hooks(parameter for _, parameter in parameters)
        buffers = [buffer for module in self.modules for buffer in module.named_buffers()]
        self.made = _core.ShardGroup(
            id(self.modules[0]), self.name, core_mesh(self.mesh), parameters, buffers, [dim for *_, dim in self.places],
            *self.reshards, self.policy.param_dtype, self.policy.reduce_dtype, True,
        )
        self.made.set_root(self.is_root)

    def become_inner(self, path: str) -> None:
        self.is_root, self.name = False, path
        if self.made is not None:
            self.made.set_root(False)
            self.made.set_name(path)


class _Sharding:
    """What fully_shard knows of a module."""

    def __init__(self, module: nn.Module, shared: "_Group | None", policy: MixedPrecisionPolicy) -> None:
        self.module, self.shared, self.policy = module, shared, policy

    @property
    def group(self) -> "_core.ShardGroup | None":
        """None where other calls have taken all parameters."""
        return None if self.shared is None else self.shared.core()

    def taken(self) -> set[int]:
        return set() if self.shared is None else {id(owner._parameters[name]) for owner, name, *_ in self.shared.places}

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


class FSDPModule(WrappedModule):
    """What a module gets by :func:`fully_shard`."""

    def _sharding(self) -> _Sharding:
        return state_of(self, _Sharding)

    def _groups(self, recurse: bool) -> "list[_core.ShardGroup]":
        modules = self.modules() if recurse else (self,)
        states = [state_of(module, _Sharding) for module in modules]
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
    check_runs(modules, "fully_shard")
    for one in modules:
        check_applied_once(one, "fully_shard")
    _check_offered(offload_policy, dp_mesh_dims)
    mesh = _checked_mesh(mesh)
    reshards = _checked_reshard(reshard_after_forward, mesh)
    _name_inner(modules)
    group = _Group(modules, mesh, reshards, mp_policy)
    skipped = {id(parameter) for parameter in ignored_params or ()}
    for one in modules:
        prefix = f"{type(one).__name__}." if len(modules) > 1 else ""
        for full_name, parameter in free_parameters(one, skipped, prefix):
            path, _, name = full_name.removeprefix(prefix).rpartition(".")
            group.places.append((one.get_submodule(path), name, full_name, _shard_dim(full_name, parameter, shard_placement_fn)))
    if any(module._parameters[name].is_meta for module, name, *_ in group.places):
        group.lay_out_on_meta()
    elif group.places:
        group.core()
    for one in modules:
        state = one.__dict__[ATTRIBUTE] = _Sharding(one, group if group.places else None, mp_policy)
        state.hook()
        own_class(one, FSDPModule, "FSDP")
    return module


def _check_offered(offload_policy: OffloadPolicy, dp_mesh_dims: Any) -> None:
    if dp_mesh_dims is not None:
        raise NotImplementedError("[fully_shard] dp_mesh_dims is not there. Give the data-parallel axes of the mesh as `mesh`.")
    if not isinstance(offload_policy, (OffloadPolicy, CPUOffloadPolicy)):
        raise ValueError(f"[fully_shard] the offload policy is {offload_policy!r}. Parameters stay in CPU memory.")


def _checked_mesh(mesh: Any) -> Any:
    mesh = whole_world("fsdp") if mesh is None else mesh
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
            state = state_of(inner, _Sharding)
            if state is not None and state.shared is not None and state.shared.modules[0] is inner:
                state.shared.become_inner(path)


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Has a method do what forward does: gather before, free after."""
    state = state_of(module, _Sharding)
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


fully_shard.state = lambda module: state_of(module, _Sharding)
