"""DTensor: the class that distributed tensors are instances of, and how they are made.

A distributed tensor is a ``torch.Tensor`` with another body, so its class is ``torch.Tensor`` or ``Parameter``. The
attributes of DTensor are therefore on ``torch.Tensor``; see _methods.py.
"""

import functools
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.device_mesh as _device_mesh

from . import _core
from ._compile import leave_tracing
from ._kinds import OTHER_NAMES, have_different_shapes, in_order, kinds_of, masked, named_as_given, without_layout
from ._mesh import DeviceMesh, core_mesh

_is_dtensor = _core.is_dtensor


def _torch_dtensor() -> Any:
    """PyTorch's own class, if it has been loaded."""
    module = sys.modules.get("torch.distributed.tensor._dtensor_spec")  # loaded with it, never replaced
    return _torch_class() if module is not None else None


@functools.cache
def _torch_class() -> Any:
    from . import _interop

    return _interop.torch_dtensor_class()


class _DTensorMeta(type(torch.Tensor)):  # type: ignore[misc]
    """``isinstance(x, DTensor)`` asks what the tensor is made of. PyTorch's distributed tensors are instances as well."""

    def __instancecheck__(cls, value: Any) -> bool:
        if not issubclass(type(value), torch.Tensor):  # a mock says that it is a tensor, too
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
    """A tensor of global shape that is distributed over a mesh. Made by :func:`distribute_tensor`, :meth:`from_local` and ops."""

    def __new__(cls, local_tensor: torch.Tensor, spec: Any, *, requires_grad: bool = False) -> "DTensor":
        if local_tensor.requires_grad and not requires_grad:
            text = "To construct DTensor from a tensor that requires grad, use DTensor.from_local: gradients do not pass here."
            warnings.warn(text, UserWarning, stacklevel=2)
        meta = spec.tensor_meta
        made = DTensor.from_local(
            local_tensor.detach(), spec.mesh, in_order(spec), run_check=False, shape=meta.shape, stride=meta.stride
        )
        made = made if cls is DTensor else made.as_subclass(cls)
        return made.requires_grad_(requires_grad)  # type: ignore[return-value]

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

        Without ``shape`` and ``run_check``, all shards are assumed to have equal shapes. ``grad_placements`` is the layout in
        which the gradient returns to the local tensors.
        """
        if isinstance(local_tensor, DTensor):
            raise RuntimeError("[from_local] the local_tensor argument only accepts torch.Tensor but got a DTensor.")
        if not isinstance(local_tensor, torch.Tensor):
            raise TypeError(f"[from_local] needs a tensor, but got {type(local_tensor).__name__}.")
        if (shape is None) != (stride is None):
            raise RuntimeError("[from_local] got only one of shape and stride. Please pass both shape and stride at the same time.")
        local_tensor = _arrived(local_tensor)
        mesh = _given_mesh(device_mesh, "from_local")
        if placements is None and shape is None and have_different_shapes(local_tensor):
            return without_layout(local_tensor)  # type: ignore[return-value]
        if placements is None:
            placements = _replicated(mesh)
        kinds = _check_one_kind_of_partial(placements, "from_local")
        local_tensor = masked(local_tensor, placements)
        _check_dims(placements, local_tensor.ndim, "from_local")
        if grad_placements is not None and len(grad_placements) != mesh.ndim:
            raise ValueError(
                f"[from_local] {len(grad_placements)} grad_placements are given, but the mesh has {mesh.ndim} axes. Give one per axis."
            )
        if local_tensor.device.type not in (mesh.device_type, "meta"):
            local_tensor = local_tensor.to(mesh.device_type)
        shape = None if shape is None else list(shape)  # type: ignore[assignment]
        stride = None if stride is None else list(stride)  # type: ignore[assignment]
        given = (local_tensor, core_mesh(mesh), placements, run_check, shape, stride)
        try:
            back = None if grad_placements is None else tuple(grad_placements)
            made = _core.from_local(*given) if back is None else _FromLocal.apply(*given, back)
        except RuntimeError:
            leave_tracing()  # which calls this function with tensors without data
            raise
        return named_as_given(made, placements) if kinds & OTHER_NAMES else made  # type: ignore[return-value]

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


def _arrived(tensor: torch.Tensor) -> torch.Tensor:
    """What a functional collective returns wraps a tensor that may be under way: the tensor, once it has come."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return _Arrived.apply(tensor) if isinstance(tensor, AsyncCollectiveTensor) else tensor


