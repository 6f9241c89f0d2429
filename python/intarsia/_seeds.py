"""Seeds that differ between simulated ranks: ``torch.manual_seed(rank)``. Each rank then draws from a separate generator."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree

from . import _core
from ._numbers import count_of, draws_apart, generators_differ, joined, numbers_of, own_generators, per_rank, tree_on

_PREFIXES = ("rand", "normal", "bernoulli", "multinomial", "poisson", "binomial", "dropout", "alpha_dropout", "feature_")
_IN_PLACE = ("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_")

# The states of the generators of ranks 1 and up while seeds differ. That of rank 0 is in PyTorch's own generator.
_others: "list[torch.Tensor] | None" = None


def forget() -> None:
    """All ranks go on as rank 0."""
    global _others
    _others = None
    own_generators.clear()


def _differ(others: "list[torch.Tensor]") -> None:
    global _others
    _others = others
    own_generators[:] = [_call]


generators_differ.append(lambda states: _differ(states[1:]))


def _draw_apart(func: Callable, args: tuple, kwargs: dict) -> Any:
    """A function that draws more on one rank than on another, from the state that they have in common."""
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    name = getattr(func, "__name__", str(func))
    if func not in _DRAWS or kwargs.get("inplace") or name.endswith("dropout_"):
        raise NotImplementedError(
            f"[{name}] draws different amounts of random numbers on the simulated ranks, which is not simulated here. "
            "Draw with torch.rand and its like."
        )
    _differ([_get_state() for _ in range(max(map(count_of, tensors)) - 1)])
    return _draw(func, args, kwargs, tensors)


draws_apart.append(_draw_apart)


_INITS = {getattr(torch.nn.init, name) for name in dir(torch.nn.init) if name.endswith(("uniform_", "normal_", "orthogonal_", "sparse_"))}


def _functions() -> set:
    named = [getattr(torch, name) for name in dir(torch) if name.startswith(_PREFIXES)]
    named += [getattr(F, name) for name in dir(F) if "dropout" in name or name in ("rrelu", "gumbel_softmax")]
    named += [getattr(torch.Tensor, name) for name in (*_IN_PLACE, "bernoulli", "multinomial")]
    return {function for function in named if callable(function)} | _INITS


_DRAWS = _functions()


def _call(func: Callable, args: tuple, kwargs: dict, as_usual: Callable) -> Any:
    """Calls a function. If it draws, every rank does so from its own generator; a distributed tensor is drawn for all by rank 0."""
    global _others
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    if func in _DRAWS and not any(map(_core.is_dtensor, tensors)):
        return _draw(func, args, kwargs, tensors)
    before = _get_state()
    result = as_usual(func, args, kwargs)
    after = _get_state()
    if not torch.equal(before, after):
        tensors += [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
        if not any(map(_core.is_dtensor, tensors)):
            raise NotImplementedError(
                f"[{getattr(func, '__name__', func)}] draws random numbers, which is not simulated here while the ranks have "
                "different seeds. Seed all ranks alike, or draw with torch.rand and its like."
            )
        _others = [after.clone() for _ in _others or ()]
    return result


def _draw(func: Callable, args: tuple, kwargs: dict, tensors: list) -> Any:
    global _others
    name = getattr(func, "__name__", str(func))
    states = [_get_state(), *(_others or ())]
    if torch.is_grad_enabled() and func not in _INITS and any(tensor.requires_grad for tensor in tensors):
        raise NotImplementedError(
            f"[{name}] of a tensor that requires a gradient is not simulated while the ranks have different seeds. "
            "Seed all ranks alike, or draw a mask without a gradient first."
        )
    target = _written(name, args, kwargs)
    if target is not None and not _core.is_per_rank(target):
        _core.become_per_rank(target, len(states))
    needs_grad, results = kwargs.pop("requires_grad", False), []
    try:
        for rank in range(len(states)):
            _set_state(states[rank])
            results.append(func(*tree_on(args, rank), **tree_on(kwargs, rank)))
            states[rank] = _get_state()
    finally:
        _set_state(states[0])
        _others = states[1:]
    made = joined(results, name) if target is None else target
    return made.requires_grad_() if needs_grad else made


def _written(name: str, args: tuple, kwargs: dict) -> "torch.Tensor | None":
    if name.endswith("_") or kwargs.get("inplace"):
        return args[0] if args else next(value for value in kwargs.values() if isinstance(value, torch.Tensor))
    return kwargs.get("out")


def _seeded(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def manual_seed(seed: Any) -> torch.Generator:
        numbers = numbers_of(seed)
        if not numbers:
            forget()
            return theirs(seed)
        states = []
        for number in numbers:
            generator = theirs(number)
            states.append(_get_state())
        _set_state(states[0])
        _differ(states[1:])
        return generator

    return manual_seed


def _got(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def get_rng_state() -> torch.Tensor:
        return theirs() if _others is None else per_rank([theirs(), *_others])

    return get_rng_state


def _set(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def set_rng_state(new_state: torch.Tensor) -> None:
        if not _core.is_per_rank(new_state):
            forget()
            return theirs(new_state)
        first, *others = _core.values_of(new_state)
        _differ(others)
        return theirs(first)

    return set_rng_state


def _begun(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def initial_seed() -> Any:
        if _others is None:
            return theirs()
        mine, seeds = _get_state(), []
        for state in (mine, *_others):
            _set_state(state)
            seeds.append(theirs())
        _set_state(mine)
        return joined(seeds, "initial_seed")

    return initial_seed


_get_state, _set_state = torch.get_rng_state, torch.set_rng_state  # of rank 0
for _name, _make in (("manual_seed", _seeded), ("get_rng_state", _got), ("set_rng_state", _set), ("initial_seed", _begun)):
    _ours = _make(getattr(torch, _name))
    for _place in (torch, torch.random):
        setattr(_place, _name, _ours)
