"""The functions of torch.distributed.tensor.experimental, and scopes that control how ops run."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from . import _core, _guide
from ._born_sharded import BornSharded
from ._calls import as_given, tensors_of
from ._dropin import original
from ._fused_colwise import FusedColwiseParallel
from ._local_tensor import rank_map, tensor_map
from ._mesh import core_mesh
from ._tensor import DTensor

__all__ = [
    "BornSharded",
    "ExplicitRedistributionContext",
    "FusedColwiseParallel",
    "agree_on_generator",
    "implicit_replication",
    "local_errors",
    "local_map",
    "local_random_scope",
    "random_scope",
    "rank_map",
    "register_sharding",
    "set_generators",
    "strict_rules",
    "tensor_map",
]


@contextlib.contextmanager
def implicit_replication() -> Iterator[None]:
    """Inside, plain tensors that meet distributed ones are taken as replicated."""
    with _core.PlainTensorScope(_core.PlainTensors.replicate):
        yield


@contextlib.contextmanager
def strict_rules() -> Iterator[None]:
    """Inside, an op without a rule is an error; else it runs on whole tensors and is warned about once."""
    with _core.StrictScope(True):
        yield


@contextlib.contextmanager
def local_errors() -> Iterator[None]:
    """Inside, a wrong value in a shard (an index out of range) is an error on the rank that holds it only.

    No op waits for messages from the others then: for loops that count microseconds and whose values are known to be right.
    """
    with _core.LocalErrorScope(True):
        yield


@contextlib.contextmanager
def random_scope(mesh: Any) -> "Iterator[_core.RandomScope]":
    """Inside, ranks agree on the random generator once, not before every draw.

    All ranks of the mesh need the same seed; an error on all of them names one that differs. After a rank has used its
    generator independently, or on a part of the mesh, all ranks call ``agree()`` on the scope.
    """
    scope = _core.RandomScope(core_mesh(mesh))
    with scope:
        yield scope


@contextlib.contextmanager
def local_random_scope(mesh: Any, placements: Sequence[Any] = ()) -> Iterator[None]:
    """Inside, a plain tensor is this rank's part of a larger one: random ops draw that part of the numbers of one device.

    One ``Shard`` or ``Replicate`` per axis of the mesh; by default rows, ``Shard(0)``. All ranks are seeded alike, and draw together.
    What ``torch.utils.checkpoint`` runs again in backward draws in the scope of its first run, wherever backward is called.
    """
    with _core.LocalRandomScope(core_mesh(mesh), list(placements)):
        yield


def agree_on_generator(mesh: Any, generator: "torch.Generator | None" = None) -> None:
    """All ranks of the mesh call it: their generators continue from the state of the first rank's."""
    _core.agree_on_generator(core_mesh(mesh), generator)


def set_generators(policy: str) -> None:
    """Sets what the ranks of a mesh do before a draw outside a ``random_scope``, for the whole process.

    With ``"compare"``, which is the default, a rank whose generator differs is an error on all ranks. With ``"follow"`` all
    continue from the state of the first rank's, 5 KB to each of the others; ``install`` chooses this.
    """
    if policy not in ("compare", "follow"):
        raise ValueError(f"[set_generators] the policy is 'compare' or 'follow', but got {policy!r}.")
    _core.set_generators(_core.Generators.follow if policy == "follow" else _core.Generators.compare)


class ExplicitRedistributionContext:
    """A scope in which implicit communication of an op is an error, or a warning.

    Moves that send nothing are included only if ``strict``.
    """

    def __init__(self, enable: bool = True, strict: bool = False, mode: str = "raise") -> None:
        if mode not in ("raise", "warn"):
            raise RuntimeError(f"Invalid mode {mode}")
        policies = _core.ImplicitMoves
        policy = policies.allow if not enable else policies.error if mode == "raise" else policies.warn
        self._scope = _core.ImplicitMovesScope(policy, strict)

    def __enter__(self) -> "ExplicitRedistributionContext":
        self._scope.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._scope.__exit__(*args)