class _Arrived(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any) -> torch.Tensor:
        return tensor.trigger_wait().detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _FromLocal(torch.autograd.Function):
    """from_local whose gradient goes back in given placements: as the local tensors of the gradient that is laid out so."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, mesh: Any, placements: Any, check: bool, shape: Any, stride: Any, back: tuple) -> Any:
        ctx.set_materialize_grads(False)
        ctx.back = back
        return _core.from_local(local.detach(), mesh, placements, check, shape, stride)

    @staticmethod
    def backward(ctx: Any, grad: "torch.Tensor | None") -> Any:
        local = None if grad is None else _laid_out(grad, ctx.back)
        return local, None, None, None, None, None, None


def _laid_out(grad: torch.Tensor, wanted: tuple) -> torch.Tensor:
    """The local tensors of a gradient in given placements. As PyTorch's, a value that becomes a pending sum is cut into equal terms."""
    from torch.distributed.tensor.placement_types import Replicate

    share, target = 1, []
    for axis, (placement, now) in enumerate(zip(wanted, _core.placements_of(grad), strict=True)):
        becomes_pending = placement.is_partial() and not _core.same_placement(placement, now)
        if becomes_pending and placement.reduce_op not in ("sum", "avg", "min", "max"):
            raise NotImplementedError(f"[from_local] a gradient can not be laid out as {placement}. Use another of grad_placements.")
        if becomes_pending and placement.reduce_op == "sum":
            share *= _core.mesh_of(grad).shape[axis]
        target.append(Replicate() if becomes_pending else placement)
    local = _core.to_local(_core.redistribute(grad, target))
    return local if share == 1 else local / share


def _check_one_kind_of_partial(placements: Sequence[Any], where: str) -> set[str]:
    kinds = kinds_of(placements)
    if len(kinds) > 1 and kinds != {"sum", "avg"}:  # sums and averages commute
        raise ValueError(
            f"[{where}] Mixed Partial reduce types are not supported in the same placement list. Found reduce ops: {sorted(kinds)} "
            f"in {tuple(placements)}. Use one of them for all axes."
        )
    return kinds


class WrongDimError(IndexError, RuntimeError, AssertionError):
    """A placement names a dim that the tensor does not have. PyTorch's functions raise one or the other of the bases."""


def _check_dims(placements: Sequence[Any], ndim: int, where: str) -> None:
    for axis, placement in enumerate(placements):
        dim = getattr(placement, "dim", 0)
        if dim >= max(ndim, 1) or dim < -ndim:
            raise WrongDimError(
                f"[{where}] Sharding dim {dim} greater than tensor ndim {ndim} for placement number {axis}. Shard one of its dims."
            )


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


def xla_function(name: str) -> Any:
    """The counterpart of PyTorch/XLA for its own meshes, if it is installed."""
    try:
        return getattr(importlib.import_module("torch_xla.distributed.spmd"), name)
    except ImportError as error:
        raise ImportError("To use DTensor API with xla, you must install the torch_xla package!") from error


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
    """Distributes a whole tensor over the mesh; replicated if no placements are given.

    All ranks take the data of the rank at ``src_data_rank`` of every axis; with None every rank shards its own, and nothing is sent.
    """
    mesh = _given_mesh(device_mesh, "distribute_tensor")
    if mesh.device_type == "xla":
        return xla_function("xla_distribute_tensor")(tensor, mesh, placements)
    if placements is None:
        placements = _replicated(mesh)
    if not tensor.is_leaf and not _is_dtensor(tensor):
        raise RuntimeError(
            "[distribute_tensor] the tensor was computed from others, and distribute_tensor should be used to "
            "distribute leaf tensors, but found non-leaf tensor! Call detach() first, or use DTensor.from_local."
        )
    if len(placements) != mesh.ndim:
        raise ValueError(
            "[distribute_tensor] `placements` must have the same length as `device_mesh.ndim`! "
            f"Found placements length: {len(placements)}, and device_mesh.ndim: {mesh.ndim}."
        )
    _check_one_kind_of_partial(placements, "distribute_tensor")
    _check_dims(placements, tensor.ndim, "distribute_tensor")
    if _is_dtensor(tensor):
        if _core.moves_parameters():  # it was created on the mesh, and a plan redistributes it now
            _core.distribute_parameter(tensor, core_mesh(mesh), placements, src_data_rank)
        else:
            _check_lies_so(tensor, mesh, placements)
        return tensor  # type: ignore[return-value]
    tensor = _arrived(tensor)
    if tensor.device.type not in (mesh.device_type, "meta"):
        tensor = tensor.to(mesh.device_type)
    source = None if tensor.is_meta else src_data_rank  # there is nothing to send
    made = _core.distribute_tensor(tensor, core_mesh(mesh), placements, source)
    return type(tensor)(made, requires_grad=tensor.requires_grad) if type(tensor) is torch.nn.Parameter else made  # type: ignore[return-value]


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
