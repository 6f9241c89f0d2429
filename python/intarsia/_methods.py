"""What distributed tensors can do beyond plain ones. It lives on ``torch.Tensor``; plain tensors deny having it."""

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _core
from ._mesh import core_mesh, python_mesh
from ._numbers import expect_numbers, joined
from ._redistribute import redistribute_tensor
from ._tensor import DTensor

_is_dtensor = _core.is_dtensor


def to_local(self: torch.Tensor, *, grad_placements: "Sequence[Any] | None" = None) -> torch.Tensor:
    """This rank's shard, sharing memory. In a simulation, one tensor that stands for the shards of all ranks."""
    expect_numbers()
    try:
        local = _core.to_local(self, grad_placements)
    except RuntimeError:
        return _nothing_of(self)
    if "_came_later" in self.__dict__:
        return _Arriving.apply(local)
    return local if type(self) is torch.Tensor else _kind_of(self, local)


class _Arriving(torch.autograd.Function):
    """A local tensor in the dress that PyTorch's DTensor gives to what is still under way. Ours has come when it is asked for."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        return AsyncCollectiveTensor(local)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.trigger_wait() if hasattr(grad, "trigger_wait") else grad


def _kind_of(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """What to_local of a parameter returns is an instance of Parameter, too. The shard itself is not marked."""
    if isinstance(tensor, torch.nn.Parameter):
        local = local if torch.is_grad_enabled() else local.view_as(local)
        local._is_param = True
    return local


def _nothing_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a rank that is not on the mesh holds. Other ranks have had an error, which goes on."""
    if _core.shards_of(tensor):
        raise
    return torch.empty(0, dtype=tensor.dtype) if tensor.ndim else torch.zeros((), dtype=tensor.dtype)


def full_tensor(self: torch.Tensor, *, grad_placements: "Sequence[Any] | None" = None) -> torch.Tensor:
    """The whole tensor, on every rank."""
    try:
        return _core.full_tensor(self, grad_placements)
    except RuntimeError:
        return _nothing_of(self)


def _get_mesh(self: torch.Tensor) -> Any:
    """The mesh that the tensor lies on."""
    return python_mesh(_core.mesh_of(self))


def _get_placements(self: torch.Tensor) -> tuple:
    """One placement per axis of the mesh."""
    return _core.placements_of(self)


def _get_spec(self: torch.Tensor) -> Any:
    """Mesh, placements and global form, as PyTorch's DTensorSpec."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(self.shape, self.stride(), self.dtype)
    return DTensorSpec(_get_mesh(self), _core.placements_of(self), tensor_meta=meta)


def _get_local(self: torch.Tensor) -> torch.Tensor:
    """The shard, outside of autograd."""
    shards = _core.shards_of(self)
    if len(shards) == 1:
        return shards[0]
    expect_numbers()
    with torch.no_grad():
        return _core.to_local(self)


def shards_of(self: torch.Tensor) -> list[torch.Tensor]:
    """The local tensors of the ranks that this process plays."""
    return _core.shards_of(self)


def _create_chunk_list(self: torch.Tensor) -> Any:
    from . import _interop

    return _interop.to_torch(self).__create_chunk_list__()


def _create_write_items(self: torch.Tensor, name: str, value: Any) -> Any:
    from . import _interop

    return _interop.to_torch(self).__create_write_items__(name, _interop.to_torch(value))


def _get_tensor_shard(self: torch.Tensor, index: Any) -> Any:
    from . import _interop

    return _interop.to_torch(self).__get_tensor_shard__(index)


def _text(self: torch.Tensor) -> str:
    mesh, placements = _get_mesh(self), _core.placements_of(self)
    shards = _core.shards_of(self)
    if len(shards) == 1:
        return f"DTensor(local_tensor={shards[0]}, device_mesh={mesh}, placements={placements})"
    lines = [f"  {rank}: {shard}" for rank, shard in zip(_core.mesh_of(self).hosted, shards)]
    return "\n".join([f"DTensor(shape={list(self.shape)}, device_mesh={mesh}, placements={placements}, shards by rank:", *lines]) + ")"


def _rank_text(self: torch.Tensor) -> str:
    values = _core.values_of(self)
    if all(torch.equal(values[0], value) for value in values):
        return f"LocalTensor(on all {len(values)} ranks: {values[0]})"
    return "\n".join(["LocalTensor(", *(f"  {slot}: {value}" for slot, value in enumerate(values))]) + ")"


def _rebuild(shards: list, mesh: Any, placements: tuple, shape: Any, stride: Any, requires_grad: bool) -> torch.Tensor:
    """Makes a distributed tensor again from what pickle kept."""
    local = shards[0] if len(shards) == 1 else _core.per_rank(shards)
    made = _core.from_local(local, core_mesh(mesh), placements, False, list(shape), list(stride)).detach()
    return made.requires_grad_(requires_grad)


def _deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():  # of a tensor that is one per rank, all are copied
        made = self.detach().clone()
    if type(self) is not torch.Tensor:
        made = made.as_subclass(type(self))
    made.requires_grad_(self.requires_grad)
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    made.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return made


def _rebuild_per_rank(values: list, requires_grad: bool) -> torch.Tensor:
    """Makes a tensor that is one per simulated rank again from what pickle kept."""
    return _core.per_rank(values).requires_grad_(requires_grad)


def _reduce(self: torch.Tensor, protocol: int) -> Any:
    if not _is_dtensor(self):
        state = [value.detach() for value in _core.values_of(self)], self.requires_grad
        if isinstance(self, torch.nn.Parameter):
            return (torch._utils._rebuild_parameter, (_rebuild_per_rank(*state), self.requires_grad, {}))
        return (_rebuild_per_rank, state)
    shards = [shard.detach() for shard in _core.shards_of(self)]
    state = (shards, _get_mesh(self), _core.placements_of(self), tuple(self.shape), self.stride(), self.requires_grad)
    if isinstance(self, torch.nn.Parameter):
        return (torch._utils._rebuild_parameter, (_Rebuilt(state), self.requires_grad, {}))
    return (_rebuild, state)


class _Rebuilt:
    """Pickles as a distributed tensor."""

    def __init__(self, state: tuple) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return (_rebuild, self.state)


def _new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Any:
    """A plain tensor of the same dtype, as PyTorch's own DTensor makes it."""
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)


