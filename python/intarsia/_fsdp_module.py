"""The class that fully_shard gives a module: PyTorch's methods, which control the groups of the core."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from ._own_collectives import OwnAllGather, OwnReduceScatter, one_of, take_over
from ._shard_groups import Group, Sharding
from ._wrapped_module import WrappedModule, set_data_scope, state_of


class UnshardHandle:
    """A gather in progress."""

    def wait(self) -> None:
        """The parameters are whole afterwards."""


class _Gathering(UnshardHandle):
    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups

    def wait(self) -> None:
        for group in self._groups:
            group.core().unshard()
        self._groups = []


class FSDPModule(WrappedModule):
    """The class that :func:`fully_shard` gives a module."""

    def _sharding(self) -> Sharding:
        return state_of(self, Sharding)  # type: ignore[arg-type]

    def _groups(self, recurse: bool) -> list[Group]:
        modules = self.modules() if recurse else (self,)
        states = [state_of(module, Sharding) for module in modules]  # type: ignore[arg-type]
        return [group for state in states if state is not None for group in state.groups]

    def _set(self, recurse: bool, setting: str, *values: Any) -> None:
        for group in self._groups(recurse):
            group.set(setting, *values)

    def unshard(self, async_op: bool = False) -> "UnshardHandle | None":
        """Gathers the parameters of this module; those of wrapped submodules stay as they are."""
        groups = self._sharding().groups
        for group in groups:
            group.core().begin_unshard()
        handle = _Gathering(groups)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Frees the whole parameters."""
        self._sharding().reshard()

    def reset_iter_state(self) -> None:
        """Not needed: a step that failed leaves nothing behind."""
        if not self._sharding().is_root:
            raise RuntimeError("reset_iter_state must be called on the root FSDP module")

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Every backward pass ends with its gradients in place, so there is nothing to set."""

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Without, gradients of the whole add up on each rank, and the next backward pass with it reduces the sum."""
        self._set(recurse, "set_syncs", requires_gradient_sync)
        self._set(recurse, "set_syncs_copies", requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Without, on a mesh of two axes, gradients are reduced to shards and add up; the next pass with it averages the copies."""
        self._set(recurse, "set_syncs_copies", requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether the whole is freed after forward and gathered again in backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        self._set(recurse, "set_reshard_after_forward", reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether the whole is freed after backward."""
        self._set(recurse, "set_reshard_after_backward", reshard_after_backward)

    def set_modules_to_forward_prefetch(self, modules: "list[FSDPModule]") -> None:
        """Modules to prefetch when this one is gathered in forward."""
        self._set_prefetched(False, modules)

    def set_modules_to_backward_prefetch(self, modules: "list[FSDPModule]") -> None:
        """The same for backward."""
        self._set_prefetched(True, modules)

    def _set_prefetched(self, in_backward: bool, modules: "list[FSDPModule]") -> None:
        for module in modules:
            if not isinstance(module, FSDPModule):
                raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")
        for group in self._groups(False):
            group.prefetched[in_backward] = [group for module in modules for group in module._groups(False)]

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Gradients are the sum over all ranks divided by this instead of their number."""
        self._set(False, "set_divide_factor", factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of :meth:`set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """Whether a parameter without a gradient is taken as having zeros."""
        self._set(recurse, "set_unused_as_zeros", reduce_scatter_unused_params)

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: Any = None) -> None:
        """``hook(gradients)`` changes the reduced gradients of this module's shards, side by side, before they are written."""
        group = self._only_group("set_all_reduce_hook", "The hook would be ambiguous across groups with different meshes.")
        if group is None:
            return
        if stream is not None and group.mesh.has_copies:
            raise ValueError("stream cannot be set when using native HSDP")

        def run(values: list[torch.Tensor]) -> None:
            whole = one_of(values)
            hook(whole)
            take_over(values, whole)

        group.set("set_reduced_hook", run)

    def set_custom_all_gather(self, comm: AllGather) -> None:
        """``comm(output, input, group, async_op)`` gathers the parameters of this module, in place of the engine."""
        group = self._only_group("set_custom_all_gather", _AMBIGUOUS)
        if group is not None:
            group.set("set_custom_all_gather", OwnAllGather(comm, group.mesh))
            self._sharding().own_gather = comm

    def set_custom_reduce_scatter(self, comm: ReduceScatter) -> None:
        """``comm(output, input, group, op, async_op)`` adds the gradients of this module up, in place of the engine."""
        group = self._only_group("set_custom_reduce_scatter", _AMBIGUOUS)
        if group is not None:
            group.set("set_custom_reduce_scatter", OwnReduceScatter(comm, group.mesh))
            self._sharding().own_reduce = comm

    def _only_group(self, method: str, why: str) -> "Group | None":
        groups = self._groups(False)
        if len(groups) > 1:
            raise ValueError(
                f"{method} is not supported with multiple param groups (from per-param mesh via shard_placement_fn). {why}"
            )
        return groups[0] if groups else None

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Process groups on CPU cannot allocate memory: the engine's memory is used."""
        state = self._sharding()
        for kind, comm in (("all gather", state.own_gather), ("reduce scatter", state.own_reduce)):
            if comm is not None:
                raise AssertionError(
                    f"cannot call set_allocate_memory_from_process_group() when {kind} comm is custom: {type(comm).__name__}"
                )

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Symmetric memory is that of GPUs."""
        raise NotImplementedError(f"[fully_shard] tensors are in CPU memory, where there is no symmetric memory of {backend}.")

    def set_post_optim_event(self, event: Any) -> None:
        """Work on CPU has been done when a call returns, so there is nothing to wait for."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """The engine's sums have no other form."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Parameters are gathered when a formula of backward uses them, and only then."""

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Messages of the two directions do not wait for each other anyhow."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """The engine keeps two."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Gatherings go on by themselves once they have begun."""

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.reshard()  # the shards are cast or moved
        with set_data_scope():
            return super()._apply(*args, **kwargs)  # type: ignore[misc]


_AMBIGUOUS = "The custom comm would be ambiguous across groups with different meshes."


def share_comm_ctx(modules: "list[FSDPModule]") -> None:
    """Modules of one mesh use the same lines anyhow, so there is nothing to share."""
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects list of FSDPModules but got {module}")
