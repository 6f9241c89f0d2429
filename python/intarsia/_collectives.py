"""Collectives between simulated ranks: what each rank gets from the values of all.

``values`` holds one tensor per rank of the world, ``lines`` the ranks that communicate with each other; on a mesh every rank
has one line along an axis. Functions return one entry per rank; None for a rank that gets nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

Values = Sequence[torch.Tensor]
Lines = Sequence[Sequence[int]]

_OPS = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def op_name(op: Any) -> str:
    """The name of a reduction, given by its name or as PyTorch's ReduceOp."""
    if isinstance(op, str):
        name = op.lower()
    else:
        name = next((n for n in _OPS if op == getattr(ReduceOp, n.upper())), str(op))
    if name not in _OPS:
        raise NotImplementedError(f"[simulate] the reduction {op} is not simulated. There are {', '.join(_OPS)}.")
    return name


def _reduced(parts: Values, op: str) -> torch.Tensor:
    _check_alike(parts)
    parts = [part.clone() if part._is_zerotensor() else part for part in parts]  # zeros without memory get memory
    result = functools.reduce(_OPS[op], parts[1:], parts[0].clone())  # type: ignore[call-overload]
    if op != "avg":
        return result
    return torch.div(result, len(parts), rounding_mode=None if result.is_floating_point() or result.is_complex() else "trunc")


def _check_alike(parts: Values) -> None:
    for part in parts[1:]:
        if part.shape != parts[0].shape or part.dtype != parts[0].dtype:
            raise ValueError(
                f"[simulate] the ranks of a collective hold {_form(parts[0])} and {_form(part)}. They must be of one shape and dtype."
            )


def _form(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {list(tensor.shape)}, {tensor.dtype}"


def _along(lines: Lines, count: int, of_line: Callable[[Sequence[int]], Sequence[Any]]) -> list:
    """Puts the results of every line where its ranks are."""
    results: list = [None] * count
    for line in lines:
        for rank, result in zip(line, of_line(line)):
            results[rank] = result
    return results


def all_reduce(values: Values, lines: Lines, op: str) -> list:
    return _along(lines, len(values), lambda line: [_reduced([values[r] for r in line], op)] * len(line))


def reduce(values: Values, lines: Lines, op: str, root: int) -> list:
    def of_line(line: Sequence[int]) -> list:
        result = _reduced([values[r] for r in line], op)
        return [result if place == root else None for place in range(len(line))]

    return _along(lines, len(values), of_line)


def broadcast(values: Values, lines: Lines, root: int) -> list:
    return _along(lines, len(values), lambda line: [values[line[root]].clone()] * len(line))


def all_gather(values: Values, lines: Lines) -> list:
    """Each rank gets a list of the tensors of its line."""
    return _along(lines, len(values), lambda line: [[values[r].clone() for r in line]] * len(line))


def gather(values: Values, lines: Lines, root: int) -> list:
    def of_line(line: Sequence[int]) -> list:
        return [[values[r].clone() for r in line] if place == root else None for place in range(len(line))]

    return _along(lines, len(values), of_line)


def all_to_all(lists: Sequence[Values], lines: Lines) -> list:
    """Each rank gives a list with a tensor for every rank of its line, and gets one."""
    return _along(lines, len(lists), lambda line: [[lists[r][place].clone() for r in line] for place in range(len(line))])


def scatter(lists: Sequence[Values], lines: Lines, root: int) -> list:
    return _along(lines, len(lists), lambda line: [lists[line[root]][place].clone() for place in range(len(line))])


def reduce_scatter(lists: Sequence[Values], lines: Lines, op: str) -> list:
    """Each rank gives a list with a tensor for every rank of its line, and gets the reduction of those for it."""

    def of_line(line: Sequence[int]) -> list:
        return [_reduced([lists[r][place] for r in line], op) for place in range(len(line))]

    return _along(lines, len(lists), of_line)


def pieces(value: torch.Tensor, count: int, sizes: "Sequence[int] | None" = None) -> list[torch.Tensor]:
    """A tensor cut along its first dim for the ranks of a line: evenly, or by the given sizes."""
    if sizes:
        if len(sizes) != count or sum(sizes) != value.size(0):
            raise ValueError(f"[simulate] the sizes {list(sizes)} do not cut {_form(value)} for {count} ranks.")
        return list(value.split(list(sizes)))
    if value.dim() == 0 or value.size(0) % count:
        raise ValueError(f"[simulate] {_form(value)} can not be cut evenly for {count} ranks.")
    return list(value.chunk(count)) if value.size(0) else [value] * count
