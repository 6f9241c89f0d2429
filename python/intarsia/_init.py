"""nn.init on distributed tensors. All but sparse_ are composed of ops that the core knows."""

import functools
from typing import Any

import torch
from torch import nn

from . import _core
from ._mesh import python_mesh
from ._tensor import distribute_tensor

_sparse = nn.init.sparse_


@functools.wraps(_sparse)
def sparse_(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """As PyTorch's, which writes to places that it draws as plain tensors. Rank 0 draws them for all."""
    if not _core.is_dtensor(tensor):
        return _sparse(tensor, *args, **options)
    whole = _sparse(torch.empty(tensor.shape, dtype=tensor.dtype), *args, **options)
    with torch.no_grad():
        return tensor.copy_(distribute_tensor(whole, python_mesh(_core.mesh_of(tensor)), tensor.placements))


nn.init.sparse_ = sparse_
