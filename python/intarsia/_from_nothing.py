"""Functions of PyTorch that are written in Python and make plain tensors on their way.

What they make from numbers and shapes alone is the same on all ranks, so it is made on the mesh of their arguments, as the core
does for functions that are written in C++. A plain tensor of the caller's stays an error where it meets distributed ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import _core


def _on_their_mesh(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        tensors = [x for x in (*args, *options.values()) if isinstance(x, torch.Tensor)]
        if not any(map(_core.is_dtensor, tensors)):
            return function(*args, **options)
        with _core.FromNothingScope(tensors):
            return function(*args, **options)

    return wrapper


# Attention with a zero key, the causal mask that an encoder compares its mask with, and the loss in chunks.
nn.functional.multi_head_attention_forward = _on_their_mesh(nn.functional.multi_head_attention_forward)
nn.modules.transformer._detect_is_causal_mask = _on_their_mesh(nn.modules.transformer._detect_is_causal_mask)
nn.functional.linear_cross_entropy = _on_their_mesh(nn.functional.linear_cross_entropy)
torch.svd_lowrank = _on_their_mesh(torch.svd_lowrank)
torch.pca_lowrank = _on_their_mesh(torch.pca_lowrank)
