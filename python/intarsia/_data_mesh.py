"""The mesh of a call of fully_shard or replicate, and which of its axes belong to data parallelism."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import DataParallelMeshDims

from . import _core
from ._mesh import core_mesh
from ._tensor import DTensor


@dataclass(frozen=True)
class DataMesh:
    """A mesh that is data-parallel along all of its axes; with names, one of more axes, over which parameters are distributed."""

    mesh: Any
    copies: tuple[str, ...] = ()  # names of axes, which act as one
    shards: tuple[str, ...] = ()

    @property
    def is_named(self) -> bool:
        return bool(self.copies or self.shards)

    @property
    def is_replicated(self) -> bool:
        return self.is_named and not self.shards

    @property
    def has_copies(self) -> bool:
        return bool(self.copies and self.shards) if self.is_named else self.mesh.ndim == 2

    @property
    def shard_count(self) -> int:
        if not self.is_named:
            return self.mesh.size(self.mesh.ndim - 1)
        return torch.Size(self.mesh.size(self.mesh.mesh_dim_names.index(name)) for name in self.shards).numel()

    def core(self) -> "_core.Mesh":
        made = core_mesh(self.mesh)
        return _core.data_mesh(made, list(self.copies), list(self.shards)) if self.is_named else made

    def group_of_shards(self) -> Any:
        """PyTorch's process group of the ranks that share a parameter."""
        if not self.is_named:
            return self.mesh.get_group(self.mesh.ndim - 1)
        if len(self.shards) == 1:
            return self.mesh.get_group(self.shards[0])
        return self.mesh[self.shards]._flatten("_".join(self.shards)).get_group()

    def check(self, name: str, parameter: torch.Tensor) -> None:
        """A parameter must be on the mesh, replicated along the axes of data parallelism."""
        if not self.is_named:
            return
        if not isinstance(parameter, DTensor):
            raise ValueError(
                "When dp_mesh_dims is provided, all parameters must be DTensors on the full SPMD mesh (e.g. via "
                f"distribute_module). Got plain tensor for parameter '{name}'."
            )
        if core_mesh(parameter.device_mesh).id != core_mesh(self.mesh).id:
            raise ValueError(
                "Expected param's DTensor mesh to be the same mesh passed to fully_shard, but got different mesh objects: "
                f"'{name}' is on {parameter.device_mesh}, the mesh is {self.mesh}."
            )
        for kind, names in (("shard", self.shards), ("replicate", self.copies)):
            for axis in names:
                index = self.mesh.mesh_dim_names.index(axis)
                placement = parameter.placements[index]
                if not placement.is_replicate():
                    raise ValueError(f"Expected Replicate() on DP {kind} dim '{axis}' (index {index}) but got {placement}")

    def holds(self, parameter: torch.Tensor, placements: tuple) -> bool:
        """Whether it is on the mesh with these placements, except for the axes of data parallelism."""
        if not isinstance(parameter, DTensor) or core_mesh(parameter.device_mesh).id != core_mesh(self.mesh).id:
            return False
        named = zip(self.mesh.mesh_dim_names, parameter.placements, placements)
        return all(axis in self.copies + self.shards or own == wanted for axis, own, wanted in named)


def named_axes(mesh: Any, dims: DataParallelMeshDims) -> DataMesh:
    """Of PyTorch's ``dp_mesh_dims``, which name axes of the mesh."""
    copies, shards = dims.replicate_names, dims.shard_names
    if not copies and not shards:
        raise ValueError("At least one of shard or replicate must be set in dp_mesh_dims")
    if mesh.mesh_dim_names is None:
        raise ValueError("mesh must have mesh_dim_names when dp_mesh_dims is provided")
    for name in (*shards, *copies):
        if name not in mesh.mesh_dim_names:
            raise ValueError(f"Mesh dim name '{name}' not found in mesh.mesh_dim_names {mesh.mesh_dim_names}")
    if len({*copies, *shards}) < len(copies) + len(shards):
        raise ValueError(f"[fully_shard] an axis is named twice in {dims}. Each may be one of copies or of shards.")
    for names in (copies, shards):
        if list(names) != sorted(names, key=mesh.mesh_dim_names.index):
            raise KeyError(f"Invalid mesh_dim_names {names} specified. Mesh dim indices should be in ascending order.")
    return DataMesh(mesh, copies, shards)
