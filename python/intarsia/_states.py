"""Schedules, scalers, generators, samplers and other objects with a state_dict as items of a checkpoint.

Numbers and texts of a state are one text, ``<item>.state``, which must be the same on all ranks. Tensors in it, and generators, have
a row per rank, as in C++ (Note [A state per rank]): where all rows are equal, any number of ranks goes on from them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

from . import _core
from ._mesh import current_world
from ._numbers import per_rank

_STATE = "state"
_TAG = ""  # the only key of a dict that stands for what JSON does not have


def has_state(item: Any) -> bool:
    return isinstance(item, (torch.Generator, DistributedSampler, RandomSampler)) or (
        callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None))
    )


def contents_of(scope: str, item: Any) -> dict[str, Any]:
    """What is saved, by the names inside the item."""
    if isinstance(item, RandomSampler):
        return contents_of(scope, _generator_of(scope, item, "save"))
    if isinstance(item, torch.Generator):
        return {_STATE: _rows_of_ranks(_get(item))}
    if isinstance(item, torch.amp.GradScaler):
        state = item.state_dict()
        return {"scale": float(state["scale"]), "growth_tracker": int(state["_growth_tracker"])} if state else {}
    tensors: dict[str, torch.Tensor] = {}
    state = _encoded({"epoch": item.epoch} if isinstance(item, DistributedSampler) else item.state_dict(), "", tensors, scope)
    return {_STATE: json.dumps(state), **{name: _rows_of_ranks(tensor) for name, tensor in tensors.items()}}


class StateTarget:
    """An item that is loaded into, when all of it has been read."""

    def __init__(self, scope: str, item: Any) -> None:
        self.scope = f"{scope}." if scope else ""
        self.item = _generator_of(scope, item, "load") if isinstance(item, RandomSampler) else item
        self.set: Callable[[], Any] | None = None

    def want(self, stored: Mapping[str, tuple], values: Mapping[str, Any], rename: Callable[[str], str]) -> tuple:
        """By the index of the checkpoint: the tensors to read into, the values that it uses, and those that are missing."""
        self.stored, self.values, self.rename = stored, values, rename
        self.rows: dict[str, torch.Tensor] = {}
        self.used: list[str] = []
        self.missing: list[str] = []
        if isinstance(self.item, torch.Generator):
            self._want_generator(self.item)
        elif isinstance(self.item, torch.amp.GradScaler):
            self._want_scaler(self.item)
        else:
            self._want_state(self.item)
        return self.rows, self.used, self.missing

    def _want_generator(self, generator: torch.Generator) -> None:
        name = self._row(_STATE)
        self.set = lambda: _set(generator, _row_of_this_rank(self.rows[name], name, generator is torch.default_generator))

    def _want_scaler(self, scaler: Any) -> None:
        state = scaler.state_dict()
        if not state:  # it is disabled
            self.used += [known for known in map(self._known, ("scale", "growth_tracker")) if known in self.values]
            return
        state |= {"scale": self._value("scale"), "_growth_tracker": self._value("growth_tracker")}
        self.set = lambda: scaler.load_state_dict(state)

    def _want_state(self, item: Any) -> None:
        text = self._value(_STATE)
        if text is None:
            return
        try:
            state = json.loads(text)
        except (TypeError, ValueError):
            raise ValueError(f'[checkpoint::load] "{self.scope}{_STATE}" is {text!r}, which is no state of a {type(item).__name__}.') from None
        names = {name: self._row(name) for name in _tensors_in(state)}

        def finish() -> None:
            made = _decoded(state, {name: _row_of_this_rank(self.rows[full], full, False) for name, full in names.items()})
            if isinstance(item, DistributedSampler):
                item.set_epoch(made["epoch"])
            else:
                item.load_state_dict(made)

        self.set = finish

    def _known(self, name: str) -> str:
        return self.rename(self.scope + name)

    def _value(self, name: str) -> Any:
        known = self._known(name)
        if known not in self.values:
            self.missing.append(self.scope + name)
            return None
        self.used.append(known)
        return self.values[known]

    def _row(self, name: str) -> str:
        """Asks for all rows of a tensor. One that the checkpoint lacks is named as missing when it looks for it."""
        full = self.scope + name
        dtype, shape, _ = self.stored.get(self._known(name), (torch.uint8, (1, 0), True))
        self.rows[full] = torch.empty(shape, dtype=dtype)
        return full

    def finish(self) -> None:
        complete = not self.missing and all(self.rename(name) in self.stored for name in self.rows)
        if self.set is not None and complete:
            self.set()


def _generator_of(scope: str, sampler: RandomSampler, where: str) -> torch.Generator:
    if sampler.generator is None:
        raise ValueError(
            f'[checkpoint.{where}] the sampler "{scope}" has no generator, and takes its seed from torch.default_generator. Give that as '
            "an item, or make the sampler with a generator."
        )
    return sampler.generator


def _get(generator: torch.Generator) -> torch.Tensor:
    return torch.get_rng_state() if generator is torch.default_generator else generator.get_state()


def _set(generator: torch.Generator, state: torch.Tensor) -> None:
    torch.set_rng_state(state) if generator is torch.default_generator else generator.set_state(state)


def _rows_of_ranks(mine: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor.placement_types import Shard

    world = current_world()
    mesh = _core.Mesh(world, torch.device("cpu"), [world.size], list(range(world.size)), [])
    return _core.from_local(mine.detach().unsqueeze(0), mesh, [Shard(0)])


def _row_of_this_rank(rows: torch.Tensor, name: str, may_differ: bool) -> torch.Tensor:
    """`may_differ`: whether simulated ranks may have one each."""
    count = len(rows)
    if count and torch.equal(rows, rows[:1].expand_as(rows)):
        return rows[0].clone()
    world = current_world()
    differ = f'[checkpoint::load] "{name}" has a state for each of {count} ranks, which differ, and '
    if count != world.size:
        raise ValueError(f"{differ}there are {world.size} ranks now. Load it on {count} ranks, or leave it out.")
    if len(world.hosted) == 1:
        return rows[world.hosted[0]].clone()
    if not may_differ:
        raise ValueError(f"{differ}this process plays all of them with one. Leave it out.")
    return per_rank([row.clone() for row in rows])


def _encoded(value: Any, name: str, tensors: dict[str, torch.Tensor], scope: str) -> Any:
    """As JSON has it. What it does not have is a dict with the key "" alone; tensors are left out under their names."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    inside = lambda key, part: _encoded(part, f"{name}.{key}" if name else str(key), tensors, scope)
    if isinstance(value, torch.Tensor) and not _core.is_dtensor(value):
        tensors[name] = value
        return {_TAG: ["tensor", name]}
    if isinstance(value, (list, tuple)):
        parts = [inside(i, part) for i, part in enumerate(value)]
        return parts if type(value) is list else {_TAG: ["tuple", parts]}
    if isinstance(value, Mapping):
        pairs = [(key, inside(key, part)) for key, part in value.items()]
        simple = all(isinstance(key, str) for key, _ in pairs) and [key for key, _ in pairs] != [_TAG]
        return dict(pairs) if simple else {_TAG: ["dict", [[inside("key", key), part] for key, part in pairs]]}
    raise TypeError(
        f'[checkpoint.save] the state of "{scope}" has a {type(value).__name__} under "{name}". Numbers, texts, plain tensors, None, and '
        "lists, tuples and dicts of these can be saved."
    )


def _decoded(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if list(value) != [_TAG]:
        return {key: _decoded(part, tensors) for key, part in value.items()}
    kind, inside = value[_TAG]
    if kind == "tensor":
        return tensors[inside]
    if kind == "tuple":
        return tuple(_decoded(inside, tensors))
    return {_decoded(key, tensors): _decoded(part, tensors) for key, part in inside}


def _tensors_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        tagged = value[_TAG] if list(value) == [_TAG] else None
        if tagged and tagged[0] == "tensor":
            return [tagged[1]]
        value = tagged[1] if tagged else list(value.values())
    return [name for part in value for name in _tensors_in(part)] if isinstance(value, list) else []
