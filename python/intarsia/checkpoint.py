"""Checkpoints of modules, optimizers, tensors, numbers and text: safetensors files that any number of ranks can load.

    checkpoint.save("runs/7/step-100", {"model": model, "optimizer": optimizer, "step": 100})
    loaded = checkpoint.load(checkpoint.latest("runs/7"), {"model": model, "optimizer": optimizer})
    step = loaded["step"]

The files are those of the C++ functions of the same names. All ranks call these functions together.
"""

import atexit
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _core, _optimizer_state, _states
from ._mesh import current_world

__all__ = ["Loaded", "complete", "convert", "export_full", "has_latest", "keep", "latest", "load", "resume", "save", "save_async", "verify"]

Path = str | os.PathLike
Progress = Callable[[int, int], Any] | None
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


def _checked(items: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(items, Mapping) or not all(isinstance(name, str) for name in items):
        raise TypeError(f'[checkpoint.{where}] the items are a dict from names to what is saved, as in {{"model": model}}, but got {items!r}.')
    for name, item in items.items():
        if item is None:
            raise TypeError(f'[checkpoint.{where}] "{name}" is None. Leave it out.')
    return items


def _names_of(items: Mapping[str, Any]) -> dict[int, str]:
    """The names of the parameters of all modules among the items, by identity."""
    names: dict[int, str] = {}
    for scope, item in items.items():
        if isinstance(item, torch.nn.Module):
            for name, parameter in item.named_parameters():
                names.setdefault(id(parameter), f"{scope}.{name}" if scope else name)
    return names


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _flat(items: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved: tensors, dicts of tensors, and values."""
    names, flat = _names_of(_checked(items, "save")), {}
    for scope, item in items.items():
        if isinstance(item, torch.nn.Module):
            flat[scope] = _tensors_of(item)
            _refuse_others(scope, item)
        elif isinstance(item, torch.optim.Optimizer):
            _add_dict(flat, scope, _optimizer_state.contents_of(item, names))
        elif _states.has_state(item):
            _add_dict(flat, scope, _states.contents_of(scope, item))
        else:
            _add(flat, scope, item, "save")
    return flat


def _add(flat: dict[str, Any], scope: str, item: Any, where: str) -> None:
    if isinstance(item, Mapping):
        _add_dict(flat, scope, dict(_inside(scope, item, where)))
    elif isinstance(item, (torch.Tensor, bool, int, float, str)):
        flat[scope] = _storable(scope, item, where)
    else:
        raise TypeError(f'[checkpoint.{where}] "{scope}" is a {type(item).__name__}. Give modules, optimizers, schedules, scalers, samplers, '
                        "generators, objects with state_dict and load_state_dict, tensors, numbers and texts, or dicts of tensors, numbers and texts.")


def _storable(name: str, item: Any, where: str) -> Any:
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        raise OverflowError(f'[checkpoint.{where}] "{name}" is {item}, and whole numbers have 64 bits. Give it as a text.')
    return item


def _add_dict(flat: dict[str, Any], scope: str, contents: Mapping[str, Any]) -> None:
    flat[scope] = {name: value for name, value in contents.items() if isinstance(value, torch.Tensor)}
    flat |= {_joined(scope, name): value for name, value in contents.items() if not isinstance(value, torch.Tensor)}


def _inside(scope: str, item: Mapping[str, Any], where: str, before: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors, numbers and texts in a dict, and in dicts in it, by their names below the item."""
    for key, value in item.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _inside(scope, value, where, f"{name}.")
        elif isinstance(value, (torch.Tensor, bool, int, float, str)):
            yield name, _storable(_joined(scope, name), value, where)
        else:
            raise TypeError(f'[checkpoint.{where}] "{_joined(scope, name)}" is a {type(value).__name__}. A dict may hold tensors, numbers, '
                            "texts and dicts.")


def _refuse_others(scope: str, module: torch.nn.Module) -> None:
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f'[checkpoint.save] "{_joined(scope, name)}" is a {type(value).__name__}. Of modules, tensors are saved; give '
                            "the rest of it as separate items.")


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}


def save(path: Path, items: Mapping[str, Any], *, keep: int = 0, progress: Progress = None, quiet: bool = False) -> None:
    """Writes a checkpoint and returns when it is complete on the disk. `keep`: how many checkpoints stay in its folder; 0: all.

    `progress(done, total)` is called with the bytes of this process; in addition, rank 0 reports long loads and saves on stderr, unless `quiet`.
    """
    _core.checkpoint_save(current_world(), os.fspath(path), _flat(items), keep, progress, quiet)


