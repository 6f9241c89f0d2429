"""Strategies that a program registers with PyTorch's DTensor for custom ops: the drop-in also uses them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _core
from ._calls import as_given, tensors_of

_PYTORCHS = ("aten", "prims")  # which have rules here


def follow(undo: list[Callable[[], None]]) -> None:
    """From now on an op that a strategy is registered for has a rule made of it, for as long as the strategy is there."""
    rules = _rules()
    for name in ("op_strategy_funcs", "op_single_dim_strategy_funcs"):
        setattr(rules, name, _Watched(getattr(rules, name)))
        undo.append(functools.partial(_watch_no_more, rules, name))


def see_custom_ops(undo: list[Callable[[], None]]) -> None:
    """From now on an op that a program defines is an error on distributed tensors until it has a rule: what it does is not known."""
    definition = torch._library.custom_ops.CustomOpDef
    theirs = definition._register_to_dispatcher

    @functools.wraps(theirs)
    def register(self: Any, *args: Any) -> None:
        theirs(self, *args)
        schema = self._opoverload._schema
        _core.see_calls(schema.name, schema.overload_name)

    definition._register_to_dispatcher = register  # type: ignore[assignment]
    undo.append(lambda: setattr(definition, "_register_to_dispatcher", theirs))


def _watch_no_more(rules: Any, name: str) -> None:
    setattr(rules, name, dict(getattr(rules, name)))


def _rules() -> Any:
    from ._interop import torch_dtensor_class

    return torch_dtensor_class()._op_dispatcher.sharding_propagator


class _Watched(dict):
    """Strategies by op. Calls that were decided by one that has changed are decided anew."""

    def __setitem__(self, op: Any, strategy: Any) -> None:
        super().__setitem__(op, strategy)
        _core.forget_decisions()
        if op.namespace not in _PYTORCHS and callable(strategy):
            _core.add_rule(op._schema.name, op._schema.overload_name, _rows_of(op, strategy, self))

    def __delitem__(self, op: Any) -> None:
        super().__delitem__(op)
        _core.forget_decisions()

    def pop(self, *args: Any) -> Any:
        _core.forget_decisions()
        return super().pop(*args)


def _rows_of(op: Any, strategy: Callable, registered: dict) -> Callable:
    """What the strategy allows on a mesh of one axis. The core asks for rows of one axis, and combines them."""

    def rows(args: list[Any]) -> list[tuple[list[Any], list[Any]]]:
        from torch.distributed.tensor._op_schema import OpSchema
        from torch.distributed.tensor.placement_types import Replicate

        mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=0)
        if registered.get(op) is not strategy:
            raise NotImplementedError(f"Operator {op} does not have a sharding strategy registered.")
        schema_info = _rules().op_to_schema_info.get(op)
        positional, named = as_given(op._schema, [_choices(value, mesh) for value in args])
        there = [tensor is not None for tensor in tensors_of(op._schema, args)]
        found = []
        for spec in strategy(OpSchema(op, tuple(positional), named, schema_info)).strategies:
            outputs = spec.output_specs if isinstance(spec.output_specs, Sequence) else [spec.output_specs]
            told = iter(spec.input_specs or [spec.output_specs] * sum(there))
            inputs = [next(told).placements[0] if is_there else Replicate() for is_there in there]
            found.append(([one.placements[0] for one in outputs if one is not None], inputs))
        return found

    return rows


def _choices(value: Any, mesh: Any) -> Any:
    """A tensor as a strategy sees it, with the ways in which it may come; other arguments as they are."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor._op_schema import OpSpec, OpStrategy, TupleStrategy
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

    if isinstance(value, list) and any(isinstance(item, _core.TensorForm) for item in value):
        return TupleStrategy([_choices(item, mesh) for item in value])
    if not isinstance(value, _core.TensorForm):
        return value
    meta = TensorMeta(torch.Size(value.shape), tuple(value.stride), value.dtype)
    placements = [Replicate(), *(Shard(dim) for dim in range(value.ndim)), Partial()]
    return OpStrategy([OpSpec(DTensorSpec(mesh, (placement,), tensor_meta=meta)) for placement in placements])
