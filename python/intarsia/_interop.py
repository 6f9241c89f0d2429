"""Zero-copy conversions between our distributed tensors and PyTorch's."""

from typing import Any

import torch
import torch.utils._pytree as pytree

from . import _core
from ._mesh import core_mesh, python_mesh

_theirs: Any = None


def torch_dtensor_class() -> Any:
    """PyTorch's own DTensor, also while :func:`intarsia.install` has replaced it."""
    global _theirs
    if _theirs is None:
        import torch.distributed.tensor._api as api

        if _theirs is None:  # the import may have installed us, which asks here first
            _theirs = api.DTensor
    return _theirs


def to_torch(tensor: torch.Tensor) -> torch.Tensor:
    """PyTorch's own DTensor over the same memory. Anything else is returned as it is."""
    if not _core.is_dtensor(tensor):
        return tensor
    shards = _core.shards_of(tensor)
    if len(shards) != 1:
        raise RuntimeError("[to_torch] a simulation has a shard per rank, but PyTorch's DTensor holds one.")
    mesh, placements = python_mesh(_core.mesh_of(tensor)), _core.placements_of(tensor)
    made = pytorchs(shards[0].detach(), mesh, placements, tensor.shape, tensor.stride(), tensor.requires_grad)
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def pytorchs(local: torch.Tensor, mesh: Any, placements: Any, shape: Any, stride: Any, requires_grad: bool) -> torch.Tensor:
    """PyTorch's own DTensor around a local tensor."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(torch.Size(shape), tuple(stride), local.dtype)
    return torch_dtensor_class()(local, DTensorSpec(mesh, tuple(placements), tensor_meta=meta), requires_grad=requires_grad)


def from_torch(tensor: torch.Tensor) -> torch.Tensor:
    """Our distributed tensor over the memory of PyTorch's own. Anything else is returned as it is."""
    if not isinstance(tensor, torch_dtensor_class()):
        return tensor
    spec, local = tensor._spec, tensor._local_tensor.detach()
    mesh = core_mesh(spec.mesh)
    made = _core.from_local(local, mesh, spec.placements, False, list(tensor.shape), list(tensor.stride())).detach()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def tree_to_torch(tree: Any) -> Any:
    """:func:`to_torch` for every tensor of a nest of containers, such as a state dict."""
    return pytree.tree_map_only(torch.Tensor, to_torch, tree)


def tree_from_torch(tree: Any) -> Any:
    """:func:`from_torch` for every tensor of a nest of containers."""
    return pytree.tree_map_only(torch.Tensor, from_torch, tree)
