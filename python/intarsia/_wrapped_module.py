"""What replicate and fully_shard share: modules that get another class, and whose parameters the core watches."""

import contextlib
import functools
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, RegistryItem

from . import _core
from ._mesh import current_world, init_device_mesh, simulated_world

ATTRIBUTE = "_intarsia_data_parallel"  # of a module: what its call knows; taken() are the ids of parameters


_states: "weakref.WeakSet[Any]" = weakref.WeakSet()  # of all modules


def state_of(module: nn.Module, kind: type) -> Any:
    found = module.__dict__.get(ATTRIBUTE)
    return found if isinstance(found, kind) else None


def keep_state(module: nn.Module, state: Any) -> None:
    module.__dict__[ATTRIBUTE] = state
    _states.add(state)


def check_layout_is_free(module: nn.Module, function: str, mesh: Any, parts: "Iterable[nn.Module] | None" = None) -> None:
    """A parameter that a wrapped module holds is laid out by it alone, whichever module of a model is given now, or parts of that."""
    holders = {parameter: state for state in list(_states) for parameter in state.holds()}
    if holders and parts is not None:
        given = {id(parameter) for part in parts for parameter in part.parameters()}
        holders = {parameter: state for parameter, state in holders.items() if parameter in given}
    for name, parameter in module.named_parameters() if holders else ():
        state = holders.get(id(parameter))
        if state is not None and (refusal := state.refusal(function, mesh)):
            kind = getattr(type(module), "_plain_class", type(module)).__name__
            raise ValueError(f'[{function}] "{name}" of {kind} is {refusal}')


def whole_world(name: "str | None" = None) -> Any:
    """A mesh of all ranks. As PyTorch's DeviceMesh, it makes the process group if torchrun or intarsia run has started us and there is none
    yet."""
    launched = _core.launched_among_several()
    if launched and launched[0] in ("torchrun", "intarsia run") and simulated_world() is None and not dist.is_initialized():
        dist.init_process_group()
    return init_device_mesh("cpu", (current_world().size,), mesh_dim_names=(name,) if name else None)


def check_applied_once(module: nn.Module, function: str) -> None:
    state = module.__dict__.get(ATTRIBUTE)
    if state is None:
        return
    if state.function != function:
        raise RuntimeError(f"Cannot apply `{function}()` on a Module already managed by `{state.function}`")
    raise AssertionError(
        f"Each distinct composable distributed API can only be applied to a module once. {function} has already been applied to "
        f"the following module:\n{module}"
    )


def note_in_registry(module: nn.Module, function: str) -> None:
    """PyTorch keeps the names of what was applied to a module, and programs ask for them."""
    module.__dict__.setdefault(REGISTRY_KEY, OrderedDict())[function] = RegistryItem()


def check_runs(modules: Iterable[nn.Module], function: str) -> None:
    for module in modules:
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
            raise ValueError(f"{function} does not support containers that do not implement forward: {module}")


def keep_hooks(parameters: Iterable[torch.Tensor]) -> None:
    """The first ``register_hook`` on a leaf drops the hooks of the core, unless the dictionary is there already."""
    for parameter in parameters:
        if parameter.requires_grad and parameter._backward_hooks is None:
            parameter._backward_hooks = OrderedDict()


def free_parameters(module: nn.Module, skipped: set[int], prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Parameters that are not in any group yet, each once."""
    found: list[tuple[str, torch.Tensor]] = []
    for inner in module.modules():
        if ATTRIBUTE in inner.__dict__:
            skipped |= inner.__dict__[ATTRIBUTE].taken()
    for name, parameter in module.named_parameters():
        if id(parameter) not in skipped and not _core.is_watched(parameter):
            skipped.add(id(parameter))
            found.append((prefix + name, parameter))
    return found


class Registrations:
    """Counts parameters and modules that are registered anywhere: a model is searched only after that."""

    count = 0
    watched = False

    @classmethod
    def watch(cls) -> None:
        if not cls.watched:
            cls.watched = True
            nn.modules.module.register_module_parameter_registration_hook(cls._note)
            nn.modules.module.register_module_module_registration_hook(cls._note)

    @classmethod
    def _note(cls, *_: Any) -> None:
        cls.count += 1


@contextlib.contextmanager
def set_data_scope() -> Iterator[None]:
    """Casts of modules give parameters other data, also where a program has asked PyTorch to swap them.

    Hooks hold on to our parameters, and what is held can not be swapped.
    """
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


class WrappedModule:
    """Base of what the class of such a module becomes."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Indexing a container makes a new one, of the plain class.
        plain = cls._plain_class
        made = plain.__new__(plain, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made


def own_class(module: nn.Module, base: type, prefix: str) -> None:
    """The module's class gets the methods of ``base``, under another name."""
    module.__class__ = _class_with(type(module), base, prefix)  # type: ignore[arg-type]


@functools.cache
def _class_with(cls: type, base: type, prefix: str) -> type:
    def refuse_deepcopy(self: nn.Module, memo: Any) -> Any:
        raise AssertionError(
            f"{'DDP' if prefix == 'DDP' else 'FSDP'} does not support deepcopy. Please use state dict for serialization. Copy the "
            "plain module, and load a state dict into the copy."
        )

    return type(f"{prefix}{cls.__name__}", (base, cls), {"__deepcopy__": refuse_deepcopy, "_plain_class": cls})
