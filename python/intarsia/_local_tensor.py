"""PyTorch's LocalTensorMode as a simulation: many ranks in one process."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from ._mesh import simulate, simulated_world
from ._numbers import count_of, joined, per_rank, per_rank_int, tree_on, value_on

__all__ = [
    "LocalIntNode",
    "LocalRunnerMode",
    "LocalTensor",
    "LocalTensorMode",
    "enabled_local_tensor_mode",
    "local_tensor_mode",
    "maybe_disable_local_tensor_mode",
    "maybe_run_for_local_tensor",
    "rank_map",
    "tensor_map",
]

_modes: list["LocalTensorMode"] = []  # open ones, innermost last


class _LocalTensorMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or _core.is_dtensor(value):
            return False
        return _core.is_per_rank(value) or enabled_local_tensor_mode() is not None  # a plain one is the same on all ranks


class LocalTensor(metaclass=_LocalTensorMeta):
    """A per-rank tensor of a simulation, made from a dict by rank."""

    def __new__(cls, local_tensors: dict[int, torch.Tensor], requires_grad: bool = False) -> torch.Tensor:  # type: ignore[misc]
        if not local_tensors:
            raise ValueError("LocalTensor cannot be empty!")
        if any(value.requires_grad for value in local_tensors.values()):
            raise AssertionError(
                "Internal local_tensors require grad, but we will ignore those autograd graph. "
                "Make a custom autograd function and make sure you detach the inner tensors."
            )
        _check_equal("dtype", [value.dtype for value in local_tensors.values()])
        _check_equal("layout", [value.layout for value in local_tensors.values()])
        values = [local_tensors[rank] for rank in _counted(local_tensors, "LocalTensor")]
        _name_values(len(values))
        return per_rank(values).requires_grad_(requires_grad)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], spec: Any, size: Any, stride: Any) -> torch.Tensor:
        return LocalTensor({int(name.removeprefix(_PREFIX)): value for name, value in inner.items()})


def _check_equal(what: str, kinds: list) -> None:
    if any(kind != kinds[0] for kind in kinds):
        raise AssertionError(f"Tensors representing LocalTensor shards must have the same {what}")


def _counted(ranks: Any, where: str) -> range:
    """The ranks in order. A simulation plays ranks from 0."""
    if sorted(ranks) != list(range(len(ranks))):
        raise NotImplementedError(f"[{where}] a simulation plays all ranks of a world, from 0, but {sorted(ranks)} are given.")
    return range(len(ranks))


class _LocalIntMeta(type):
    def __instancecheck__(cls, node: Any) -> bool:
        return isinstance(getattr(node, "_local_ints", None), dict)


class LocalIntNode(metaclass=_LocalIntMeta):
    """The inside of a number that is one per simulated rank: ``torch.SymInt(LocalIntNode({0: 3, 1: 4}))``."""

    def __new__(cls, local_ints: dict[int, int]) -> Any:
        from torch.fx.experimental._constant_symnode import ConstantIntNode

        number = per_rank_int([local_ints[rank] for rank in _counted(local_ints, "LocalIntNode")])
        return ConstantIntNode(number) if isinstance(number, int) else number.node


class LocalTensorMode:
    """A scope in which this process plays the given ranks; see :func:`intarsia.simulate`."""

    def __init__(self, ranks: "int | frozenset[int]") -> None:
        self.ranks = frozenset(range(ranks)) if isinstance(ranks, int) else frozenset(ranks)
        _counted(self.ranks, "LocalTensorMode")
        self._scope: Any = None

    def __enter__(self) -> "LocalTensorMode":
        _modes.append(self)
        self.enable_()
        return self

    def __exit__(self, *args: Any) -> None:
        self.disable_()
        _modes.remove(self)

    @property
    def _disable(self) -> bool:
        return self._scope is None

    def enable_(self) -> None:
        """Goes on playing the ranks."""
        if self._scope is None:
            _name_values(len(self.ranks))
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
        with self.disable():
            return LocalTensor({rank: cb(rank) for rank in sorted(self.ranks)})

    def tensor_map(self, tensor: torch.Tensor, cb: Callable[[int, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """One tensor that stands for ``cb(rank, value)`` of every rank."""
        with self.disable():
            return LocalTensor({rank: cb(rank, value_on(tensor, rank)) for rank in sorted(self.ranks)})


class LocalRunnerMode:
    """PyTorch's functions that take turns on threads, and send to each other. The ranks of a simulation run in lockstep instead."""

    def __init__(self, ranks: "int | frozenset[int]", concurrency: int, fn: Callable[[int], None]) -> None:
        raise NotImplementedError(
            "[LocalRunnerMode] is not simulated: the ranks of a simulation run in lockstep, without turns. In a LocalTensorMode call send "
            "before recv, or run the functions as separate ranks, as processes or threads."
        )


def local_tensor_mode() -> "LocalTensorMode | None":
    """The innermost open mode."""
    return _modes[-1] if _modes else None


def enabled_local_tensor_mode() -> "LocalTensorMode | None":
    """The innermost open mode, if it plays its ranks."""
    mode = local_tensor_mode()
    return None if mode is None or mode._disable else mode


