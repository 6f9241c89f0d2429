"""Copying and pickling of distributed tensors."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._interop import from_torch, pytorchs, to_torch, torch_dtensor_class
from ._kinds import GIVEN, from_kept, kept
from ._mesh import core_mesh, python_mesh, simulated_world
from ._tensor import DTensor

_is_dtensor = _core.is_dtensor


def _rebuild(shards: list, mesh: Any, placements: tuple, shape: Any, stride: Any, requires_grad: bool) -> torch.Tensor:
    """Makes a distributed tensor again from what pickle kept."""
    placements = tuple(from_kept(placement) for placement in placements)
    local = shards[0] if len(shards) == 1 else _core.per_rank(shards)
    if len(shards) == 1 and is_looked_at_alone(mesh):
        return pytorchs(local, mesh, placements, shape, stride, requires_grad)
    made = _core.from_local(local, core_mesh(mesh), placements, False, list(shape), list(stride)).detach()
    return made.requires_grad_(requires_grad)


def is_looked_at_alone(mesh: Any) -> bool:
    """Whether there are no other ranks, as where a program of one process reads the file of a larger job."""
    return mesh.size() > 1 and not torch.distributed.is_initialized() and simulated_world() is None


def deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():  # all values of a per-rank tensor are copied
        made = self.detach().clone()
    if type(self) is not torch.Tensor:
        made = made.as_subclass(type(self))
    made.requires_grad_(self.requires_grad)
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    made.__dict__.update(copy.deepcopy({name: value for name, value in self.__dict__.items() if name != GIVEN}, memo))
    return made


def _rebuild_per_rank(values: list, requires_grad: bool) -> torch.Tensor:
    """Makes a tensor that is one per simulated rank again from what pickle kept."""
    return _core.per_rank(values).requires_grad_(requires_grad)


def reduce(self: torch.Tensor, protocol: int) -> Any:
    is_parameter = isinstance(self, torch.nn.Parameter)
    if not _is_dtensor(self):
        state = [value.detach() for value in _core.values_of(self)], self.requires_grad
        if is_parameter:
            return (torch._utils._rebuild_parameter, (_rebuild_per_rank(*state), self.requires_grad, {}))
        return (_rebuild_per_rank, state)
    shards = [shard.detach() for shard in _core.shards_of(self)]
    placements = tuple(kept(placement) for placement in _core.placements_of(self))
    are_pickled_alike = all(one is placement for one, placement in zip(placements, _core.placements_of(self)))
    if len(shards) == 1 and _as_pytorchs and are_pickled_alike:
        return _reduce_as_pytorchs(self, protocol)
    state = (shards, python_mesh(_core.mesh_of(self)), placements, tuple(self.shape), self.stride(), self.requires_grad)  # type: ignore[assignment]
    if is_parameter:
        return (torch._utils._rebuild_parameter, (_Rebuilt(state), self.requires_grad, {}))
    return (_rebuild, state)


class _Rebuilt:
    """Pickles as a distributed tensor."""

    def __init__(self, state: tuple) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return (_rebuild, self.state)


_as_pytorchs = False  # whether files are those that PyTorch's own DTensor writes


def _reduce_as_pytorchs(self: torch.Tensor, protocol: int) -> Any:
    """As PyTorch's own, with our class in the place of its class: programs know it by the same name."""
    rebuild, (function, _, (_, *form), state) = to_torch(self).__reduce_ex__(protocol)
    return rebuild, (function, DTensor, (DTensor, *form), state)


def _rebuilding(theirs: Callable) -> Callable:
    @functools.wraps(theirs)
    def rebuild(func: Callable, new_type: type, args: tuple, state: Any) -> Any:
        if new_type is not DTensor:
            return theirs(func, new_type, args, state)
        made = theirs(func, torch_dtensor_class(), (torch_dtensor_class(), *args[1:]), state)
        return made if is_looked_at_alone(made._spec.mesh) else from_torch(made)

    return rebuild


def follow(undo: "list[Callable[[], None]]") -> None:
    """From now on files are those of PyTorch's own DTensor, which plain PyTorch reads, also with weights_only=True."""
    from torch._weights_only_unpickler import _get_allowed_globals

    global _as_pytorchs
    _as_pytorchs, module, rebuild = True, DTensor.__module__, torch._tensor._rebuild_from_type_v2
    DTensor.__module__ = torch_dtensor_class().__module__
    _trust(DTensor, torch_dtensor_class())
    torch._tensor._rebuild_from_type_v2 = ours = _rebuilding(rebuild)
    name = f"{rebuild.__module__}.{rebuild.__name__}"
    _get_allowed_globals()[name] = ours

    def stop() -> None:
        global _as_pytorchs
        _as_pytorchs = False
        _get_allowed_globals()[name] = torch._tensor._rebuild_from_type_v2 = rebuild
        _trust(torch_dtensor_class(), DTensor)
        DTensor.__module__ = module

    undo.append(stop)


def _trust(one: Any, instead_of: Any) -> None:
    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([one if known_one is instead_of else known_one for known_one in known])


torch.serialization.add_safe_globals([_rebuild, _rebuild_per_rank])
torch.serialization.add_safe_globals([(f, f"intarsia._methods.{f.__name__}") for f in (_rebuild, _rebuild_per_rank)])  # of older files
