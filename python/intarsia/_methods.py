"""Attributes of distributed tensors. They are on ``torch.Tensor``; plain tensors raise AttributeError for them."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._kinds import WITHOUT_LAYOUT, give_spec, shown_mesh, shown_placements, spec_of
from ._memory import explaining, has_no_memory
from ._moves import full_tensor, to_local
from ._numbers import expect_numbers
from ._pickling import _rebuild, _rebuild_per_rank, deepcopy, reduce  # noqa: F401  files name the first two here
from ._redistribute import redistribute_tensor
from ._tensor import DTensor

_is_dtensor = _core.is_dtensor


def _get_mesh(self: torch.Tensor) -> Any:
    """The mesh of the tensor."""
    return shown_mesh(self)


def _get_placements(self: torch.Tensor) -> tuple:
    """One placement per axis of the mesh."""
    return shown_placements(self)


def _get_spec(self: torch.Tensor) -> Any:
    """Mesh, placements and global form, as PyTorch's DTensorSpec."""
    return spec_of(self)


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
    mesh, placements = _get_mesh(self), shown_placements(self)
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
        if name == "_spec" and (_is_dtensor(self) or WITHOUT_LAYOUT in self.__dict__):
            give_spec(self, value)
            return
        if _is_dtensor(self):
            raise AttributeError(f"[{name}] of a distributed tensor follows from its layout. Use redistribute or from_local.")
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


def _show(self: torch.Tensor, **_: Any) -> str:
    return _text(self) if _is_dtensor(self) else _rank_text(self)


def _equip_tensors() -> None:
    for name in ("numpy", "data_ptr", "storage", "untyped_storage", "tolist", "__array__"):
        setattr(torch.Tensor, name, explaining(name))
    for name, function in {
        "to_local": to_local,
        "full_tensor": full_tensor,
        "redistribute": redistribute_tensor,
        "__create_chunk_list__": _create_chunk_list,
        "__create_write_items__": _create_write_items,
        "__get_tensor_shard__": _get_tensor_shard,
    }.items():
        setattr(torch.Tensor, name, _only_distributed(function))  # type: ignore[arg-type]
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
    torch.Tensor.__repr__ = _served("__repr__", _show, has_no_memory)  # type: ignore[assignment]
    torch.Tensor.__deepcopy__ = _served("__deepcopy__", deepcopy, has_no_memory)
    torch.Tensor.__reduce_ex__ = _served("__reduce_ex__", reduce, has_no_memory)


_equip_tensors()
