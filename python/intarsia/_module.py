"""distribute_module: makes the parameters and buffers of a module distributed."""

import inspect
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from . import _core
from ._mesh import core_mesh
from ._tensor import _given_mesh, _replicated, xla_function
from ._wrapped_module import check_layout_is_free

PartitionFn = Callable[[str, nn.Module, Any], None]


def distribute_module(
    module: nn.Module,
    device_mesh: Any = None,
    partition_fn: "PartitionFn | None" = None,
    input_fn: "Callable | None" = None,
    output_fn: "Callable | None" = None,
) -> nn.Module:
    """Distributes parameters and buffers as ``partition_fn(name, submodule, mesh)`` says, the others replicated.

    ``input_fn(module, inputs, mesh)`` and ``output_fn(module, outputs, mesh)`` prepare its inputs and outputs.
    Parameters keep their identity, so an optimizer made before sees them.
    """
    mesh = _given_mesh(device_mesh, "distribute_module")
    if getattr(module, "_distribute_module_applied", False):
        raise RuntimeError("[distribute_module] should only be called once on a module, but it has already been called!")
    if mesh.device_type == "xla":
        return xla_function("xla_distribute_module")(module, mesh, partition_fn, input_fn, output_fn)
    check_layout_is_free(module, "distribute_module", mesh)
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
        replicate_rest(submodule, mesh)
    if input_fn is not None:
        _add_input_hook(module, input_fn, mesh)
    if output_fn is not None:
        _add_output_hook(module, output_fn, mesh)
    module._distribute_module_applied = True  # type: ignore[assignment]
    return module


def replicate_rest(module: nn.Module, mesh: Any) -> None:
    """Replicates the parameters and buffers of this module alone that are not distributed yet."""
    whole = _replicated(mesh)
    for name, parameter in module._parameters.items():
        if parameter is not None and not _core.is_dtensor(parameter):
            distribute_parameter(module, name, mesh, whole)
    for name, buffer in module._buffers.items():
        if buffer is not None and not _core.is_dtensor(buffer):
            module._buffers[name] = _core.distribute_tensor(buffer.detach(), core_mesh(mesh), whole, 0)


def distribute_parameter(
    module: nn.Module, name: str, mesh: Any, placements: Any, src_data_rank: "int | None" = 0
) -> None:
    """Distributes a parameter over the mesh in place: all references to it see the change. One without data, or that inference mode
    has frozen, is replaced."""
    parameter = module._parameters[name]
    if parameter.is_meta or parameter.is_inference() or torch.is_inference_mode_enabled():
        source = None if parameter.is_meta else src_data_rank
        made = _core.distribute_tensor(parameter.detach(), core_mesh(mesh), placements, source)
        module._parameters[name] = nn.Parameter(made, parameter.requires_grad)
    else:
        _core.distribute_parameter(parameter, core_mesh(mesh), placements, src_data_rank)  # type: ignore[arg-type]


def submodules_at(module: nn.Module, path: str) -> list[nn.Module]:
    """The submodules at a path. A name without a match is warned about."""
    found = [module]
    for name in path.split(".") if path else ():
        inside = [child for parent in found for key, child in parent.named_children() if fnmatch(key, name)]
        if not inside:
            text = f"Parallelize plan key '{path}' could not be resolved: no submodule matching '{name}'; it is skipped."
            warnings.warn(text, stacklevel=3)
        found = inside
    return found


def _takes(function: Callable, count: int) -> bool:
    return len(inspect.signature(function).parameters) == count


def _add_input_hook(module: nn.Module, function: Callable, mesh: Any) -> None:
    if _takes(function, 3):
        module.register_forward_pre_hook(lambda m, inputs: function(m, inputs, mesh))
    elif _takes(function, 2):
        _warn("input_fn", "inputs")
        module.register_forward_pre_hook(lambda _, inputs: function(inputs, mesh))
    else:
        raise ValueError("[distribute_module] input_fn should take in 3 arguments: module, inputs, device_mesh!")


def _add_output_hook(module: nn.Module, function: Callable, mesh: Any) -> None:
    if _takes(function, 3):
        module.register_forward_hook(lambda m, _, outputs: function(m, outputs, mesh))
    elif _takes(function, 2):
        _warn("output_fn", "outputs")
        module.register_forward_hook(lambda m, _, outputs: function(outputs, mesh))
    else:
        raise ValueError("[distribute_module] output_fn should take in 3 arguments: module, outputs, device_mesh!")


def _warn(name: str, argument: str) -> None:
    text = f"[distribute_module] Deprecating {name}({argument}, device_mesh): take (module, {argument}, device_mesh)."
    warnings.warn(text, FutureWarning, stacklevel=4)
