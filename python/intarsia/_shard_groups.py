"""Parameter groups that are gathered and reduced together, and the state of the modules that belong to them."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.utils import _apply_to_tensors

from . import _core
from ._data_mesh import DataMesh
from ._mesh import core_mesh
from ._tensor import DTensor
from ._wrapped_module import Registrations, keep_hooks, state_of


class Group:
    """The parameters of one call, on one mesh. The core's group is made at once, or for parameters on meta when it is first needed."""

    def __init__(
        self,
        modules: list[nn.Module],
        mesh: DataMesh,
        reshards: tuple[bool | None, int | None],
        policy: MixedPrecisionPolicy,
        replicated: bool = False,
    ) -> None:
        self.modules, self.mesh, self.reshards, self.policy, self.replicated = modules, mesh, reshards, policy, replicated
        self.is_root, self.name = True, type(modules[0]).__name__
        self.made: _core.ParamGroup | None = None
        self.places: list[tuple[nn.Module, str, str, int | None]] = []  # module, name there, full name, dim
        self.given: list[tuple] = []  # layouts of parameters on a mesh with other axes, while they are gathered
        self.ties: list[tuple[nn.Module, str, int]] = []  # other places of parameters: module, name there, number of the place
        self.leaves: list[weakref.ref] = []  # the parameters of the core's group
        self.settings: dict[str, tuple] = {}  # of the core's group
        self.prefetched: dict[bool, list[Group]] = {}  # the same; by whether it is for backward
        self.still_to_run: set[nn.Module] = set()  # of several modules, in a forward pass

    def lay_out_on_meta(self) -> None:
        """Until there are values, a parameter is a distributed tensor without data, laid out as it will be.

        One that is cut over another mesh already stays as it is until then; on a mesh of more axes it is laid out, if it stays there.
        """
        from torch.distributed.tensor.placement_types import Replicate, Shard

        for module, name, full_name, dim in self.places:
            parameter = module._parameters[name]
            if isinstance(parameter, DTensor) and (not parameter.is_meta or self.replicated or not self.mesh.is_named):
                continue
            if isinstance(parameter, DTensor):
                made = _core.laid_out_as_shards(full_name, self.mesh.core(), parameter.detach(), dim)
            else:
                cut = Replicate() if dim is None else Shard(dim)
                made = _core.distribute_tensor(parameter.detach(), self.mesh.core(), self._placements(cut, Replicate()), None)
            module._parameters[name] = nn.Parameter(made, parameter.requires_grad)
        self.tie()

    def tie(self) -> None:
        """Modules that share a parameter have the same one again, whatever was put into one of them."""
        for module, name, place in self.ties:
            owner, name_there, *_ = self.places[place]
            module._parameters[name] = owner._parameters[name_there]

    def _placements(self, cut: Any, whole: Any) -> list:
        return [whole] * self.mesh.has_copies + [cut]

    def core(self) -> "_core.ParamGroup":
        if self.made is None:
            self._make()
        assert self.made is not None
        return self.made

    def take_new_parameters(self) -> None:
        """The core's group is made anew if the modules have other parameters now, as after load_state_dict(assign=True)."""
        if self.made is None or all(ref() is m._parameters[name] for ref, (m, name, *_) in zip(self.leaves, self.places)):
            return
        kept = [full_name for module, name, full_name, _ in self.places if _core.is_watched(module._parameters[name])]  # type: ignore[arg-type]
        if kept:
            raise RuntimeError(
                f"[fully_shard] some parameters of {self.name} have been replaced by others, but not {kept}, which are gathered and "
                "reduced together with these. Replace all of them, or load a state dict without assign=True."
            )
        self.made = None

    def _make(self) -> None:
        from ._dropin import installed

        self.tie()
        parameters = [(full_name, module._parameters[name]) for module, name, full_name, _ in self.places]
        path = "" if self.is_root or len(self.modules) > 1 else f"{self.name}."
        missing = [path + name for name, parameter in parameters if parameter.is_meta]
        if missing:
            raise RuntimeError(
                "FSDP parameters should be materialized from meta device before training, but the following were still on meta "
                f"device: {missing}\nFor example, call module.to_empty(device) to materialize to device and call "
                "module.reset_parameters() on each module to initialize values."
            )
        self._bring_back(parameters)
        keep_hooks(parameter for _, parameter in parameters)  # type: ignore[misc]
        buffers = [buffer for module in self.modules for buffer in module.named_buffers()]
        self.made = _core.ParamGroup(
            id(self.modules[0]), self.name, self.mesh.core(), parameters, buffers, [dim for *_, dim in self.places],  # type: ignore[arg-type]
            *self.reshards, self.policy.param_dtype, self.policy.reduce_dtype, True, self.replicated, self.mesh.is_named,
            not installed(),  # under it each rank keeps its own buffers, as in PyTorch's fully_shard
        )
        self.made.set_root(self.is_root)
        self.leaves = [weakref.ref(parameter) for _, parameter in parameters]
        for setting, values in self.settings.items():
            getattr(self.made, setting)(*values)

    def _bring_back(self, parameters: list) -> None:
        """Parameters of load_state_dict(assign=True) get the sharded layout, which may be on a mesh of other axes."""
        for (name, parameter), placements in zip(parameters, self.given):
            if not self.mesh.holds(parameter, placements):
                if not isinstance(parameter, DTensor):
                    self.mesh.check(name, parameter)
                parameter.data = _core.redistribute_to(parameter.detach(), core_mesh(self.mesh.mesh), placements)

    def set(self, setting: str, *values: Any) -> None:
        """Calls a method of the core's group, now or when it is made."""
        self.settings[setting] = values
        if self.made is not None:
            getattr(self.made, setting)(*values)

    def become_inner(self, path: str) -> None:
        self.is_root, self.name = False, path
        if self.made is not None:
            self.made.set_root(False)
            self.made.set_name(path)

    def begin_forward(self, module: nn.Module) -> None:
        if len(self.modules) > 1 and module not in self.still_to_run:
            self.still_to_run = set(self.modules)
        self.take_new_parameters()
        core = self.core()
        while self.prefetched:
            in_backward, groups = self.prefetched.popitem()
            core.set_prefetched(in_backward, [group.core() for group in groups])
        core.need_whole()
        core.set_pinned(True)

    def end_forward(self, module: nn.Module) -> None:
        """Gathered parameters are freed after the last of several modules; if that does not run, when another group is gathered."""
        self.still_to_run.discard(module)
        self.core().set_pinned(False)
        if self.core().reshards_after_forward and not self.still_to_run:
            self.core().reshard_after_forward()

    def reshard(self) -> None:
        self.still_to_run.clear()
        if self.made is not None:
            self.made.reshard()


