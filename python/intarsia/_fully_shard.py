"""fully_shard: parameters, gradients and optimizer states in shards, on the C++ engine, under PyTorch's names."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, DataParallelMeshDims, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult

from ._data_mesh import DataMesh, named_axes
from ._fsdp_module import FSDPModule
from ._shard_groups import Group, Sharding, find_late, name_inner
from ._wrapped_module import (
    check_applied_once,
    check_runs,
    free_parameters,
    keep_state,
    note_in_registry,
    own_class,
    state_of,
    whole_world,
)


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

    Each call makes a group of the parameters that are in none yet: one gather, one reduction. The mesh has one axis, or two
    (copies along the first, shards along the second). Parameters are taken from the first rank. With ``dp_mesh_dims``, which name
    these axes, the mesh may have others, and parameters and activations are distributed over all of it.
    """
    modules = checked_modules(module, "fully_shard")
    check_offered("fully_shard", offload_policy)
    mesh = _checked_mesh(mesh, dp_mesh_dims)
    _checked_reshard(reshard_after_forward, mesh)

    def group_on(mesh: DataMesh) -> Group:
        return Group(modules, mesh, _checked_reshard(reshard_after_forward, mesh), mp_policy, mesh.is_replicated)

    def place(name: str, parameter: torch.Tensor) -> tuple:
        return _placement(name, parameter, shard_placement_fn, mesh)

    wrap(modules, group_on, place, mp_policy, ignored_params, Sharding)
    for one in modules:
        own_class(one, FSDPModule, "FSDP")
    return module


def checked_modules(module: Any, function: str) -> list[nn.Module]:
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    if not modules:
        raise ValueError(f"[{function}] the list of modules is empty. Give at least one.")
    check_runs(modules, function)
    for one in modules:
        check_applied_once(one, function)
    return modules


def wrap(
    modules: list[nn.Module],
    group_on: Callable,
    place: Callable,
    policy: MixedPrecisionPolicy,
    ignored: "set[nn.Parameter] | None",
    kind: type,
) -> None:
    """Makes the groups of a call, one per mesh. ``place(name, parameter)`` returns the sharded dim and the mesh."""
    name_inner(modules)
    groups: dict[DataMesh, Group] = {}
    skipped = {id(parameter) for parameter in ignored or ()}
    for number, one in enumerate(modules):
        prefix = f"{type(one).__name__}[{number}]." if len(modules) > 1 else ""
        for full_name, parameter in free_parameters(one, skipped, prefix):
            path, _, name = full_name.removeprefix(prefix).rpartition(".")
            dim, mesh = place(full_name, parameter)
            if mesh not in groups:
                groups[mesh] = group_on(mesh)
            groups[mesh].places.append((one.get_submodule(path), name, full_name, dim))
            if mesh.is_named:
                groups[mesh].given.append(parameter.placements)
    find_ties(modules, groups.values())
    for group in groups.values():
        if any(module._parameters[name].is_meta for module, name, *_ in group.places):
            group.lay_out_on_meta()
        else:
            group.core()
    for group in list(groups.values())[:1]:
        group.set("set_find_late", find_late(modules))
    for one in modules:
        state = kind(one, list(groups.values()), policy)
        keep_state(one, state)
        state.hook()
        note_in_registry(one, kind.function)


def find_ties(modules: list[nn.Module], groups: "Iterable[Group]") -> None:
    """Where else, in the modules of a call, its parameters are."""
    found = {id(owner._parameters[name]): (group, n) for group in groups for n, (owner, name, *_) in enumerate(group.places)}
    for inner in {inner for module in modules for inner in module.modules()}:
        for name, parameter in inner._parameters.items():
            group, place = found.get(id(parameter), (None, 0))
            if group is not None and group.places[place][:2] != (inner, name):
                group.ties.append((inner, name, place))


def check_offered(function: str, offload_policy: OffloadPolicy) -> None:
    if not isinstance(offload_policy, (OffloadPolicy, CPUOffloadPolicy)):
        raise ValueError(f"[{function}] the offload policy is {offload_policy!r}. Parameters stay in CPU memory.")


def _checked_mesh(mesh: Any, dims: "DataParallelMeshDims | None" = None) -> DataMesh:
    mesh = whole_world() if mesh is None else mesh
    if dims is not None:
        return named_axes(mesh, dims)
    if mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        raise AssertionError("Please init the 2D mesh for HSDP with mesh_dim_names specified")
    return DataMesh(mesh)


def _checked_reshard(given: Any, mesh: DataMesh) -> "tuple[bool | None, int | None]":
    """Whether to free the whole after forward, and how many ranks keep it together."""
    if mesh.is_replicated:
        return False, None
    if given is None or isinstance(given, bool):
        return given, None
    size = mesh.shard_count
    if mesh.is_named and isinstance(given, int):
        raise NotImplementedError("reshard_after_forward as int is not yet supported with SPMD mesh (dp_mesh_dims)")
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


def _placement(name: str, parameter: torch.Tensor, placement_fn: "Callable | None", mesh: DataMesh) -> "tuple[int | None, DataMesh]":
    """The dim that is cut, and the mesh."""
    check_device("fully_shard", name, parameter)
    placement = placement_fn(parameter) if placement_fn is not None else None
    if isinstance(placement, ShardPlacementResult):
        info, placement = placement.mesh_info, placement.placement
        mesh = _checked_mesh(info.spmd_mesh if info.is_spmd_mesh else info.mesh, info.dp_mesh_dims)
    mesh.check(name, parameter)
    if mesh.is_replicated:
        return None, mesh
    if placement is None:
        return (0 if parameter.ndim else None), mesh
    if not hasattr(placement, "is_shard") or not placement.is_shard():
        raise ValueError(f"Invalid shard_placement_fn result: {placement}. Return Shard(dim), a ShardPlacementResult or None.")
    dim = placement.dim + parameter.ndim if placement.dim < 0 else placement.dim
    if not 0 <= dim < parameter.ndim:
        raise AssertionError(f"Shard dim {placement.dim} is invalid for {parameter.ndim}D tensor: {parameter.shape}")
    return dim, mesh


def check_device(function: str, name: str, parameter: torch.Tensor) -> None:
    if parameter.device.type not in ("cpu", "meta"):
        raise NotImplementedError(f'[{function}] "{name}" is on {parameter.device}. Parameters must be in CPU memory.')


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Has a method do what forward does: gather before, free after."""
    state = state_of(module, Sharding)
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


fully_shard.state = lambda module: state_of(module, Sharding)
