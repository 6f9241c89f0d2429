"""Tensor parallelism: styles say how one module is sharded, and a plan says which module gets which style."""

import contextlib
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.overrides import TorchFunctionMode

from . import _core
from ._module import distribute_module, distribute_parameter, submodules_at
from ._tensor import DTensor, _counted_from_front, _given_mesh
from ._wrapped_module import check_layout_is_free

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "loss_parallel",
    "parallelize_module",
]


def _distributed(tensor: torch.Tensor, mesh: Any, layout: Placement, extent: "int | None" = None) -> torch.Tensor:
    """A plain tensor as the shard that ``layout`` says; ``extent`` is the global one of the last dim, where known."""
    if _core.is_dtensor(tensor):
        return tensor
    if extent is None or not layout.is_shard() or layout.dim % tensor.dim() != tensor.dim() - 1:
        return DTensor.from_local(tensor, mesh, (layout,), run_check=False)
    shape = torch.Size((*tensor.shape[:-1], extent))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(tensor, mesh, (layout,), run_check=False, shape=shape, stride=stride)


def _brought(tensor: torch.Tensor, layout: "Placement | None") -> torch.Tensor:
    """The tensor in the layout, moved only if it has another layout."""
    if layout is None or tensor.placements == (_counted_from_front(layout, tensor.ndim),):
        return tensor  # a gradient with a pending sum is passed on unchanged
    return _core.redistribute(tensor, (layout,), True)


def _left(tensor: torch.Tensor, use_local: bool) -> torch.Tensor:
    return tensor.to_local() if use_local else tensor