class Sharding:
    """What fully_shard knows of a module."""

    function = "fully_shard"

    def __init__(self, module: nn.Module, groups: list[Group], policy: MixedPrecisionPolicy) -> None:
        self.module, self.groups, self.policy = module, groups, policy
        self.is_root = True
        self.own_gather: Any = None
        self.own_reduce: Any = None

    def taken(self) -> set[int]:
        return {id(owner._parameters[name]) for group in self.groups for owner, name, *_ in group.places}

    def holds(self) -> set[int]:
        return self.taken()

    def refusal(self, function: str, _: Any) -> str:
        """Why another function may not lay out the parameters."""
        done = "sharded" if self.function == "fully_shard" else "kept"
        return f"{done} by {self.function}, which says how it is laid out. Call {self.function} after {function}."

    def before(self, _: nn.Module, args: tuple, kwargs: dict) -> Any:
        for group in self.groups:
            group.begin_forward(self.module)
        if self.policy.param_dtype is None or not self.policy.cast_forward_inputs:
            return args, kwargs
        return _cast(args, self.policy.param_dtype), _cast(kwargs, self.policy.param_dtype)

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        for group in self.groups:
            if group.made is not None:  # forward may have failed before
                group.end_forward(self.module)
        return output if self.policy.output_dtype is None else _cast(output, self.policy.output_dtype)

    def reshard(self, *_: Any) -> None:
        for group in self.groups:
            group.reshard()

    def hook(self) -> None:
        self.module.register_forward_pre_hook(self.before, prepend=True, with_kwargs=True)
        self.module.register_forward_hook(self.after, prepend=False, always_call=True)
        self.module.register_state_dict_pre_hook(self.reshard)
        self.module.register_load_state_dict_pre_hook(self.reshard)


def find_late(modules: list[nn.Module]) -> "Callable[[], list[tuple[str, torch.Tensor]] | None]":
    """A function that lists parameters which came to the modules since, and which nobody has taken; None once the modules have gone."""
    Registrations.watch()
    known = [(weakref.ref(one), type(one).__name__, {name for name, _ in one.named_parameters(remove_duplicate=False)}) for one in modules]
    count, late = Registrations.count, []

    def find() -> "list[tuple[str, torch.Tensor]] | None":
        nonlocal count, late
        alive = [(one, kind, names) for module, kind, names in known if (one := module()) is not None]
        if count != Registrations.count:
            count, late = Registrations.count, [item for found in alive for item in _others(*found)]
        still = [(name, one) for name, parameter in late if (one := parameter()) is not None and not _core.is_watched(one)]
        return still if alive else None

    return find


def _others(module: nn.Module, kind: str, names: set[str]) -> "list[tuple[str, weakref.ref]]":
    found = [item for item in module.named_parameters() if item[0] not in names and not _core.is_dtensor(item[1])]
    return [(f'"{name}" of {kind}', weakref.ref(parameter)) for name, parameter in found]


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return _apply_to_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, values)


def name_inner(modules: Iterable[nn.Module]) -> None:
    """Groups inside are not the outermost any more, and are known by their paths."""
    for module in modules:
        for path, inner in module.named_modules():
            state = state_of(inner, Sharding)
            if state is None:
                continue
            state.is_root = False
            for group in state.groups:
                if group.modules[0] is inner:
                    group.become_inner(path)