def _only_distributed(function: Callable) -> property:
    """A method that plain tensors do not have."""

    def get(self: torch.Tensor) -> Any:
        if not _is_dtensor(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {function.__name__!r}")
        return functools.partial(function, self)

    return property(get, doc=function.__doc__)


def _only_distributed_value(name: str, function: Callable) -> property:
    """An attribute that plain tensors do not have, unless somebody gives it to them: PyTorch's own rules note a spec on tensors."""

    def get(self: torch.Tensor) -> Any:
        if _is_dtensor(self):
            return function(self)
        if name in self.__dict__:
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def give(self: torch.Tensor, value: Any) -> None:
        if _is_dtensor(self):
            raise AttributeError(f"[{name}] of a distributed tensor follows from how it lies. Use redistribute or from_local.")
        self.__dict__[name] = value

    return property(get, give, doc=function.__doc__)


def _served(name: str, ours: Callable, asks: Callable[[torch.Tensor], bool] = _is_dtensor) -> Callable:
    """A method of torch.Tensor that is another one for distributed tensors."""
    theirs = getattr(torch.Tensor, name)

    @functools.wraps(theirs)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(self) in _PLAIN and asks(self):
            return ours(self, *args, **kwargs)
        return theirs(self, *args, **kwargs)

    return method


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _has_no_memory(tensor: torch.Tensor) -> bool:
    return _is_dtensor(tensor) or _core.is_per_rank(tensor)


def _show(self: torch.Tensor, **_: Any) -> str:
    return _text(self) if _is_dtensor(self) else _rank_text(self)


_NOT_TRACED = (
    "[torch.compile] distributed tensors of Intarsia are not traced: the code around them runs without compilation. "
    "Compile functions of plain tensors, such as those inside local_map, and leave fullgraph out."
)


def _leave_tracing() -> None:
    """Tells torch.compile, which asks for the storage first, to run the code around the tensor as it stands."""
    if torch._guards.TracingContext.try_get() is not None:
        from torch._dynamo.exc import Unsupported

        _warn_not_traced()
        raise Unsupported(_NOT_TRACED) from None


@functools.cache
def _warn_not_traced() -> None:
    warnings.warn(_NOT_TRACED, stacklevel=2)


def _explaining(name: str) -> Callable:
    """A method that needs memory: its error says what to call instead."""
    theirs = getattr(torch.Tensor, name)

    @functools.wraps(theirs)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(self, *args, **kwargs)
        except RuntimeError as error:
            if not _has_no_memory(self):
                raise
            if _core.is_per_rank(self) and name in ("numpy", "tolist", "__array__"):
                return _reconciled(name, self, *args, **kwargs)
            _leave_tracing()
            what = f"[{name}] a distributed tensor of shape {list(self.shape)} has no memory of its own. "
            advice = f"Use x.to_local().{name}() for the local shard, or x.full_tensor().{name}() for the whole."
            if not _is_dtensor(self):
                what, advice = f"[{name}] this tensor stands for one per simulated rank. ", "Use x._local_tensors[rank]."
            raise type(error)(what + advice) from None

    return method


def _reconciled(name: str, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Lists and arrays of a tensor that is one per rank are those of its one value, if the ranks agree. Whole numbers may differ."""
    values = _core.values_of(tensor)
    if name == "tolist":
        return joined([value.tolist() for value in values], name)
    if not all(torch.equal(values[0], value) for value in values):
        raise AssertionError(f"[{name}] the simulated ranks hold different values. Use x._local_tensors[rank].")
    return getattr(values[0], name)(*args, **kwargs)


def _equip_tensors() -> None:
    for name in ("numpy", "data_ptr", "storage", "untyped_storage", "tolist", "__array__"):
        setattr(torch.Tensor, name, _explaining(name))
    for name, function in {
        "to_local": to_local,
        "full_tensor": full_tensor,
        "redistribute": redistribute_tensor,
        "__create_chunk_list__": _create_chunk_list,
        "__create_write_items__": _create_write_items,
        "__get_tensor_shard__": _get_tensor_shard,
    }.items():
        setattr(torch.Tensor, name, _only_distributed(function))
        setattr(DTensor, name, function)  # DTensor.to_local(x)
    for name, function in {
        "device_mesh": _get_mesh,
        "placements": _get_placements,
        "_spec": _get_spec,
        "_local_tensor": _get_local,
        "shards": shards_of,
    }.items():
        setattr(torch.Tensor, name, _only_distributed_value(name, function))
        setattr(DTensor, name, property(function))
    torch.Tensor.new_tensor = _served("new_tensor", _new_tensor)
    torch.Tensor.__repr__ = _served("__repr__", _show, _has_no_memory)
    torch.Tensor.__deepcopy__ = _served("__deepcopy__", _deepcopy, _has_no_memory)
    torch.Tensor.__reduce_ex__ = _served("__reduce_ex__", _reduce, _has_no_memory)


_equip_tensors()
torch.serialization.add_safe_globals([_rebuild, _rebuild_per_rank])