class _LeafStyle(ParallelStyle):
    """A style of Linear and Embedding: the weights are sharded, there is one input and one output.

    The methods have the names and arguments that PyTorch's have, for programs that replace them.
    """

    _cuts: dict[type, dict[str, Placement]]  # by module and parameter; those not named are replicated
    desired_input_layouts: tuple[Placement, ...]  # the layouts that the module needs

    def __init__(self, input_layout: Placement, output_layout: Placement, use_local_output: bool) -> None:
        self.input_layouts = (input_layout,)
        self.output_layouts = (output_layout,)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            raise NotImplementedError(f"{type(self).__name__} currently only support nn.Linear and nn.Embedding!")
        cut = self._partition_linear_fn if isinstance(module, nn.Linear) else self._partition_embedding_fn
        prepare = partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts)
        finish = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, cut, prepare, finish)

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
        self._cut(self._cuts[nn.Linear], module, device_mesh)

    def _partition_embedding_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
        self._cut(self._cuts[nn.Embedding], module, device_mesh)

    def _cut(self, cuts: dict[str, Placement], module: nn.Module, mesh: Any) -> None:
        for name, _ in module.named_parameters(recurse=False):
            distribute_parameter(module, name, mesh, (cuts.get(name, Replicate()),), self.src_data_rank)

    @staticmethod
    def _prepare_input_fn(
        input_layouts: tuple, desired_input_layouts: tuple, mod: nn.Module, inputs: tuple, device_mesh: Any
    ) -> tuple:
        extent = mod.in_features if isinstance(mod, nn.Linear) else None
        tensor = _distributed(inputs[0], device_mesh, input_layouts[0], extent)
        return (_brought(tensor, desired_input_layouts[0]), *inputs[1:])

    @staticmethod
    def _prepare_output_fn(
        output_layouts: tuple, use_local_output: bool, mod: nn.Module, outputs: torch.Tensor, device_mesh: Any
    ) -> torch.Tensor:
        return _left(_brought(outputs, output_layouts[0]), use_local_output)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, output_layouts={self.output_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class ColwiseParallel(_LeafStyle):
    """Shards the output features of Linear, or the columns of Embedding."""

    _cuts = {nn.Linear: {"weight": Shard(0), "bias": Shard(0)}, nn.Embedding: {"weight": Shard(1)}}

    def __init__(
        self,
        *,
        input_layouts: "Placement | None" = None,
        output_layouts: "Placement | None" = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(input_layouts or Replicate(), output_layouts or Shard(-1), use_local_output)
        self.desired_input_layouts = (Replicate(),)


class RowwiseParallel(_LeafStyle):
    """Shards the input features of Linear, or the rows of Embedding."""

    _cuts = {nn.Linear: {"weight": Shard(1)}, nn.Embedding: {"weight": Shard(0)}}

    def __init__(
        self,
        *,
        input_layouts: "Placement | None" = None,
        output_layouts: "Placement | None" = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(input_layouts or Shard(-1), output_layouts or Replicate(), use_local_output)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        self.desired_input_layouts = (Shard(-1) if isinstance(module, nn.Linear) else Replicate(),)
        return super()._apply(module, device_mesh)


class SequenceParallel(ParallelStyle):
    """Replicates the parameters and shards the input along its sequence: for norms and dropout."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        prepare = partial(self._prepare_input_fn, self.sequence_sharding)
        finish = partial(self._prepare_output_fn, self.use_local_output)
        return distribute_module(module, device_mesh, self._replicate_module_fn, prepare, finish)

    def _replicate_module_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
        for key, _ in module.named_parameters(recurse=False):
            distribute_parameter(module, key, device_mesh, (Replicate(),), self.src_data_rank)

    @staticmethod
    def _prepare_input_fn(sequence_sharding: tuple, mod: nn.Module, inputs: tuple, device_mesh: Any) -> tuple:
        tensor = inputs[0]
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"expecting input of {mod} to be a torch.Tensor or DTensor, but got {tensor}")
        cut = sequence_sharding[0]
        return (_brought(_distributed(tensor, device_mesh, cut), cut), *inputs[1:])

    @staticmethod
    def _prepare_output_fn(use_local_output: bool, mod: nn.Module, outputs: Any, device_mesh: Any) -> Any:
        return _left(outputs, use_local_output)

    def __repr__(self) -> str:
        return f"SequenceParallel(sequence_dim={self.sequence_sharding[0].dim}, use_local_output={self.use_local_output})"


def _as_tuple(layouts: Any) -> Any:
    return (layouts,) if isinstance(layouts, Placement) else layouts


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)


class PrepareModuleInput(ParallelStyle):
    """Turns the inputs of a module into distributed tensors of the desired layouts."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: "dict[str, Placement] | None" = None,
        desired_input_kwarg_layouts: "dict[str, Placement] | None" = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts, self.desired_input_layouts = _as_tuple(input_layouts), _as_tuple(desired_input_layouts)
        self.use_local_output = use_local_output
        if self.input_layouts is not None:
            _need(self.desired_input_layouts is not None, "desired module inputs should not be None!")
            same = len(self.input_layouts) == len(self.desired_input_layouts)
            _need(same, "input_layouts and desired_input_layouts should have same length!")
        self.with_kwargs = input_kwarg_layouts is not None
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        same = len(self.input_kwarg_layouts) == len(self.desired_input_kwarg_layouts)
        _need(not self.with_kwargs or same, "input_kwarg_layouts and desired_input_kwarg_layouts should have same length!")

    def _prepare_input_arg(
        self, input: Any, mesh: Any, input_layout: "Placement | None", desired_layout: "Placement | None"
    ) -> Any:
        if input_layout is None:
            return input
        _need(isinstance(input, torch.Tensor), "expecting input to be a torch.Tensor!")
        return _left(_brought(_distributed(input, mesh, input_layout), desired_layout), self.use_local_output)

    def _prepare_input_fn(self, inputs: Any, device_mesh: Any) -> Any:
        if self.input_layouts is None:
            return inputs
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        if len(inputs) != len(self.input_layouts):
            raise ValueError("module inputs and input_layouts should have same length!")
        layouts = zip(inputs, self.input_layouts, self.desired_input_layouts)
        return tuple(self._prepare_input_arg(value, device_mesh, layout, desired) for value, layout, desired in layouts)

    def _prepare_input_kwarg_fn(self, inputs: Any, kwarg_inputs: dict[str, Any], device_mesh: Any) -> tuple:
        prepared = dict(kwarg_inputs)
        for name, layout in self.input_kwarg_layouts.items():
            if name in kwarg_inputs:
                desired = self.desired_input_kwarg_layouts.get(name)
                prepared[name] = self._prepare_input_arg(kwarg_inputs[name], device_mesh, layout, desired)
        return self._prepare_input_fn(inputs, device_mesh), prepared

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = device_mesh
        if self.with_kwargs:
            both = lambda _, inputs, kwargs: self._prepare_input_kwarg_fn(inputs, kwargs, mesh)
            module.register_forward_pre_hook(both, with_kwargs=True)
        else:
            module.register_forward_pre_hook(lambda _, inputs: self._prepare_input_fn(inputs, mesh))
        return module

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, desired_input_layouts={self.desired_input_layouts}, "
            f"input_kwarg_layouts={self.input_kwarg_layouts}, "
            f"desired_input_kwarg_layouts={self.desired_input_kwarg_layouts}, use_local_output={self.use_local_output})"
        )


class PrepareModuleOutput(ParallelStyle):
    """Turns the outputs of a module into the desired layouts."""

    def __init__(self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True) -> None:
        self.output_layouts, self.desired_output_layouts = _as_tuple(output_layouts), _as_tuple(desired_output_layouts)
        self.use_local_output = use_local_output
        same = len(self.output_layouts) == len(self.desired_output_layouts)
        _need(same, "output_layouts and desired_output_layouts should have same length!")

    def _prepare_out_fn(self, outputs: Any, device_mesh: Any) -> Any:
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(values) != len(self.output_layouts):
            raise ValueError("module outputs and output_layouts should have same length!")
        layouts = zip(values, self.output_layouts, self.desired_output_layouts)
        made = tuple(self._one(value, device_mesh, layout, desired) for value, layout, desired in layouts)
        return made[0] if len(made) == 1 else made

    def _one(self, value: Any, mesh: Any, layout: "Placement | None", desired: "Placement | None") -> Any:
        if layout is None:
            return value
        return _left(_brought(_distributed(value, mesh, layout), desired), self.use_local_output)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        module.register_forward_hook(lambda _, inputs, outputs: self._prepare_out_fn(outputs, device_mesh))
        return module

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(output_layouts={self.output_layouts}, "
            f"desired_output_layouts={self.desired_output_layouts}, use_local_output={self.use_local_output})"
        )


class PrepareModuleInputOutput(ParallelStyle):
    """Both: inputs and outputs."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: "dict[str, Placement] | None" = None,
        desired_input_kwarg_layouts: "dict[str, Placement] | None" = None,
        use_local_input: bool = False,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prepare_module_input}, {self.prepare_module_output})"


def parallelize_module(
    module: nn.Module,
    device_mesh: Any = None,
    parallelize_plan: "ParallelStyle | dict[str, ParallelStyle] | None" = None,
    *,
    src_data_rank: "int | None" = 0,
) -> nn.Module:
    """Applies one style to the module, or styles by path to its submodules. Names in a path may hold wildcards."""
    mesh = _given_mesh(device_mesh, "parallelize_module")
    if mesh.ndim != 1:
        raise ValueError(f"[parallelize_module] {mesh} has {mesh.ndim} axes. Slice it to one: mesh['tp'].")
    if parallelize_plan is None:
        warnings.warn("No parallelize_plan is provided and auto-parallel is not supported, so nothing is done.", stacklevel=2)
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        _check_free(module, mesh, [(module, parallelize_plan)])
        parallelize_plan.src_data_rank = src_data_rank
        return parallelize_plan._apply(module, mesh)
    if not isinstance(parallelize_plan, dict):
        text = f"Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for parallelize_plan, {type(parallelize_plan)} found!"
        raise TypeError(text)
    found = []
    for path, style in parallelize_plan.items():
        found += [(part, style) for part in submodules_at(module, path)]
    _check_free(module, mesh, found)
    for submodule, style in found:
        parallelize_module(submodule, mesh, style, src_data_rank=src_data_rank)
    return module


def _check_free(module: nn.Module, mesh: Any, plan: "list[tuple[nn.Module, Any]]") -> None:
    """Styles that lay out parameters need them free; others change what goes in and out."""
    parts = [part for part, style in plan if isinstance(style, (_LeafStyle, SequenceParallel))]
    check_layout_is_free(module, "parallelize_module", mesh, parts)


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """Cross entropy of logits that are sharded along their classes, without gathering them.

    The scope lets the targets be plain tensors, the same on every rank. Under the drop-in it also keeps dims sharded that ops
    would gather, and logits that are not sharded along their classes are an error, as in PyTorch. Without the drop-in, the core keeps
    dims sharded for all distributed tensors of any layout.
    """
    from ._dropin import installed

    checks = _ClassesAreCut() if installed() else contextlib.nullcontext()
    with _core.PlainTensorScope(_core.PlainTensors.replicate), _core.UnguidedScope(), checks:
        yield


class _ClassesAreCut(TorchFunctionMode):
    """Refuses logits that a program has gathered, or has never cut, though it asks for a loss over cut classes."""

    _functions = (nn.functional.cross_entropy,)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: "dict | None" = None) -> Any:
        logits = args[0] if args else None
        if func not in self._functions or not isinstance(logits, torch.Tensor) or not _core.is_dtensor(logits):
            return func(*args, **(kwargs or {}))
        dim = min(1, logits.ndim - 1)
        axes = [axis for axis, placement in enumerate(logits.placements) if placement.is_shard(dim)]
        if len(axes) != 1:
            raise ValueError(
                f"loss_parallel() requires exactly one mesh dim to shard tensor dimension {dim}, but got placements "
                f"{logits.placements} with {len(axes)} such mesh dim(s)."
            )
        target = args[1] if len(args) > 1 else (kwargs or {}).get("target")
        others_cut = any(p.is_shard() for axis, p in enumerate(logits.placements) if axis != axes[0])
        if others_cut and isinstance(target, torch.Tensor) and not _core.is_dtensor(target):
            raise ValueError(
                f"loss_parallel() requires a DTensor as target if the logits are also sharded along other dims, {logits.placements}: "
                "a plain one may be the whole or this rank's part. Distribute it."
            )
        loss = func(*args, **(kwargs or {}))
        whole = [Replicate() if axis == axes[0] and p.is_partial() else p for axis, p in enumerate(loss.placements)]
        return loss.redistribute(placements=whole)  # along the classes every rank has the loss, as PyTorch's
