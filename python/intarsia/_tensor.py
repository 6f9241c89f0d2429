"""DTensor: the class that distributed tensors are instances of, and what they can do beyond plain tensors.

A distributed tensor is a ``torch.Tensor`` with another body, so its class is ``torch.Tensor`` or ``Parameter``. The
attributes of DTensor therefore live on ``torch.Tensor``; plain tensors deny having them.
"""

import copy
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.device_mesh as _device_mesh

from . import _core
from ._mesh import DeviceMesh, core_mesh, python_mesh

_is_dtensor = _core.is_dtensor


def _torch_dtensor() -> Any:
    """PyTorch's own class, if it has been loaded."""
    module = sys.modules.get("torch.distributed.tensor._dtensor_spec")  # loaded with it, never replaced
    return _torch_class() if module is not None else None


@functools.cache
def _torch_class() -> Any:
    from . import _interop

    return _interop.torch_dtensor_class()


class _DTensorMeta(type(torch.Tensor)):
    """``isinstance(x, DTensor)`` asks what the tensor is made of. PyTorch's own distributed tensors count, too."""

    def __instancecheck__(cls, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return False
        if _is_dtensor(value):
            return True
        theirs = _torch_dtensor()
        return theirs is not None and isinstance(value, theirs)

    def __subclasscheck__(cls, other: type) -> bool:
        if type.__subclasscheck__(cls, other):
            return True
        theirs = _torch_dtensor()
        return theirs is not None and issubclass(other, theirs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_torch_class(), name)  # internals of PyTorch's own, for programs that look there


class DTensor(torch.Tensor, metaclass=_DTensorMeta):
    """A tensor of global shape that is cut over a mesh. Made by :func:`distribute_tensor`, :meth:`from_local` and ops."""

    def __new__(cls, local_tensor: torch.Tensor, spec: Any, *, requires_grad: bool = False) -> "DTensor":
        if local_tensor.requires_grad and not requires_grad:
            text = "To construct DTensor from a tensor that requires grad, use DTensor.from_local: gradients do not pass here."
            warnings.warn(text, UserWarning, stacklevel=2)
        meta = spec.tensor_meta
        made = DTensor.from_local(
            local_tensor.detach(), spec.mesh, spec.placements, run_check=False, shape=meta.shape, stride=meta.stride
        )
        return made.requires_grad_(requires_grad)

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: Any = None,
        placements: "Sequence[Any] | None" = None,
        *,
        run_check: bool = False,
        shape: "torch.Size | None" = None,
        stride: "tuple[int, ...] | None" = None,
        grad_placements: "Sequence[Any] | None" = None,
    ) -> "DTensor":
        """Takes each rank's ``local_tensor`` as its shard; shares memory with it. Differentiable.

        Without ``shape`` and ``run_check``, all shards are taken to have equal shapes. ``grad_placements`` says how the
        gradient is laid out when it goes back to the local tensors.
        """
        if not isinstance(local_tensor, torch.Tensor):
            raise TypeError(f"[from_local] needs a tensor, but got {type(local_tensor).__name__}.")
        if (shape is None) != (stride is None):
            raise RuntimeError("[from_local] got only one of shape and stride. Please pass both shape and stride at the same time.")
        mesh = _given_mesh(device_mesh, "from_local")
        if placements is None:
            placements = _replicated(mesh)
        if local_tensor.device.type not in (mesh.device_type, "meta"):
            local_tensor = local_tensor.to(mesh.device_type)
        shape = None if shape is None else list(shape)
        stride = None if stride is None else list(stride)
        made = _core.from_local(local_tensor, core_mesh(mesh), placements, run_check, shape, stride)
        return made if grad_placements is None else _GradientLaidOut.apply(made, tuple(grad_placements))

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class _GradientLaidOut(torch.autograd.Function):
    """The tensor itself; its gradient is brought to the given placements."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, placements: tuple) -> torch.Tensor:
        ctx.placements = placements
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.redistribute(placements=ctx.placements), None


def _given_mesh(mesh: Any, where: str) -> Any:
    if isinstance(mesh, DeviceMesh):
        return mesh
    if mesh is not None:
        kind = type(mesh).__name__
        raise TypeError(f"[{where}] a mesh must be a DeviceMesh, but got {kind}. Make one with init_device_mesh.")

    try:
        return _device_mesh._mesh_resources.get_current_mesh()
    except RuntimeError:
        raise RuntimeError(f"[{where}] no mesh was given and there is none around the call. Pass device_mesh.") from None


def _replicated(mesh: Any) -> tuple:
    from torch.distributed.tensor.placement_types import Replicate

    return (Replicate(),) * mesh.ndim


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
    *,
    src_data_rank: "int | None" = 0,
) -> "DTensor":
    """Deals a whole tensor out to the mesh; replicated where no placements are given.

    The data of the rank at ``src_data_rank`` of every axis counts; with None every rank cuts its own and nothing is sent.
    """
    mesh = _given_mesh(device_mesh, "distribute_tensor")
    if placements is None:
        placements = _replicated(mesh)
    if len(placements) != mesh.ndim:
        raise ValueError(
            "[distribute_tensor] `placements` must have the same length as `device_mesh.ndim`! "
            f"Found placements length: {len(placements)}, and device_mesh.ndim: {mesh.ndim}."
        )
    if _is_dtensor(tensor):
        _check_lies_so(tensor, mesh, placements)
        return tensor
    if not tensor.is_leaf:
        raise RuntimeError(
            "[distribute_tensor] the tensor was computed from others, and distribute_tensor should be used to "
            "distribute leaf tensors, but found non-leaf tensor! Call detach() first, or use DTensor.from_local."
        )
    if tensor.device.type not in (mesh.device_type, "meta"):
        tensor = tensor.to(mesh.device_type)
    source = None if tensor.is_meta else src_data_rank  # there is nothing to send
    made = _core.distribute_tensor(tensor, core_mesh(mesh), placements, source)
    return type(tensor)(made, requires_grad=tensor.requires_grad) if type(tensor) is torch.nn.Parameter else made


def _check_lies_so(tensor: torch.Tensor, mesh: Any, placements: Sequence[Any]) -> None:
    if tensor.device_mesh != mesh:
        raise ValueError(
            f"[distribute_tensor] Cannot distribute a DTensor with device mesh {tensor.device_mesh} "
            f"to a different device mesh {mesh}."
        )
    wanted = tuple(_counted_from_front(placement, tensor.ndim) for placement in placements)
    if tensor.placements != wanted:
        raise ValueError(
            f"[distribute_tensor] Cannot distribute a DTensor with placements {tensor.placements} to a different "
            f"placements {wanted}. do you want to call `redistribute` instead?"
        )


def _counted_from_front(placement: Any, ndim: int) -> Any:
    if placement.is_shard() and placement.dim < 0:
        return type(placement)(placement.dim + ndim)
    return placement


# --- what distributed tensors have beyond plain ones ------------------------------------------------------------------


def to_local(self: torch.Tensor, *, grad_placements: "Sequence[Any] | None" = None) -> torch.Tensor:
    """This rank's shard, sharing memory. In a simulation, one tensor that stands for the shards of all ranks."""
    try:
        return _core.to_local(self, grad_placements)
    except RuntimeError:
        return _nothing_of(self)


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


