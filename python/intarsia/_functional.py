"""PyTorch's functional collectives between simulated ranks."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _theirs

from . import _collectives as collectives
from . import _core
from ._mesh import simulated_world
from ._numbers import any_per_rank, per_rank
from ._simulated_group import SimulatedGroup

_c10d = dist.distributed_c10d
_ops = torch.ops._c10d_functional


def _group_of(*args: Any) -> "SimulatedGroup | None":
    """The group among the arguments of a collective, their last, if it is played for them."""
    group = args[-1]
    group = _c10d._resolve_process_group(group) if isinstance(group, str) else group  # type: ignore[arg-type]
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    return group if isinstance(group, SimulatedGroup) and (group.is_played() or any_per_rank(args[:-1])) else None


def _joined(results: list, olds: list) -> torch.Tensor:
    """What a functional collective returns. A rank that is in no group has what it gave."""
    in_simulation = simulated_world() is not None  # elsewhere a plain tensor stands for one rank
    if in_simulation and results[0] is not None and all(result is results[0] for result in results):
        return results[0]
    return per_rank([old.clone() if new is None else new for old, new in zip(olds, results)])


def all_reduce(input: Any, reduce_op: str, group: SimulatedGroup) -> torch.Tensor:
    values = group._values(input)
    return _joined(collectives.all_reduce(values, group.lines, collectives.op_name(reduce_op)), values)


def broadcast(input: Any, src: int, group: SimulatedGroup) -> torch.Tensor:
    values = group._values(input)
    return _joined(collectives.broadcast(values, group.lines, src), values)


def all_gather_into_tensor(input: Any, group_size: int, group: SimulatedGroup) -> torch.Tensor:
    values = group._values(input)
    got = collectives.all_gather(values, group.lines)
    made = {id(parts): torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts]) for parts in got if parts}
    return _joined([None if parts is None else made[id(parts)] for parts in got], values)


def reduce_scatter_tensor(input: Any, reduce_op: str, group_size: int, group: SimulatedGroup) -> torch.Tensor:
    values = group._values(input)
    lists = [collectives.pieces(value, group.size()) for value in values]
    return _joined(collectives.reduce_scatter(lists, group.lines, collectives.op_name(reduce_op)), values)


def all_to_all_single(input: Any, output_split_sizes: Any, input_split_sizes: Any, group: SimulatedGroup) -> torch.Tensor:
    got = collectives.all_to_all(group._cut(input, input_split_sizes), group.lines)
    return _joined([None if parts is None else torch.cat(parts) for parts in got], group._values(input))


def _coalesced(single: Callable) -> Callable:
    return lambda inputs, *args: [single(input, *args) for input in inputs]


def _in_place(functional: Callable) -> Callable:
    def write(target: torch.Tensor, *args: Any) -> torch.Tensor:
        return target.copy_(functional(target, *args))

    return write


def _refused(name: str) -> Callable:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"[{name}] is not simulated. Use torch.distributed.{name}.")

    return refuse


_PLAYED = {
    "all_reduce": all_reduce,
    "all_reduce_": _in_place(all_reduce),
    "all_reduce_coalesced": _coalesced(all_reduce),
    "broadcast": broadcast,
    "broadcast_": _in_place(broadcast),
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _coalesced(all_gather_into_tensor),
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _coalesced(reduce_scatter_tensor),
    "all_to_all_single": all_to_all_single,
}


def _kernel(name: str, played: Callable) -> Callable:
    op = getattr(_ops, name).default

    def kernel(*args: Any) -> Any:
        group = _group_of(*args)
        if group is not None:
            return played(*args[:-1], group)
        return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args)

    return kernel


@functools.cache
def play() -> None:
    """From now on the functional collectives on groups of simulated ranks are played."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    for key in ("CPU", "PrivateUse2"):
        for name, played in _PLAYED.items():
            library.impl(name, _kernel(name, played), key)  # type: ignore[arg-type]
    for name in ("isend", "irecv", "batch_p2p_ops"):
        library.impl(name, _refused(name), "PrivateUse2")
    library.impl("wait_tensor", lambda tensor: tensor, "PrivateUse2")  # it has arrived
    play.library = library
    wrap = _theirs._maybe_wrap_tensor
    _theirs._maybe_wrap_tensor = lambda tensor: tensor if _core.is_per_rank(tensor) else wrap(tensor)  # type: ignore[assignment]
