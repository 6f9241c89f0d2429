"""Products that are one op here and several in PyTorch: linear, matmul with leading dims, and the gradient of a weight.

PyTorch flattens leading dims, transposes the weight, and has a rule for the product of matrices. What its rule says about these
matrices is translated to the tensors from which they are made.
"""

from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten
Ask = Callable[[Any, list, list], "tuple[list, list] | None"]  # op, specs, metas of results -> placements of both


def advise(name: str, specs: list, ask: Ask) -> "tuple[list, list] | None":
    """The placements of inputs and results of such a product; None for other ops and if there is no advice."""
    tell = {"aten::linear": _linear, "aten::matmul": _matmul, "intarsia::contract": _contract}.get(name)
    return tell(*specs, ask) if tell is not None else None  # type: ignore[operator]


def _linear(x: Any, weight: Any, bias: Any, ask: Ask) -> "tuple[list, list] | None":
    rows, columns = _flat(x), _flat(weight)
    if rows is None or columns is None:
        return None
    columns = _turned(columns)
    product = _product(rows, columns)
    if bias is None:
        found = ask(_ATEN.mm.default, [rows, columns], [product])
        return found and ([_unflat(found[0][0], x), _turn(found[0][1])], [_unflat(found[1][0], x)])
    found = ask(_ATEN.addmm.default, [bias, rows, columns], [product])
    return found and ([_unflat(found[0][1], x), _turn(found[0][2]), found[0][0]], [_unflat(found[1][0], x)])


def _matmul(a: Any, b: Any, ask: Ask) -> "tuple[list, list] | None":
    shapes = a.tensor_meta.shape, b.tensor_meta.shape
    if len(shapes[0]) == len(shapes[1]) == 3 and shapes[0][0] == shapes[1][0]:
        return ask(_ATEN.bmm.default, [a, b], [_meta([*shapes[0][:2], shapes[1][2]], a)])
    rows = _flat(a)
    if len(shapes[1]) != 2 or rows is None:
        return None
    found = ask(_ATEN.mm.default, [rows, b], [_product(rows, b)])
    return found and ([_unflat(found[0][0], a), found[0][1]], [_unflat(found[1][0], a)])


def _contract(a: Any, b: Any, ask: Ask) -> "tuple[list, list] | None":
    """Of ``a`` [..., m] and ``b`` [..., n], over all leading dims. PyTorch takes the transposed product, and transposes it."""
    left, right = _flat(b), _flat(a)
    if left is None or right is None:
        return None
    left = _turned(left)
    found = ask(_ATEN.mm.default, [left, right], [_product(left, right)])
    return found and ([_unflat(found[0][1], a), _unflat(_turn(found[0][0]), b)], [_turn(found[1][0])])


def _meta(shape: list, like: Any) -> Any:
    from torch.distributed.tensor._dtensor_spec import TensorMeta

    return TensorMeta(torch.Size(shape), torch.empty(shape, device="meta").stride(), like.tensor_meta.dtype)


def _product(left: Any, right: Any) -> Any:
    return _meta([left.tensor_meta.shape[0], right.tensor_meta.shape[1]], left)


def _flat(spec: Any) -> Any:
    """The spec of the tensor as a matrix, with its leading dims as one. None for what PyTorch would have to gather for that."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    shape, placements = spec.tensor_meta.shape, []
    last = len(shape) - 1
    for axis, placement in enumerate(spec.placements):
        if isinstance(placement, _StridedShard) or last < 1:
            return None
        if isinstance(placement, Shard):
            if last > 1 and placement.dim < last and shape[placement.dim] % spec.mesh.size(axis):
                return None
            before = torch.Size(shape[: placement.dim]).numel()
            inner = 0 < placement.dim < last and before > 1
            placement = _StridedShard(0, split_factor=before) if inner else Shard(int(placement.dim == last))
        placements.append(placement)
    meta = _meta([torch.Size(shape[:-1]).numel(), shape[-1]], spec)
    return DTensorSpec(spec.mesh, tuple(placements), tensor_meta=meta, use_strided_shard_as_shard_order=False)


def _unflat(placements: tuple, like: Any) -> tuple:
    """Placements of a matrix as those of a tensor with the leading dims of ``like``."""
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    shape = like.tensor_meta.shape
    last, first = len(shape) - 1, next((dim for dim, size in enumerate(shape[:-1]) if size > 1), 0)

    def back(placement: Any) -> Any:
        if isinstance(placement, _StridedShard):
            cut = [dim for dim in range(last) if torch.Size(shape[:dim]).numel() == placement.split_factor and shape[dim] > 1]
            return Shard(cut[0])  # an IndexError where no dim is cut so: then there is no advice
        if isinstance(placement, Shard):
            return Shard(last if placement.dim == 1 else first)
        return placement

    return tuple(map(back, placements))


def _turned(spec: Any) -> Any:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    rows, columns = spec.tensor_meta.shape
    meta = TensorMeta(torch.Size([columns, rows]), (1, columns), spec.tensor_meta.dtype)
    return DTensorSpec(spec.mesh, _turn(spec.placements), tensor_meta=meta, use_strided_shard_as_shard_order=False)


def _turn(placements: tuple) -> tuple:
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    def turn(placement: Any) -> Any:
        if isinstance(placement, _StridedShard):
            return _StridedShard(1 - placement.dim, split_factor=placement.split_factor)
        return Shard(1 - placement.dim) if isinstance(placement, Shard) else placement

    return tuple(map(turn, placements))
