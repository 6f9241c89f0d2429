"""PyTorch's newer replicate (of replicate_with_fsdp): the methods of fully_shard on a model that is whole on every rank."""

from typing import Any

from torch import nn
from torch.distributed.fsdp import DataParallelMeshDims, MixedPrecisionPolicy, OffloadPolicy

from ._data_mesh import DataMesh, named_axes
from ._fsdp_module import FSDPModule
from ._fully_shard import check_device, check_offered, checked_modules, wrap
from ._shard_groups import Group, Sharding
from ._wrapped_module import own_class, state_of, whole_world


class ReplicateModule(FSDPModule):
    """What a module gets by this :func:`replicate`."""


class _Replicating(Sharding):
    function = "replicate"


def replicate(
    module: Any,
    *,
    mesh: Any = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: "set[nn.Parameter] | None" = None,
    dp_mesh_dims: "DataParallelMeshDims | None" = None,
) -> Any:
    """Keeps the whole model on every rank and averages gradients, one message for each call; in place.

    At rest parameters, gradients and optimizer states are distributed tensors, ``[Replicate()]``. With ``dp_mesh_dims``, which name
    the axes of copies, the mesh may have others, and parameters and activations are distributed over all of it.
    """
    modules = checked_modules(module, "replicate")
    check_offered("replicate", offload_policy)
    data_mesh = _checked_mesh(whole_world("replicate") if mesh is None else mesh, dp_mesh_dims)

    def place(name: str, parameter: Any) -> tuple:
        check_device("replicate", name, parameter)
        data_mesh.check(name, parameter)
        return None, data_mesh

    wrap(modules, lambda mesh: Group(modules, mesh, (False, None), mp_policy, True), place, mp_policy, ignored_params, _Replicating)
    for one in modules:
        own_class(one, ReplicateModule, "Replicate")
    return module


def _checked_mesh(mesh: Any, dims: "DataParallelMeshDims | None") -> DataMesh:
    if dims is not None:
        named = named_axes(mesh, dims)
        if not named.is_replicated:
            raise ValueError(
                "replicate() with dp_mesh_dims requires replicate-only dims (no shard dims). Use fully_shard() for sharding."
            )
        return named
    if mesh.ndim != 1:
        raise ValueError(f"replicate expects a 1D DeviceMesh but got {mesh}")
    return DataMesh(mesh)


replicate.state = lambda module: state_of(module, _Replicating)
