"""Per-rank numbers and tensors of a simulation: how they are split, joined, and passed to ops."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from . import _core
from ._compile import leave_tracing

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def numbers_of(value: Any) -> list:
    """The values of a number that is one per rank; none for any other object."""
    if not isinstance(value, _SYMBOLIC):
        return []
    found = _core.numbers_of(value)
    if not found and isinstance(theirs := getattr(value.node, "_local_ints", None), dict):  # PyTorch's own number per rank
        found = [theirs[rank] for rank in sorted(theirs)]
    return found


def count_of(value: Any) -> int:
    """The number of ranks whose values a tensor or number holds; 0 if it is the same on all."""
    if isinstance(value, torch.Tensor):
        return len(_core.values_of(value)) if _core.is_per_rank(value) else 0
    return len(numbers_of(value))


def any_per_rank(tree: Any) -> bool:
    """Whether a nest of containers holds a tensor that is one per rank."""
    return any(isinstance(leaf, torch.Tensor) and _core.is_per_rank(leaf) for leaf in pytree.tree_leaves(tree))


def value_on(value: Any, rank: int) -> Any:
    """What a tensor or number is on one rank."""
    if isinstance(value, torch.Tensor):
        return _core.values_of(value)[rank] if _core.is_per_rank(value) else value
    numbers = numbers_of(value)
    return numbers[rank] if numbers else value


def tree_on(tree: Any, rank: int) -> Any:
    """:func:`value_on` for everything in a nest of containers and slices."""
    if isinstance(tree, slice):
        return slice(value_on(tree.start, rank), value_on(tree.stop, rank), value_on(tree.step, rank))
    if type(tree) in (tuple, list, torch.Size):
        kind = list if type(tree) is list else tuple
        return kind(tree_on(item, rank) for item in tree)
    if type(tree) is dict:
        return {key: tree_on(item, rank) for key, item in tree.items()}
    return value_on(tree, rank)


def joined(values: Sequence[Any], where: str) -> Any:
    """One object that stands for the values of all ranks: tensors and whole numbers may differ, all else must be equal."""
    first = values[0]
    if all(value is first for value in values):
        return first
    if isinstance(first, torch.Tensor):
        return per_rank([value.detach() for value in values])
    if all(type(value) is int for value in values):
        return per_rank_int(values)
    if isinstance(first, (list, tuple, dict)):
        flat = [pytree.tree_flatten(value) for value in values]
        if all(form == flat[0][1] for _, form in flat):
            return pytree.tree_unflatten([joined(items, where) for items in zip(*(leaves for leaves, _ in flat))], flat[0][1])
    if not all(type(value) is type(first) and value == first for value in values):
        raise ValueError(
            f"[{where}] the simulated ranks give different values, {', '.join(map(repr, values[:4]))}"
            f"{' and so on' if len(values) > 4 else ''}, where one is asked for. Only tensors and whole numbers may differ."
        )
    return first


def _get_wrapped(self: torch.Tensor) -> Any:
    try:
        return self.__dict__["_wrapped_number"]
    except KeyError:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute '_wrapped_number'") from None


def _set_wrapped(self: torch.Tensor, number: Any) -> None:
    """PyTorch passes a symbolic number to an op as a tensor with a value of no meaning, and leaves the number here.

    A number per rank becomes a tensor per rank, so that the op sees what it is.
    """
    self.__dict__["_wrapped_number"] = number
    if values := numbers_of(number):
        _core.become_number(self, [torch.tensor(value, dtype=self.dtype) for value in values])
    elif _is_common(number):
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self.fill_(int(number))  # the same on all ranks


def _guards(module: Any) -> None:
    """PyTorch asks some questions with an answer for the case that there is none, as where the ranks would give different ones."""
    theirs = module._guard_or

    def guard_or(a: Any, default: bool) -> bool:
        answers = set(numbers_of(a))
        return default if len(answers) > 1 else theirs(a, default)

    module._guard_or = guard_or


@functools.cache
def answer_guards() -> None:
    """From now on such questions about numbers that are one per rank are answered."""
    import torch.fx.experimental.symbolic_shapes as module

    _guards(module)


torch.Tensor._wrapped_number = property(_get_wrapped, _set_wrapped)


# Calls functions while every rank has a separate generator: gets the function, its arguments and the usual way to call it.
own_generators: list[Callable] = []
# Calls a function that draws different amounts on different ranks: each rank then has a separate generator.
draws_apart: list[Callable] = []
# Gets the states of the generators of all ranks when they begin to differ.
generators_differ: list[Callable] = []


class NumbersMode(TorchFunctionMode):
    """Lets functions take numbers that are one per rank where PyTorch asks for a plain one: factories, slices, indices."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: "dict | None" = None) -> Any:
        kwargs = kwargs or {}
        if own_generators:
            return own_generators[0](func, args, kwargs, self._call)
        before = _core.draws_apart()
        try:
            return self._call(func, args, kwargs)
        except ValueError:
            if _core.draws_apart() == before or not draws_apart:
                raise
        return draws_apart[0](func, args, kwargs)

    def _call(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        if func is torch.Tensor.new_tensor:  # of other data: the tensor gives dtype and device
            args = (value_on(args[0], 0), *args[1:])
        ranks = _ranks_in(args)
        if ranks <= 0 and kwargs:
            ranks = _ranks_in(tuple(kwargs.values())) or ranks
        if ranks < 0:
            args, kwargs = _with_plain_numbers(args), _with_plain_numbers(kwargs)
        if ranks <= 0:
            return _item(args[0]) if func is torch.Tensor.item else func(*args, **kwargs)
        _check_not_distributed(func, args)
        if func is torch.Tensor.new_tensor:
            return _rank_by_rank(func, ranks, args, kwargs)
        if func in _BY_PLACE:
            func = _BY_PLACE[func]  # type: ignore[assignment]
            if _is_plain(args[0]):
                _core.become_per_rank(args[0], ranks)
        try:
            return func(*args, **kwargs)
        except (ValueError, RuntimeError, TypeError):
            if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
                return _rank_by_rank(func, ranks, args, kwargs)
            if not args or not _is_plain(args[0]):
                raise
            # A view of a plain tensor that begins elsewhere on every rank may be written to: the tensor itself is one per rank.
            _core.become_per_rank(args[0], ranks)
            return func(*args, **kwargs)


class _Scopes(threading.local):
    """The modes of open simulations on a thread, innermost last: where each belongs on the stack of modes, and whether it is there."""

    def __init__(self) -> None:
        self.open: list[tuple[int, NumbersMode | None]] = []
        # Of simulations that ended while the mode was at work: PyTorch takes it from the stack for that time, and puts it back.
        self.at_work: list[NumbersMode] = []


_scopes = _Scopes()


@contextlib.contextmanager
def numbers_scope() -> Iterator[None]:
    """A simulation. Its :class:`NumbersMode` costs every function some microseconds, so it waits for the first value per rank."""
    _scopes.open.append((_len_torch_function_stack(), _scopes.at_work.pop() if _scopes.at_work else None))
    try:
        yield
    finally:
        _, mode = _scopes.open.pop()
        if mode is not None and not _took_out(mode):
            _scopes.at_work.append(mode)


def expect_numbers() -> None:
    """To be called where a value that is one per rank comes into being: from now on functions take such numbers."""
    if not _scopes.open or _scopes.open[-1][1] is not None:
        return
    answer_guards()
    depth, _ = _scopes.open[-1]
    mode = NumbersMode()
    above = [_pop_mode() for _ in range(_len_torch_function_stack() - depth)]
    for other in (mode, *reversed(above)):
        _push_mode(other)
    _scopes.open[-1] = (depth, mode)


def _took_out(mode: "NumbersMode") -> bool:
    """Takes a mode from the stack; false if it is not there."""
    above, found = [], False
    while _len_torch_function_stack() and not found:
        top = _pop_mode()
        found = top is mode
        above += [] if found else [top]
    for other in reversed(above):
        _push_mode(other)
    return found


def per_rank(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor that stands for these, one per simulated rank."""
    expect_numbers()
    return _core.per_rank(list(values))


def per_rank_int(values: Sequence[int]) -> Any:
    """One number that stands for these, one per simulated rank; an ordinary one if they are equal."""
    expect_numbers()
    number = _core.per_rank_int(list(values))
    if not isinstance(number, int):
        leave_tracing()
    return number


def _item(tensor: torch.Tensor) -> Any:
    """Its number. Whole ones may differ between ranks."""
    if not _core.is_per_rank(tensor) or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        return tensor.item()
    return joined([value.item() for value in _core.values_of(tensor)], "item")


def _check_not_distributed(func: Callable, args: tuple) -> None:
    if any(isinstance(arg, torch.Tensor) and _core.is_dtensor(arg) for arg in args):
        raise ValueError(  # Python's operators take a TypeError for a kind of operand that they do not know
            f"[{getattr(func, '__name__', func)}] a number that differs between simulated ranks meets a distributed tensor, which "
            "is one tensor for all of them. Use it on to_local(), and from_local() on the result."
        )


def _ranks_in(items: Any) -> int:
    """For how many ranks the numbers among arguments are; -1 if all are the same on all ranks. Tensors do not count."""
    common = 0
    for item in items:
        kind = type(item)
        if kind in _SYMBOLIC:
            found = len(numbers_of(item)) or -_is_common(item)
        elif kind in (tuple, list, torch.Size):
            found = _ranks_in(item)
        elif kind is slice:
            found = _ranks_in((item.start, item.stop, item.step))
        else:
            continue
        if found > 0:
            return found
        common = found or common
    return common


def _is_common(number: Any) -> bool:
    """Whether a symbolic number is a constant of the core, which not all functions take. Numbers of tracing are not."""
    if not isinstance(number, torch.SymInt) or type(number.node) is not torch._C._SymNode:
        return False
    return not number.node.is_nested_int()


def _with_plain_numbers(tree: Any) -> Any:
    """Numbers that the ranks have in common as those of Python, which all functions take."""
    return pytree.tree_map_only(torch.SymInt, lambda number: int(number) if _is_common(number) else number, tree)


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not _core.is_per_rank(value) and not _core.is_dtensor(value)


def _rank_by_rank(func: Callable, ranks: int, args: tuple, kwargs: dict) -> Any:
    """A function of no tensors, such as a factory: each rank makes its own from the same state of the generator.

    A rank that draws more numbers than another has another state afterwards.
    """
    needs_grad = kwargs.pop("requires_grad", False)
    before, results, states = torch.get_rng_state(), [], []
    for rank in range(ranks):
        torch.set_rng_state(before)
        results.append(func(*tree_on(args, rank), **tree_on(kwargs, rank)))
        states.append(torch.get_rng_state())
    torch.set_rng_state(states[0])
    if not all(torch.equal(state, states[0]) for state in states):
        generators_differ[0](states)
    made = joined(results, getattr(func, "__name__", str(func)))
    return made.requires_grad_() if needs_grad else made


def _place(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, tuple]:
    """What is left to do of ``tensor[index]`` where numbers of the index are one per rank, which PyTorch's indexing does not take.

    As PyTorch does with whole numbers, these are taken first: a view of the tensor, and the index of that.
    """
    items = index if isinstance(index, tuple) else (index,)
    taken = [_dims_taken(item) for item in items]
    missing = tensor.dim() - sum(taken)
    rest, chosen, dim = [], [], 0
    for item, dims in zip(items, taken):
        if isinstance(item, torch.SymInt) and numbers_of(item):
            chosen.append((dim, item))
        else:
            rest.append(item)
        dim += missing if item is Ellipsis else dims
    for dim, number in reversed(chosen):
        tensor = tensor.select(dim, number)
    return tensor, tuple(rest)


def _dims_taken(item: Any) -> int:
    """How many dims of a tensor an item of an index speaks of."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def _get_places(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    view, rest = _place(tensor, index)
    return view[rest] if rest else view


def _set_places(tensor: torch.Tensor, index: Any, value: Any) -> None:
    view, rest = _place(tensor, index)
    if numbers := numbers_of(value):
        value = per_rank([torch.tensor(number, dtype=tensor.dtype) for number in numbers])
    if rest:
        view[rest] = value
    elif isinstance(value, torch.Tensor):
        view.copy_(value)
    else:
        view.fill_(value)


_BY_PLACE = {torch.Tensor.__getitem__: _get_places, torch.Tensor.__setitem__: _set_places}


# Modules of PyTorch that ask for their rank like a program, to do something different on each.
_LIKE_PROGRAMS = tuple(f"torch.distributed.{name}." for name in ("nn", "optim", "algorithms", "pipelining"))


def called_by_pytorch(depth: int) -> bool:
    """Whether the caller of the caller is PyTorch's own code on groups and meshes, which goes on as one of the ranks."""
    module = sys._getframe(depth + 1).f_globals.get("__name__", "")
    return (module == "torch.distributed" or module.startswith("torch.distributed.")) and not module.startswith(_LIKE_PROGRAMS)