def answers_as_the_process() -> bool:
    """Whether process groups answer programs with the rank of this process, as PyTorch's do in its mode; meshes say each rank's."""
    plays = enabled_local_tensor_mode() is not None
    if plays:
        _warn_of_its_rank()
    return plays


@functools.cache
def _warn_of_its_rank() -> None:
    warnings.warn(
        "[LocalTensorMode] process groups are asked for ranks. As in PyTorch, get_rank() and the like answer for the one process, "
        "rank 0 as a rule: the ranks played all do what is behind `if dist.get_rank() == 0`. A mesh's get_rank() and rank_map know "
        "each rank, and in intarsia.simulate get_rank() does.",
        stacklevel=4,
    )


def maybe_disable_local_tensor_mode() -> Any:
    """A scope in which no ranks are played."""
    mode = local_tensor_mode()
    return contextlib.nullcontext() if mode is None else mode.disable()


def rank_map(cb: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """In a simulation, a tensor that stands for ``cb(rank)`` of every rank; else ``cb`` of this process's rank."""
    world = simulated_world()
    if world is None:
        return cb(dist.get_rank())
    return per_rank([cb(rank) for rank in world.hosted])


def tensor_map(tensor: torch.Tensor, cb: Callable[[int, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """:func:`rank_map` where ``cb`` also gets the rank's value of a tensor."""
    world = simulated_world()
    if world is None:
        return cb(dist.get_rank(), tensor)
    if not _core.is_per_rank(tensor):
        raise AssertionError(f"Expected LocalTensor, got {type(tensor)}")
    return per_rank([cb(rank, value_on(tensor, rank)) for rank in world.hosted])


def maybe_run_for_local_tensor(func: Callable) -> Callable:
    """In a simulation, runs a function once per rank if its arguments differ between ranks."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        world = simulated_world()
        if world is None or not any(map(count_of, torch.utils._pytree.tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        return joined([func(*tree_on(args, rank), **tree_on(kwargs, rank)) for rank in range(world.size)], func.__name__)

    return wrapper


_PREFIX = "_local_tensor_"


def _only_per_rank(name: str, get: Callable[[torch.Tensor], Any]) -> None:
    """An attribute that only tensors of one per rank have; in a LocalTensorMode, plain ones too, which are the same on all ranks."""

    def getter(self: torch.Tensor) -> Any:  # also while the mode pauses: its tensors are read then
        if not _core.is_per_rank(self) and (local_tensor_mode() is None or _core.is_dtensor(self)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return get(self)

    setattr(torch.Tensor, name, property(getter, doc=get.__doc__))


def _name_values(count: int) -> None:
    """PyTorch's names of the values, of which there are as many as ranks."""
    for rank in range(count):
        if not hasattr(torch.Tensor, f"{_PREFIX}{rank}"):
            _only_per_rank(f"{_PREFIX}{rank}", functools.partial(_value_named, rank=rank))


def _values_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    return _core.values_of(tensor) if _core.is_per_rank(tensor) else [tensor] * len(_modes[-1].ranks)


def _value_named(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    values = _values_of(tensor)
    if rank >= len(values):
        raise AttributeError(f"Local tensor has no knowledge of rank {rank}")
    return values[rank]


def _values(tensor: torch.Tensor) -> dict[int, torch.Tensor]:
    """The values by rank."""
    return dict(enumerate(_values_of(tensor)))


def _ranks(tensor: torch.Tensor) -> frozenset[int]:
    """The ranks that the tensor stands for."""
    return frozenset(range(len(_values_of(tensor))))


def _flatten(tensor: torch.Tensor) -> Callable[[], tuple]:
    """The names of the values, and what else it takes to make the tensor again: nothing."""
    return lambda: ([f"{_PREFIX}{rank}" for rank in range(len(_values_of(tensor)))], ())


def _reconcile(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The one value that all ranks hold."""
    return lambda: _one_of(tensor)


def _one_of(tensor: torch.Tensor) -> torch.Tensor:
    values = _values_of(tensor)
    if not all(torch.equal(values[0], value) for value in values):
        raise AssertionError("LocalTensor shards must be the same to reconcile: the ranks hold different values")
    return values[0].clone().detach().requires_grad_(tensor.requires_grad)


def _wait(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """As of an AsyncCollectiveTensor, which functional collectives return elsewhere: it has come already."""
    return lambda: tensor


def _local_ints(node: Any) -> "dict[int, int | float | bool]":
    """The values by rank of the number inside of which the node is."""
    numbers = _core.numbers_of(torch.SymInt(node)) if node.is_int() else []
    if not numbers:
        raise AttributeError("'SymNode' object has no attribute '_local_ints'")
    return dict(enumerate(numbers))


_only_per_rank("_local_tensors", _values)
_only_per_rank("_ranks", _ranks)
_only_per_rank("__tensor_flatten__", _flatten)
_only_per_rank("reconcile", _reconcile)
_only_per_rank("wait", _wait)
torch._C._SymNode._local_ints = property(_local_ints)
