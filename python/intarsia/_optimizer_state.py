"""The state of torch.optim's optimizers as checkpoints have it, by the names of parameters: the same as that of C++'s torch::optim.

Where the two languages differ, the checkpoint has it as C++ does: `betas` are beta1 and beta2, and steps are integers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from . import _core

Value = bool | int | float | str
Names = dict[int, str]  # of parameters, by identity
_VALUES = (bool, int, float, str)
_COUNTED = ("Adam", "AdamW", "Adagrad", "RMSprop")  # their steps are numbers in C++ and tensors in Python
_NUMBERS = {"LBFGS": ("t", "prev_loss")}  # tensors at times
_TENSORS = {"LBFGS": ("H_diag",)}  # a number at times
_IN_CPP = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS")
_NOT_SAVED = ("params", "param_names")


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of its class, or of the one of torch.optim that it is derived from."""
    for kind in type(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer:
            return kind.__name__
    return type(optimizer).__name__


def parameters_of(optimizer: torch.optim.Optimizer, names: Names) -> Iterator[tuple[str, torch.Tensor]]:
    """One of no module among the items is named by its place."""
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield names.get(id(parameter), f"{number}.{place}"), parameter


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and not _core.is_dtensor(value)


def _option_names(name: str, count: int) -> list[str]:
    return ["beta1", "beta2"] if name == "betas" and count == 2 else [f"{name}.{i}" for i in range(count)]


def _options_of(group: Mapping[str, Any]) -> dict[str, Value]:
    """Numbers and texts among the options of a group. Others, such as functions, are the program's."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        if name in _NOT_SAVED:
            continue
        if isinstance(value, (tuple, list)):
            found |= zip(_option_names(name, len(value)), value)
        else:
            found[name] = value
    found = {name: value.item() if _is_number(value) else value for name, value in found.items()}
    return {name: value for name, value in found.items() if isinstance(value, _VALUES)}


def _flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A field of a state as tensors and values. Of a list, those that it has."""
    if isinstance(value, (list, tuple)):
        yield f"{name}.size", len(value)
        for i, part in enumerate(value):
            yield from _flattened(f"{name}.{i}", part)
    elif isinstance(value, (torch.Tensor, *_VALUES)):
        yield name, value
    elif value is not None:
        raise TypeError(
            f'[checkpoint.save] the state "{name}" of an optimizer is a {type(value).__name__}. Tensors, numbers, texts and '
            "lists of these can be saved."
        )


def _as_in_cpp(kind: str, key: str, value: Any) -> Any:
    if kind in _COUNTED and key == "step" and _is_number(value):
        return int(value.item())
    if key in _NUMBERS.get(kind, ()) and _is_number(value):
        return float(value.item())
    if key in _TENSORS.get(kind, ()) and isinstance(value, (int, float)):
        return torch.tensor(float(value))
    return value


def contents_of(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """Tensors and values by the names inside the item."""
    kind = kind_of(optimizer)
    found: dict[str, Any] = {"kind": kind, "groups.size": len(optimizer.param_groups)}
    for number, group in enumerate(optimizer.param_groups):
        found |= {f"groups.{number}.{name}": value for name, value in _options_of(group).items()}
    for name, parameter in parameters_of(optimizer, names):
        for key, value in optimizer.state.get(parameter, {}).items():
            found |= _flattened(f"state.{name}.{key}", _as_in_cpp(kind, key, value))
    return found


def _keys(stored: Iterable[str]) -> list[str]:
    """What a field of a state may be called: the last word of a name, and of a list the last two."""
    keys: dict = {}
    for name in stored:
        *_, before, last = "", *name.rsplit(".", 2)
        keys[f"{before}.{last}" if last.isdigit() or last == "size" else last] = None
    return list(keys)


def _like(parameter: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], plain: bool) -> torch.Tensor:
    """A new tensor of a state: it has its parameter's layout, or is replicated if it has another shape. Numbers that were plain stay so."""
    if shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    if not _core.is_dtensor(parameter) or (plain and not shape):
        return torch.empty(shape, dtype=dtype)
    from torch.distributed.tensor.placement_types import Replicate

    mesh = _core.mesh_of(parameter)
    return _core.empty(list(shape), mesh, [Replicate()] * mesh.ndim, dtype, False)


def _unflattened(fields: Mapping[str, Any]) -> dict[str, Any]:
    state = {key: value for key, value in fields.items() if "." not in key}
    for key, size in fields.items():
        name, _, last = key.rpartition(".")
        if last == "size":
            state[name] = [fields.get(f"{name}.{i}") for i in range(size)]
    return state


class OptimizerTarget:
    """The state of an optimizer as a checkpoint has it, set when all of it has been read."""

    def __init__(self, scope: str, optimizer: torch.optim.Optimizer, names: Names) -> None:
        self.scope, self.optimizer, self.names = f"{scope}." if scope else "", optimizer, names
        self.kind = kind_of(optimizer)

    def want(self, stored: Mapping[str, tuple], values: Mapping[str, Value], rename: Callable[[str], str]) -> tuple:
        """By the index of the checkpoint: the tensors to read into, the values that it uses, and those that are missing."""
        self.stored, self.values, self.rename = stored, values, rename
        self.tensors: dict[str, torch.Tensor] = {}
        self.used: list[str] = []
        self.missing: list[str] = []
        self._check("kind", self.kind, "is of the kind")
        groups = self.optimizer.param_groups
        if self._value("groups.size") is None:
            self.missing.append(f"{self.scope}groups.size")
        self._check("groups.size", len(groups), "has groups of parameters:")
        self.options = [(group, self._options(number, group)) for number, group in enumerate(groups)]
        keys = _keys([*stored, *values])
        self.states = [(p, self._state(f"state.{name}.", p, keys)) for name, p in parameters_of(self.optimizer, self.names)]
        return self.tensors, self.used, self.missing

    def _value(self, name: str) -> "Value | None":
        known = self.rename(self.scope + name)
        if known not in self.values:
            return None
        self.used.append(known)
        return self.values[known]

    def _check(self, name: str, here: Value, what: str) -> None:
        there = self._value(name)
        if there is not None and there != here:
            raise ValueError(f'[checkpoint::load] the optimizer "{self.scope[:-1]}" {what} {here}, but {there} in the checkpoint. Make it alike.')

    def _options(self, number: int, group: Mapping[str, Any]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, here in _options_of(group).items():
            value = self._value(f"groups.{number}.{name}")
            if value is not None:
                found[name] = value
            else:
                self._check_absent(f"groups.{number}.", name, here)
        for name, here in group.items():  # None here, but something there
            value = self._value(f"groups.{number}.{name}") if here is None else None
            if value is not None:
                found[name] = value
        return found

    def _check_absent(self, group: str, name: str, here: Value) -> None:
        """C++ has no such option, and computes its steps in one way."""
        meaning = {"maximize": False, "decoupled_weight_decay": self.kind == "AdamW"}
        if self.kind not in _IN_CPP or name not in {*meaning, "capturable", "differentiable", "foreach", "fused", "initial_lr"}:
            self.missing.append(self.scope + group + name)
        elif name in meaning and here != meaning[name]:
            raise ValueError(
                f'[checkpoint::load] "{self.scope}{group}{name}" is {here} here, and the checkpoint is of torch::optim::{self.kind}, '
                f"which computes its steps as if it were {meaning[name]}."
            )

    def _state(self, scope: str, parameter: torch.Tensor, keys: list[str]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key in keys:
            name = self.scope + scope + key
            known = self.rename(name)
            if known in self.stored:
                fields[key] = self.tensors[name] = _like(parameter, *self.stored[known])
            elif known in self.values:
                fields[key] = self._value(scope + key)
        if self.kind in _COUNTED and isinstance(fields.get("step"), int):
            double = torch.get_default_dtype() == torch.float64  # as torch.optim makes them
            fields["step"] = torch.tensor(float(fields["step"]), dtype=torch.float64 if double else torch.float32)
        return _unflattened(fields)

    def finish(self) -> None:
        for parameter, state in self.states:
            self.optimizer.state.pop(parameter, None)
            if state:
                self.optimizer.state[parameter] = state
        for group, options in self.options:
            for name, here in group.items():
                group[name] = _option_from(name, here, options)


def _option_from(name: str, here: Any, options: Mapping[str, Value]) -> Any:
    if isinstance(here, (tuple, list)) and name not in _NOT_SAVED:
        return type(here)(_option_from(key, part, options) for key, part in zip(_option_names(name, len(here)), here))
    if name not in options:
        return here
    return here.fill_(options[name]) if _is_number(here) else options[name]