def local_map(
    func: "Callable | None" = None,
    out_placements: Any = None,
    in_placements: Any = None,
    in_grad_placements: Any = None,
    device_mesh: Any = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable:
    """Lets a function of plain tensors take and return distributed ones: it runs on the local shards."""
    options = (out_placements, in_placements, in_grad_placements, device_mesh, redistribute_inputs)
    if func is None:
        return lambda function: functools.partial(_run_local, function, *options)
    return functools.partial(_run_local, func, *options)


def _run_local(
    func: Callable, out_placements: Any, in_placements: Any, in_grads: Any, mesh: Any, redistribute: bool, *args: Any, **kwargs: Any
) -> Any:
    flat, form = pytree.tree_flatten(args)
    if in_placements is not None and len(in_placements) != len(flat):
        raise AssertionError(
            f"in_placements length {len(in_placements)} does not match the number of input args {len(flat)}!"
        )
    local = []
    for index, value in enumerate(flat):
        wanted = in_placements[index] if in_placements is not None else None
        if isinstance(value, DTensor):
            mesh = mesh or value.device_mesh
            value = _checked(value, wanted, in_placements is not None, redistribute)
            value = value.to_local(grad_placements=_grads_of(value, in_grads, index))
        elif wanted is not None and not isinstance(value, torch.Tensor):
            raise AssertionError(f"Non-Tensor input {value} expects None placements but received {wanted}!")
        local.append(value)
    result = func(*pytree.tree_unflatten(local, form), **kwargs)
    return _distributed(result, out_placements, mesh) if any(isinstance(value, DTensor) for value in flat) else result


def _checked(value: Any, wanted: Any, told: bool, redistribute: bool) -> Any:
    if not told:
        return value
    if wanted is None:
        raise AssertionError(f"DTensor input {value} expects placements but received {wanted}!")
    if value.placements == tuple(wanted):
        return value
    if redistribute:
        return value.redistribute(placements=tuple(wanted))
    raise ValueError(
        f"arg {value} in local_map has a mismatched placements: arg placements is {value.placements} but the input "
        f"placements is {tuple(wanted)}! If redistribute_inputs is wanted, set redistribute_inputs=True to local_map."
    )


def _grads_of(value: Any, in_grads: Any, index: int) -> Any:
    if in_grads is None:
        return None
    if in_grads[index] is None:
        raise AssertionError(f"DTensor input {value} expects in grad placements but received None!")
    return tuple(in_grads[index])


def _distributed(result: Any, placements: Any, mesh: Any) -> Any:
    flat, form = pytree.tree_flatten(result)
    placements = placements if isinstance(placements, tuple) else (placements,)
    if len(flat) != len(placements):
        raise AssertionError(
            "local_map requires one PlacementType be provided for each output value, "
            f"received {len(placements)} out_placements but {len(flat)} is expected!"
        )
    made = []
    for value, layout in zip(flat, placements):
        if isinstance(value, torch.Tensor):
            if isinstance(value, DTensor):
                raise AssertionError(f"torch.Tensor output expected but received {type(value)}: {value}")
            value = DTensor.from_local(value, mesh, layout, run_check=False)
        elif layout is not None:
            raise AssertionError(f"Non-tensor output {value} expects None placements but received {layout}!")
        made.append(value)
    return pytree.tree_unflatten(made, form)


def register_sharding(op: Any) -> Callable:
    """Declares how an op may be sharded over one mesh axis.

    The decorated function gets the arguments of a call, tensors as objects with ``shape``, ``ndim`` and ``dtype``, and
    returns a list of ``(output placements, input placements)``; inputs that are not tensors have None.
    """

    def register(function: Callable) -> Callable:
        theirs = original("torch.distributed.tensor.experimental._register_sharding", "register_sharding")
        for overload in op if isinstance(op, Sequence) else [op]:
            name, variant = overload._schema.name, overload._schema.overload_name
            _core.add_rule(name, variant, _rows_of(function, overload))
            if theirs is None:
                _guide.leave(f"{name}.{variant}".rstrip("."))
        if theirs is not None:  # code that follows PyTorch's rules must find this one there
            theirs(op)(function)
        return function

    return register


def _rows_of(function: Callable, overload: Any) -> Callable:
    from torch.distributed.tensor.placement_types import Replicate

    def rows(args: list[Any]) -> list[tuple[list[Any], list[Any]]]:
        positional, named = as_given(overload._schema, args)
        tensors = tensors_of(overload._schema, args)
        found = []
        for out, given in function(*positional, **named):
            told = [placement for placement in given if placement is not None]
            if len(told) != sum(tensor is not None for tensor in tensors):
                raise ValueError(
                    f"[register_sharding] {overload}: {len(told)} placements of inputs are given, but the call has "
                    f"{sum(tensor is not None for tensor in tensors)} tensors. Give one for each, and None for other arguments."
                )
            placements = iter(told)
            inputs = [Replicate() if tensor is None else next(placements) for tensor in tensors]
            found.append(([placement for placement in out if placement is not None], inputs))
        return found

    return rows
