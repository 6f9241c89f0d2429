"""Checkpoints of modules, optimizers, tensors, numbers and text: safetensors files that any number of ranks can load.

    checkpoint.save("runs/7/step-100", {"model": model, "optimizer": optimizer, "step": 100})
    loaded = checkpoint.load(checkpoint.latest("runs/7"), {"model": model, "optimizer": optimizer})
    step = loaded["step"]

The files are those of the C++ functions of the same names. All ranks call these functions together.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _core
from ._mesh import current_world

__all__ = ["Loaded", "complete", "export_full", "latest", "load", "save", "save_async", "verify"]

Path = str | os.PathLike
_Value = bool | int | float | str


class Loaded(Mapping):
    """The numbers and texts of a checkpoint, and what a load that is not strict left out."""

    def __init__(self, values: dict, missing: list, unexpected: list, mismatched: list) -> None:
        self._values = values
        self.missing, self.unexpected, self.mismatched = missing, unexpected, mismatched

    def __getitem__(self, name: str) -> _Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _names_of(items: Mapping[str, Any]) -> dict[int, str]:
    """The names of the parameters of all modules among the items, by identity."""
    names: dict[int, str] = {}
    for scope, item in items.items():
        if isinstance(item, torch.nn.Module):
            for name, parameter in item.named_parameters():
                names.setdefault(id(parameter), f"{scope}.{name}" if scope else name)
    return names


def _parameters(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield names.get(id(parameter), f"{number}.{place}"), parameter


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _options(group: Mapping[str, Any]) -> dict[str, _Value]:
    """The options of a group of parameters; a tuple such as betas is one value per element."""
    found: dict[str, _Value] = {}
    for name, value in group.items():
        parts = {f"{name}.{i}": part for i, part in enumerate(value)} if isinstance(value, (tuple, list)) else {name: value}
        found |= {key: part for key, part in parts.items() if name != "params" and isinstance(part, (bool, int, float, str))}
    return found


def _flat(items: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved: tensors, dicts of tensors, and values."""
    names, flat = _names_of(items), {}
    for scope, item in items.items():
        if isinstance(item, torch.nn.Module):
            flat[scope] = _tensors_of(item)
        elif isinstance(item, torch.optim.Optimizer):
            tensors = {}
            for name, parameter in _parameters(item, names):
                for key, value in item.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        tensors[f"state.{name}.{key}"] = value
                    elif isinstance(value, (bool, int, float, str)):
                        flat[_joined(scope, f"state.{name}.{key}")] = value
            flat[scope] = tensors
            for number, group in enumerate(item.param_groups):
                flat |= {_joined(scope, f"groups.{number}.{key}"): value for key, value in _options(group).items()}
        elif isinstance(item, (torch.Tensor, bool, int, float, str)):
            flat[scope] = item
        elif isinstance(item, Mapping):
            flat[scope] = dict(item)
        else:
            raise TypeError(f'[checkpoint.save] "{scope}" is a {type(item).__name__}. Give modules, optimizers, tensors, dicts of '
                            "tensors, numbers and texts.")
    return flat


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}


def save(path: Path, items: Mapping[str, Any], *, keep: int = 0) -> None:
    """Writes a checkpoint and returns when it is complete on the disk. `keep`: how many stay in its folder; 0: all."""
    _core.checkpoint_save(current_world(), os.fspath(path), _flat(items), keep)


def save_async(path: Path, items: Mapping[str, Any], *, keep: int = 0) -> "_core.PendingSave":
    """The same, but returns when everything has been copied: ``.wait()`` raises what went wrong, and so does the next save."""
    return _core.checkpoint_save_async(current_world(), os.fspath(path), _flat(items), keep)


def _like(parameter: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A new tensor of a state: it lies as its parameter, or is plain if it has another shape."""
    if shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(shape, dtype=dtype)


class _OptimizerTarget:
    """The state of an optimizer as a checkpoint has it, set when all of it has been read."""

    def __init__(self, scope: str, optimizer: torch.optim.Optimizer, names: dict[int, str], stored: dict, values: dict) -> None:
        self.optimizer, self.tensors, self.states, self.options = optimizer, {}, [], []
        for name, parameter in _parameters(optimizer, names):
            prefix, state = _joined(scope, f"state.{name}."), {}
            for key in (key for key in stored if key.startswith(prefix)):
                state[key.removeprefix(prefix)] = self.tensors[key.removeprefix(_joined(scope, ""))] = _like(parameter, *stored[key])
            state |= {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
            self.states.append((parameter, state))
        for number, group in enumerate(optimizer.param_groups):
            prefix = _joined(scope, f"groups.{number}.")
            self.options.append((group, {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}))

    def finish(self) -> None:
        for parameter, state in self.states:
            self.optimizer.state.pop(parameter, None)
            if state:
                self.optimizer.state[parameter] = state
        for group, options in self.options:
            for name, value in group.items():
                if name == "params":
                    continue
                if isinstance(value, (tuple, list)):
                    group[name] = type(value)(options.get(f"{name}.{i}", part) for i, part in enumerate(value))
                elif name in options:
                    group[name] = options[name]


def load(path: Path, items: Mapping[str, Any], *, strict: bool = True, rename: Callable[[str], str] | None = None) -> Loaded:
    """Reads a checkpoint, or files of Hugging Face, into the items, in place: every rank what it holds.

    `strict`: names that are missing, unexpected or of another shape are an error. `rename`: from a name here to the one there;
    states of optimizers are not renamed.
    """
    path = os.fspath(path)
    names, flat, targets = _names_of(items), {}, []
    for scope, item in items.items():
        if isinstance(item, torch.nn.Module):
            flat[scope] = _tensors_of(item)
        elif isinstance(item, torch.optim.Optimizer):
            target = _OptimizerTarget(scope, item, names, _core.checkpoint_tensors(path), _core.checkpoint_values(path))
            targets.append(target)
            flat[scope] = target.tensors
        else:
            flat[scope] = dict(item) if isinstance(item, Mapping) else item
    with torch.no_grad():
        loaded = Loaded(*_core.checkpoint_load(current_world(), path, flat, strict, rename))
    for target in targets:
        target.finish()
    return loaded


def export_full(path: Path, items: Mapping[str, Any], *, file_bytes: int = 5 << 30, rename: Callable[[str], str] | None = None) -> None:
    """Writes a folder as Hugging Face lays it out. No rank holds a whole tensor for it."""
    _core.checkpoint_export(current_world(), os.fspath(path), _flat(items), file_bytes, rename)


def latest(folder: Path) -> str:
    """The newest complete checkpoint in a folder."""
    return _core.checkpoint_latest(os.fspath(folder))


def complete(folder: Path) -> list[str]:
    """The complete checkpoints in a folder, the oldest first."""
    return _core.checkpoint_complete(os.fspath(folder))


def verify(path: Path) -> list[str]:
    """Reads everything, and returns what is wrong with it: nothing if all is as it was written."""
    return _core.checkpoint_problems(os.fspath(path))
