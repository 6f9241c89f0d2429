"""PyTorch's LocalTensorMode on simulations: many ranks in one process."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _core
from ._mesh import simulate, simulated_world
from ._numbers import count_of, joined, value_on

__all__ = ["LocalTensor", "LocalTensorMode", "maybe_run_for_local_tensor"]


class _LocalTensorMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and _core.is_per_rank(value)


class LocalTensor(metaclass=_LocalTensorMeta):
    """A tensor that stands for one per simulated rank, made from a dict by rank."""

    def __new__(cls, local_tensors: dict[int, torch.Tensor], requires_grad: bool = False) -> torch.Tensor:
        return _core.per_rank([local_tensors[rank] for rank in sorted(local_tensors)]).requires_grad_(requires_grad)


class LocalTensorMode:
    """A scope in which this process plays the given ranks; see :func:`intarsia.simulate`."""

    def __init__(self, ranks: "int | frozenset[int]") -> None:
        self.ranks = frozenset(range(ranks)) if isinstance(ranks, int) else frozenset(ranks)
        self._scope: Any = None

    def __enter__(self) -> "LocalTensorMode":
        self.enable_()
        return self

    def __exit__(self, *args: Any) -> None:
        self.disable_()

    def enable_(self) -> None:
        """Goes on playing the ranks."""
        if self._scope is None:
            self._scope = simulate(len(self.ranks), process_group=False)
            self._scope.__enter__()

    def disable_(self) -> None:
        """Plays them no longer."""
        if self._scope is not None:
            scope, self._scope = self._scope, None
            scope.__exit__(None, None, None)

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """A scope in which the ranks are not played."""
        playing = self._scope is not None
        self.disable_()
        try:
            yield
        finally:
            if playing:
                self.enable_()

    def rank_map(self, cb: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """One tensor that stands for ``cb(rank)`` of every rank."""
        return _core.per_rank([cb(rank) for rank in sorted(self.ranks)])

    def tensor_map(self, tensor: torch.Tensor, cb: Callable[[int, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """One tensor that stands for ``cb(rank, value)`` of every rank."""
        return _core.per_rank([cb(rank, value_on(tensor, rank)) for rank in sorted(self.ranks)])


def maybe_run_for_local_tensor(func: Callable) -> Callable:
    """In a simulation, runs a function once per rank if its arguments differ between ranks."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        world = simulated_world()
        if world is None or not any(map(count_of, (*args, *kwargs.values()))):
            return func(*args, **kwargs)
        results = [
            func(*(value_on(a, rank) for a in args), **{k: value_on(v, rank) for k, v in kwargs.items()})
            for rank in range(world.size)
        ]
        return joined(results, func.__name__)

    return wrapper


def _values(self: torch.Tensor) -> dict[int, torch.Tensor]:
    if not _core.is_per_rank(self):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute '_local_tensors'")
    return dict(enumerate(_core.values_of(self)))


def _reconcile(self: torch.Tensor) -> Callable[[], torch.Tensor]:
    if not _core.is_per_rank(self):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'reconcile'")
    return lambda: _one_of(self)


def _one_of(tensor: torch.Tensor) -> torch.Tensor:
    values = _core.values_of(tensor)
    if not all(torch.equal(values[0], value) for value in values):
        raise AssertionError("the ranks hold different values, so there is no one value to take")
    return values[0].clone().detach().requires_grad_(tensor.requires_grad)


torch.Tensor._local_tensors = property(_values, doc="The values by rank.")
torch.Tensor.reconcile = property(_reconcile, doc="The one value that all ranks hold.")