def redistribute(
    self: torch.Tensor,
    device_mesh: Any = None,
    placements: "Sequence[Any] | None" = None,
    *,
    async_op: bool = False,
    forward_dtype: "torch.dtype | None" = None,
    backward_dtype: "torch.dtype | None" = None,
) -> torch.Tensor:
    """The same tensor in another layout. Differentiable; the dtypes say in which precision data and gradient travel."""
    if placements is None:
        raise RuntimeError("[redistribute] placements is needed for redistribute!")
    if device_mesh is not None and device_mesh is not self.device_mesh and device_mesh != self.device_mesh:
        raise NotImplementedError("[redistribute] Cross device mesh comm not supported yet!")
    for placement, now in zip(placements, self.placements):
        if placement.is_partial() and not _core.same_placement(placement, now):
            raise RuntimeError(
                "[redistribute] Can not redistribute to Partial, redistributing to Partial is for internal use only!"
            )
    if forward_dtype is None and backward_dtype is None:
        return _core.redistribute(self, placements, async_op)
    return _TravelsAs.apply(self, tuple(placements), forward_dtype, backward_dtype)


class _TravelsAs(torch.autograd.Function):
    """A redistribution whose data and gradient travel in dtypes of their own."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, placements: tuple, forward_dtype: Any, backward_dtype: Any) -> Any:
        ctx.back, ctx.dtype = tuple(_settled(p) for p in tensor.placements), backward_dtype
        ctx.original = tensor.dtype
        return _core.redistribute(tensor.to(forward_dtype or tensor.dtype), placements)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        travels = grad.to(ctx.dtype or grad.dtype)
        return _core.redistribute(travels, ctx.back).to(ctx.original), None, None, None


def _settled(placement: Any) -> Any:
    from torch.distributed.tensor.placement_types import Replicate

    return Replicate() if placement.is_partial() else placement


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
    with torch.no_grad():
        made = self.detach().clone()
    if type(self) is not torch.Tensor:
        made = made.as_subclass(type(self))
    made.requires_grad_(self.requires_grad)
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    made.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return made


def _reduce(self: torch.Tensor, protocol: int) -> Any:
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
    def get(self: torch.Tensor) -> Any:
        if not _is_dtensor(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return function(self)

    return property(get, doc=function.__doc__)


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
            what = f"[{name}] a distributed tensor of shape {list(self.shape)} has no memory of its own. "
            advice = f"Use x.to_local().{name}() for the local shard, or x.full_tensor().{name}() for the whole."
            if not _is_dtensor(self):
                what, advice = f"[{name}] this tensor stands for one per simulated rank. ", "Use x._local_tensors[rank]."
            raise type(error)(what + advice) from None

    return method


def _equip_tensors() -> None:
    for name in ("numpy", "data_ptr", "storage", "untyped_storage", "tolist", "__array__"):
        setattr(torch.Tensor, name, _explaining(name))
    for name, function in {
        "to_local": to_local,
        "full_tensor": full_tensor,
        "redistribute": redistribute,
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
    torch.Tensor.__deepcopy__ = _served("__deepcopy__", _deepcopy)
    torch.Tensor.__reduce_ex__ = _served("__reduce_ex__", _reduce)


_equip_tensors()
torch.serialization.add_safe_globals([_rebuild])
