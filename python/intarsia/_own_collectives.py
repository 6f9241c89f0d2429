"""Custom collectives of a program in place of the engine's, for the messages of sharded groups."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from ._data_mesh import DataMesh


def one_of(values: list[torch.Tensor]) -> torch.Tensor:
    """A tensor for the values of the hosted ranks."""
    return values[0] if len(values) == 1 else _core.per_rank(values)


def take_over(values: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """The values become those that a tensor made by :func:`one_of` has now."""
    for value, part in zip(values, [tensor] if len(values) == 1 else _core.values_of(tensor)):
        if part.data_ptr() != value.data_ptr():
            value.copy_(part.view_as(value))


class _Own:
    def __init__(self, comm: Any, mesh: DataMesh) -> None:
        self._comm, self._mesh = comm, mesh

    def allocate(self, elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
        slots = len(self._mesh.core().hosted)
        return [self._comm.allocate((elements,), dtype=dtype, device=torch.device("cpu")) for _ in range(slots)]

    def run(self, result: list[torch.Tensor], given: list[torch.Tensor]) -> Callable[[], None]:
        whole = one_of(result)
        work = self._call(whole, one_of(given), self._mesh.group_of_shards())

        def finish() -> None:
            if work is not None:
                work.wait()
            take_over(result, whole)

        return finish


class OwnAllGather(_Own):
    def _call(self, result: torch.Tensor, given: torch.Tensor, group: Any) -> Any:
        return self._comm(output_tensor=result, input_tensor=given, group=group, async_op=False)


class OwnReduceScatter(_Own):
    def _call(self, result: torch.Tensor, given: torch.Tensor, group: Any) -> Any:
        return self._comm(output_tensor=result, input_tensor=given, group=group, op=dist.ReduceOp.SUM)
