"""Models whose parameters are created distributed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from . import _core
from ._mesh import core_mesh
from ._tensor import _replicated
from .parallel import ParallelStyle, parallelize_module

Plan = Callable[[str, torch.Size], Sequence[Any]] | ParallelStyle | dict[str, ParallelStyle]


class BornSharded:
    """Inside, new tensors of a given size are created in parts, one for each rank: no rank ever holds a whole model.

    Its numbers are those of the model created outside the scope after the same ``torch.manual_seed``. ``finish`` redistributes
    each parameter and buffer to the layout in the plan: a function ``plan(name, shape)`` that returns placements, or what
    :func:`~intarsia.parallel.parallelize_module` takes. What styles do not name becomes plain and whole on every rank, as
    ``parallelize_module`` leaves it. Without a plan everything keeps its initial layout, for ``fully_shard``.
    """

    def __init__(self, mesh: Any, plan: "Plan | None" = None) -> None:  # type: ignore[valid-type]
        styles = isinstance(plan, (dict, ParallelStyle))
        if plan is not None and not styles and not callable(plan):
            raise TypeError(
                f"[BornSharded] the plan is a {type(plan).__name__}. Give a function of name and shape that returns placements, a "
                "parallel style, or a dict of paths and styles."
            )
        if styles and mesh.ndim != 1:
            raise ValueError(
                f"[BornSharded] {mesh} has {mesh.ndim} axes, and styles are for one. Slice it: mesh['tp'], or give a function of "
                "name and shape."
            )
        self._scope = _core.BornSharded(core_mesh(mesh))
        self._mesh, self._plan = mesh, plan

    def __enter__(self) -> "BornSharded":
        self._scope.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._scope.__exit__(*args)

    def finish(self, module: nn.Module) -> nn.Module:
        """To be called after the scope. Returns the module."""
        if isinstance(self._plan, ParallelStyle):
            _lay_out_by_styles(module, self._mesh, {"": self._plan})
        elif isinstance(self._plan, dict):
            _lay_out_by_styles(module, self._mesh, self._plan)
        elif self._plan is not None:
            _lay_out_by_name(module, self._mesh, self._plan)
        return module


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _lay_out_by_name(module: nn.Module, mesh: Any, plan: Callable) -> None:
    with torch.no_grad(), _core.MovingParameters():
        for name, tensor in _tensors_of(module):
            _core.distribute_parameter(tensor, core_mesh(mesh), list(plan(name, tensor.shape)), 0)


def _lay_out_by_styles(module: nn.Module, mesh: Any, plan: "dict[str, ParallelStyle]") -> None:
    """Entry by entry, so that no more than what one entry moves is there twice."""
    born = {id(tensor) for _, tensor in _tensors_of(module)}
    moving = _core.MovingParameters()
    with torch.no_grad(), moving:
        for path, style in plan.items():
            parallelize_module(module, mesh, {path: style})
        for one in module.modules():
            styled = getattr(one, "_distribute_module_applied", False)
            for tensor in (*one._parameters.values(), *one._buffers.values()):
                if tensor is None or id(tensor) not in born or not _core.is_dtensor(tensor) or moving.has_moved(tensor):
                    continue
                if styled:  # with it, as distribute_module does with what its style leaves out
                    _core.distribute_parameter(tensor, core_mesh(mesh), _replicated(mesh), 0)
                else:
                    tensor.data = _core.full_tensor(tensor.detach(), None)
