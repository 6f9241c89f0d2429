"""Operations of Python's integers that PyTorch's symbolic ones lack: per-rank numbers do them rank by rank.

An operation that needs one answer for all ranks, such as a key of a dict, is an error that says what to write instead.
"""

import functools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ._local_tensor import enabled_local_tensor_mode as plays_local_tensors
from ._numbers import numbers_of, per_rank_int, value_on

_OF_TWO = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "divmod": divmod,
}
_OF_ONE = {"invert": operator.invert, "abs": abs, "pos": operator.pos, "trunc": math.trunc}


def _rank_by_rank(function: Callable, *operands: Any) -> Any:
    count = max(len(numbers_of(operand)) for operand in operands)
    results = [function(*(value_on(operand, rank) for operand in operands)) for rank in range(count)]
    if isinstance(results[0], tuple):
        return tuple(map(per_rank_int, zip(*results)))
    return per_rank_int(results)


def _method(name: str, function: Callable) -> None:
    theirs = getattr(torch.SymInt, name, None)

    @functools.wraps(theirs or function)
    def method(self: torch.SymInt, *other: Any) -> Any:
        whole = all(isinstance(operand, (int, torch.SymInt)) for operand in other)
        if whole and any(numbers_of(operand) for operand in (self, *other)):
            return _rank_by_rank(function, self, *other)
        return NotImplemented if theirs is None else theirs(self, *other)

    setattr(torch.SymInt, name, method)


def _turned(function: Callable) -> Callable:
    return functools.wraps(function)(lambda one, other: function(other, one))


for _name, _function in _OF_TWO.items():
    _method(f"__{_name}__", _function)
    _method(f"__r{_name}__", _turned(_function))
for _name, _function in _OF_ONE.items():  # type: ignore[assignment]
    _method(f"__{_name}__", _function)


def _refusal(name: str, what: str) -> None:
    """One answer for all ranks is asked for: a number that is one per rank says so, others go on as PyTorch's."""
    theirs = getattr(torch.SymInt, name)

    def method(self: torch.SymInt, *args: Any) -> Any:
        if numbers_of(self) and (name != "__format__" or args[0]):
            raise TypeError(
                f"[{name.strip('_')}] the simulated ranks hold different values, {self}, and {what} is one for all of them. "
                "Make a tensor of it, or take the ranks one by one: rank_map(lambda rank: ...)."
            )
        return theirs(self, *args)

    setattr(torch.SymInt, name, functools.wraps(theirs)(method))


_refusal("__hash__", "a key of a dict or a member of a set")
_refusal("__format__", "a formatted text")


# What a comparison means for all ranks where a LocalTensorMode asks for one answer. PyTorch's own numbers answer so; where the
# ranks differ in an order, that is an error.
_FOR_ALL: "dict[str, Callable[[list], bool] | None]" = {
    "__eq__": all, "__ne__": any, "__lt__": None, "__le__": None, "__gt__": None, "__ge__": None,
}


def _one_answer_in_a_mode(name: str, for_all: "Callable[[list], bool] | None") -> None:
    theirs = getattr(torch.SymInt, name)

    @functools.wraps(theirs)
    def method(self: torch.SymInt, other: Any) -> Any:
        answer = theirs(self, other)
        if type(answer) is not torch.SymBool or not (numbers_of(self) or numbers_of(other)) or not plays_local_tensors():
            return answer
        answers = numbers_of(answer)
        if len(set(answers)) < 2:
            return bool(answer)
        if for_all is None:
            return answer
        _warn_of_one_answer()
        return for_all(answers)

    setattr(torch.SymInt, name, method)


@functools.cache
def _warn_of_one_answer() -> None:
    warnings.warn(
        "[LocalTensorMode] ranks are compared where one answer is asked for, such as `if rank == 0`. As in PyTorch, == is true "
        "only if it is true on all ranks: no rank does what is behind it, unless all do. Use rank_map, or intarsia.simulate, "
        "where this is an error.",
        stacklevel=3,
    )


for _name, _answer in _FOR_ALL.items():
    _one_answer_in_a_mode(_name, _answer)
