"""Functions of PyTorch that are written in Python and create plain tensors internally.

What they create from numbers and shapes alone is the same on all ranks, so it is created on the mesh of their arguments, as the
core does for functions that are written in C++. A plain tensor of the caller is still an error where it meets distributed ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.masked
from torch import nn

from . import _core


def _on_their_mesh(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # distributed tensors are not traced
            return function(*args, **options)
        tensors = [_inside(x) for x in (*args, *options.values()) if isinstance(x, torch.Tensor)]
        if not any(map(_core.is_dtensor, tensors)):
            return function(*args, **options)
        with _core.FactoryScope(tensors):
            return function(*args, **options)

    return wrapper


def _whole_loss(function: Callable) -> Callable:
    """Chunks are there to save memory, and are cut from plain tensors. The parts of a distributed tensor are small already."""

    @functools.wraps(function)
    def wrapper(*args: Any, options: Any = None, **others: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, options=options, **others)
        if any(isinstance(x, torch.Tensor) and _core.is_dtensor(x) for x in (*args, *others.values())):
            options = None
        return function(*args, options=options, **others)

    return wrapper


def _over_batches(function: Callable) -> Callable:
    """Under vmap, functorch's rule for the function makes tensors: they are on the mesh of those inside the batches."""
    batched = _on_their_mesh(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return (function if torch._C._functorch.maybe_current_level() is None else batched)(*args, **options)

    return wrapper


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


# Attention with a zero key, and the causal mask that an encoder compares its mask with.
nn.functional.multi_head_attention_forward = _on_their_mesh(nn.functional.multi_head_attention_forward)
nn.modules.transformer._detect_is_causal_mask = _on_their_mesh(nn.modules.transformer._detect_is_causal_mask)
nn.functional.embedding = _over_batches(nn.functional.embedding)
# Offsets of bags of one size.
nn.functional.embedding_bag = _on_their_mesh(nn.functional.embedding_bag)
nn.functional.linear_cross_entropy = _whole_loss(nn.functional.linear_cross_entropy)
for _name in ("svd_lowrank", "pca_lowrank", "lobpcg", "unravel_index"):
    setattr(torch, _name, _on_their_mesh(getattr(torch, _name)))
for _name in torch.masked.__all__:  # masks of ones, identities of reductions
    if getattr(torch.masked, _name).__module__ == "torch.masked._ops":
        setattr(torch.masked, _name, _on_their_mesh(getattr(torch.masked, _name)))
