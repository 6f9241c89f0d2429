"""The guide of the drop-in: asks the rules of PyTorch's DTensor once per kind of call, so that results have its layouts.

Its advice only chooses among what our own rules allow, so values never depend on it. What PyTorch rejects is rejected.
"""

import logging
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from . import _core, _guide_products
from ._calls import as_given
from ._interop import torch_dtensor_class
from ._kinds import is_known
from ._mesh import python_mesh

_log = logging.getLogger(__name__)
_own: set[str] = set()  # ops for which the program has registered a rule
_SPLITS = frozenset({"aten::view", "aten::view_copy", "aten::_unsafe_view", "aten::reshape"})
_WAY_OUT = 'Redistribute first. With intarsia.install(layouts="intarsia") the op moves what it needs itself.'
_SERVED = ("aten", "prims", "intarsia")  # whose ops run here also where PyTorch has no rule: what they do is known


def leave(op: str) -> None:
    """From now on PyTorch is not asked about an op, named as in ``aten::add.Tensor``."""
    _own.add(op)


def advise(name: str, overload: str, args: list, now: list, results: list, mesh: Any) -> "tuple[list, list] | None":
    """The placements of inputs and results, or None where PyTorch has no rule for such a call.

    ``now`` has those of the tensors among ``args``, in order, with None for plain ones.
    """
    splits_nothing = name in _SPLITS and 0 in results[0].shape  # PyTorch's rule loops forever on these
    if splits_nothing or f"{name}.{overload}".rstrip(".") in _own:
        return None
    try:
        placements, grid = iter(now), python_mesh(mesh)
        specs = [_spec_of(value, placements, grid) for value in args]
        return _guide_products.advise(name, specs, _asked) or _asked(_op(name, overload), specs, [*map(_meta_of, results)])
    except Exception as error:  # it only has to advise: without advice our own rules decide
        _log.debug("%s.%s: %s", name, overload, error)
        if isinstance(error, _Refused) and not _in_backward():
            raise RuntimeError(str(error)) from None
        if isinstance(error, NotImplementedError) and name.partition("::")[0] not in _SERVED:
            raise NotImplementedError(str(error)) from None
        return None


class _Refused(RuntimeError):
    """PyTorch's rule for the op raises an error for tensors with these layouts."""


def _in_backward() -> bool:
    """There a program has no place to redistribute first."""
    return torch._C._current_graph_task_id() != -1


def _op(name: str, overload: str) -> Any:
    space, _, short = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), short), overload or "default")


def _asked(op: Any, specs: list, metas: list) -> "tuple[list, list] | None":
    """What PyTorch's rules say about an op on tensors with these layouts, whose results have the forms of ``metas``."""
    dispatcher = torch_dtensor_class()._op_dispatcher
    if op in dispatcher._custom_op_handlers:
        return None
    schema = _schema(op, specs, dispatcher.sharding_propagator)
    try:
        found = _propagator(dispatcher.sharding_propagator, op, metas).propagate_op_sharding_non_cached(schema)
    except RuntimeError as error:
        if not _is_meant(error):
            raise
        raise _Refused(f"{error}\n\nSharding propagation failed for {schema}. {_WAY_OUT}") from error
    wanted = found.redistribute_schema if found.needs_redistribute else schema
    return _inputs(wanted, schema), _outputs(found.output_spec, len(metas))


def _is_meant(error: RuntimeError) -> bool:
    """Whether the rule itself has raised it, and not something that it called and that it can not do."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    package = innermost.f_globals.get("__package__")
    return type(error) is RuntimeError and package == torch.distributed.tensor._ops.__name__


def _schema(op: Any, specs: list, rules: Any) -> Any:
    """The call as PyTorch's rules see it: arguments that are defaults are left out."""
    from torch.distributed.tensor._op_schema import OpSchema

    defaults = [argument.default_value for argument in op._schema.arguments[len(specs) :]]
    positional, named = as_given(op._schema, [*specs, *defaults])
    info = rules.op_to_schema_info.get(op) or rules.op_to_schema_info_for_single_dim_strategy.get(op)
    return OpSchema(op, tuple(positional), named, schema_info=info)


def _spec_of(value: Any, placements: Iterator[Any], mesh: Any) -> Any:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor.placement_types import Replicate

    if isinstance(value, list):
        return [_spec_of(item, placements, mesh) for item in value]
    if not isinstance(value, _core.TensorForm):
        return value
    lies = next(placements) or (Replicate(),) * mesh.ndim  # a plain number is the same on all ranks
    return DTensorSpec(mesh, lies, tensor_meta=_meta_of(value))


def _meta_of(form: Any) -> Any:
    from torch.distributed.tensor._dtensor_spec import TensorMeta

    return None if form is None else TensorMeta(torch.Size(form.shape), tuple(form.stride), form.dtype)


def _propagator(theirs: Any, op: Any, metas: list) -> Any:
    """PyTorch's rules, given the forms of the results, which they would otherwise find by running the op on fake tensors."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    returns = op._schema.returns
    if len(returns) == 1:
        told: Any = metas if isinstance(returns[0].type, torch.ListType) else metas[0]
    else:
        told = tuple(metas)

    class Told(ShardingPropagator):
        def _propagate_tensor_meta_non_cached(self, op_schema: Any) -> Any:
            return told

        def _adjust_shape_and_stride_args(self, out_tensor_meta: Any, schema: Any, spec: Any) -> Any:
            return schema  # sizes are made local by the core

    made = Told.__new__(Told)
    made.__dict__.update(theirs.__dict__)
    return made


def _inputs(wanted: Any, now: Any) -> list:
    """The placements of the tensors of a schema, whose present layouts are those of another one."""
    return [tuple(map(_as_input, one.placements, other.placements)) for one, other in zip(_specs(wanted), _specs(now), strict=True)]


def _specs(schema: Any) -> list:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    leaves = pytree.tree_leaves((schema.args_schema, schema.kwargs_schema))
    return [leaf for leaf in leaves if isinstance(leaf, DTensorSpec)]


def _outputs(spec: Any, count: int) -> list:
    specs: Sequence[Any] = spec if isinstance(spec, (list, tuple)) else [spec]
    return [None if one is None else tuple(map(_as_output, one.placements)) for one in specs][:count]


def _as_output(placement: Any) -> Any:
    """A placement that the core knows, too: PyTorch leaves norms of negative orders pending, which have no share for a rank without a part."""
    if not is_known(placement):
        raise NotImplementedError(f"{placement!r} has no counterpart in PyTorch")
    return placement


def _as_input(placement: Any, now: Any) -> Any:
    """Places of which a rank looks up those that it holds are whole on every rank; PyTorch says here what becomes of them."""
    from torch.distributed.tensor.placement_types import Replicate, _MaskPartial

    return Replicate() if isinstance(placement, _MaskPartial) and not isinstance(now, _MaskPartial) else placement