def save_async(
    path: Path, items: Mapping[str, Any], *, keep: int = 0, progress: Progress = None, quiet: bool = False, timeout: float = 1800
) -> "_core.PendingSave":
    """The same, but returns when everything has been copied: ``.wait()`` raises an error of the save, and so does the next save.

    `timeout`: how many seconds it waits for other ranks.
    """
    return _core.checkpoint_save_async(current_world(), os.fspath(path), _flat(items), keep, progress, quiet, timeout)


atexit.register(_core.checkpoint_wait)  # while Python's functions can still be called


def load(
    path: Path,
    items: Mapping[str, Any],
    *,
    strict: bool = True,
    rename: Callable[[str], str] | None = None,
    progress: Progress = None,
    quiet: bool = False,
) -> Loaded:
    """Reads a checkpoint, or files of Hugging Face, into the items, in place: every rank reads what it holds.

    `strict`: names that are missing, unexpected or of another shape or kind are an error. `rename`: from a name here to the one there.
    """
    names, targets = _names_of(_checked(items, "load")), []
    flat: dict[str, Any] = {}
    for scope, item in items.items():
        if isinstance(item, torch.nn.Module):
            flat[scope] = _tensors_of(item)
        elif isinstance(item, torch.optim.Optimizer):
            flat[scope] = _optimizer_state.OptimizerTarget(scope, item, names)
            targets.append(flat[scope])
        elif _states.has_state(item):
            flat[scope] = _states.StateTarget(scope, item)
            targets.append(flat[scope])
        else:
            _add(flat, scope, item, "load")
    with torch.no_grad():
        loaded = Loaded(*_core.checkpoint_load(current_world(), os.fspath(path), flat, strict, rename, progress, quiet))
    for target in targets:
        target.finish()
    return loaded


def resume(folder: Path, items: Mapping[str, Any], **options: Any) -> Loaded | None:
    """Loads the newest complete checkpoint of a folder, as `load` does; None if there is none. All ranks call it together."""
    path = _core.checkpoint_newest_for_all(current_world(), os.fspath(folder))
    return load(path, items, **options) if path else None


def export_full(path: Path, items: Mapping[str, Any], *, file_bytes: int = 5 << 30, rename: Callable[[str], str] | None = None) -> None:
    """Writes a folder as Hugging Face lays it out. No rank holds a whole tensor for it."""
    _core.checkpoint_export(current_world(), os.fspath(path), _flat(items), file_bytes, rename)


def latest(folder: Path) -> str:
    """The newest complete checkpoint in a folder."""
    return _core.checkpoint_latest(os.fspath(folder))


def has_latest(folder: Path) -> bool:
    """Whether there is a complete checkpoint in a folder."""
    return bool(complete(folder))


def complete(folder: Path) -> list[str]:
    """The complete checkpoints in a folder, the oldest first."""
    return _core.checkpoint_complete(os.fspath(folder))


def keep(folder: Path, count: int) -> None:
    """Removes the oldest complete checkpoints until `count` are left. One rank calls it, or a single process."""
    _core.checkpoint_keep(os.fspath(folder), count)


def convert(source: Path, target: Path, files: int = 1, *, replace: bool = False) -> None:
    """Copies a checkpoint, or files of Hugging Face, to a checkpoint of that many files. One process calls it.
    A checkpoint at `target` is an error unless `replace` is set."""
    _core.checkpoint_convert(os.fspath(source), os.fspath(target), files, replace)


class Verified(list):
    """What :func:`verify` has found: a line for each damaged file or tensor. Its text says what was checked, and what was not."""

    def __init__(self, problems: list[str], checksums: bool, text: str) -> None:
        super().__init__(problems)
        self.checksums = checksums
        self._text = text

    def __str__(self) -> str:
        return self._text


def verify(path: Path) -> Verified:
    """Reads everything, and returns what is wrong with it: nothing if all is as it was written.

    Files of Hugging Face have no checksums: of these it checks headers, sizes and the index, and damaged values look like any
    others. If nothing is wrong there, ``checksums`` of the result is False, and a warning says what was not checked.
    """
    verified = Verified(*_core.checkpoint_verify(os.fspath(path)))
    if not verified and not verified.checksums:
        warnings.warn(f"[checkpoint.verify] {str(verified).strip()}", stacklevel=2)
    return verified
