"""Calls of ops, as Python rules and guides see them."""

from typing import Any

import torch


def as_given(schema: Any, values: list) -> tuple[list, dict[str, Any]]:
    """Positional and keyword arguments as PyTorch hands them on: without those that are the defaults."""
    positional, named = [], {}
    for argument, value in zip(schema.arguments, values, strict=True):
        is_default = argument.has_default_value() and _same(value, argument.default_value)
        if not argument.kwarg_only:
            positional.append((value, is_default))
        elif not is_default:
            named[argument.name] = value
    while positional and positional[-1][1]:
        positional.pop()
    return [value for value, _ in positional], named


def _same(value: Any, default: Any) -> bool:
    return value is None if default is None else type(value) is type(default) and value == default


def tensors_of(schema: Any, values: list) -> list:
    """The tensor arguments of an op, lists flattened; None for a missing one."""
    found = []
    for argument, value in zip(schema.arguments, values, strict=True):
        kind = _inside(argument.type, torch.OptionalType)
        if isinstance(kind, torch.TensorType):
            found.append(value)
        elif isinstance(kind, torch.ListType) and isinstance(_inside(kind.getElementType(), torch.OptionalType), torch.TensorType):
            found.extend(value or ())
    return found


def _inside(kind: Any, wrapper: type) -> Any:
    return kind.getElementType() if isinstance(kind, wrapper) else kind
