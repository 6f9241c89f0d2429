"""Tools that show what is sent and which rank holds what."""

import importlib.util
import sys
import threading
import types
from collections import defaultdict
from typing import Any

import torch

from . import _core, _simulated_group
from ._interop import torch_dtensor_class
from ._mesh import axis_names, is_threaded, simulated_world
from ._redistribute import moving



def _torch_comm_mode() -> tuple[type, set]:
    """PyTorch's CommDebugMode, and the collectives of plain tensors that it counts. The package around it needs numpy, for pictures alone; ours need none."""
    if importlib.util.find_spec("numpy") is None:
        pictures = types.ModuleType("torch.distributed.tensor.debug._visualize_sharding")
        pictures.visualize_sharding = lambda *args, **options: visualize_sharding(*args, **options)
        sys.modules.setdefault(pictures.__name__, pictures)
    from torch.distributed.tensor.debug._comm_mode import CommDebugMode, c10d_collective_ops

    return CommDebugMode, c10d_collective_ops


_TorchCommDebugMode, _CALLED = _torch_comm_mode()
__all__ = ["CommDebugMode", "describe", "visualize_sharding"]

_COUNTED_AS = {
    "all_gather": torch.ops.c10d_functional.all_gather_into_tensor,
    "all_reduce": torch.ops.c10d_functional.all_reduce,
    "reduce_scatter": torch.ops.c10d_functional.reduce_scatter_tensor,
    "all_to_all": torch.ops._dtensor.shard_dim_alltoall,
    "broadcast": torch.ops.c10d.broadcast_,
    "scatter": torch.ops.c10d.scatter_,
}


# The cause of fully_shard's collectives, which send whole groups.
_COUNTED_AS_GROUPS = {
    "all_gather": torch.ops.c10d._allgather_base_,
    "all_reduce": torch.ops.c10d.allreduce_,
    "reduce_scatter": torch.ops.c10d._reduce_scatter_base_,
}


def _counted_as(kind: str, cause: str = "", axis: str = "") -> Any:
    """PyTorch's name for a collective: CommDebugMode counts under it. Others keep the name that the core gives them.

    From one cut to another PyTorch gathers on CPUs, except on its simulated ranks, and there where several axes take part; programs
    of the drop-in count that.
    """
    from ._dropin import installed

    name = kind.split("(")[0]
    if cause.split(" ")[0] == "fully_shard":
        return _COUNTED_AS_GROUPS.get(name, kind)
    if name == "all_to_all" and installed() and (simulated_world() is None or len(_axes_in(axis.split("_"), axis_names())) > 1):
        name = "all_gather"
    return _COUNTED_AS.get(name, kind)


def _times(event: Any) -> int:
    """How often a collective counts: PyTorch takes one per axis where ours runs over several, and programs of the drop-in count these.

    It takes none along an axis on which the tensor that moves was whole, and a single one over axes for which the program has a
    flattened mesh, whose only axis has all of their names.
    """
    from ._dropin import installed

    if "_" not in event.axis or not installed():
        return 1
    axes, moved = _axes_in(event.axis.split("_"), axis_names()), getattr(moving, "tensor", None)
    if moved is not None and event.op == "redistribute":
        names = moved.device_mesh.mesh_dim_names or tuple(map(str, range(moved.device_mesh.ndim)))
        whole = {name for name, placement in zip(names, moved.placements) if placement.is_replicate()}
        axes = [axis for axis in axes if axis not in whole]
    return max(len(axes), 1)


def _axes_in(words: list[str], names: set[str]) -> list[str]:
    """The fewest axes whose names make up the words; those without names have numbers. None if there are no such."""
    if not words:
        return []
    found = []
    for end in range(1, len(words) + 1):
        first = "_".join(words[:end])
        if first in names or first.isdigit():
            rest = _axes_in(words[end:], names)
            if rest or end == len(words):
                found.append([first, *rest])
    return min(found, key=len, default=[])


def visualize_sharding(dtensor: torch.Tensor, header: str = "", use_rich: bool = False) -> None:
    """Prints which rank holds what; in colour on a terminal, or if ``use_rich`` is set."""
    if isinstance(dtensor, torch_dtensor_class()):
        from ._interop import from_torch

        dtensor = from_torch(dtensor)
    if not _core.is_dtensor(dtensor):
        raise TypeError(f"[visualize_sharding] needs a distributed tensor, but got a plain one of shape {list(dtensor.shape)}.")
    if dtensor.numel() == 0:
        return
    if dtensor.ndim >= 3:
        raise RuntimeError("visualize sharding supports only 1D or 2D DTensor")
    if [0] * dtensor.device_mesh.ndim not in _core.mesh_of(dtensor).coordinates:  # another rank prints
        return
    if header:
        print(header)
    print(picture(dtensor, colour=use_rich or sys.stdout.isatty()), end="")


def picture(dtensor: torch.Tensor, colour: bool = False) -> str:
    """The text that :func:`visualize_sharding` prints."""
    return _core.visualize_sharding(dtensor, colour)


def describe(value: "torch.Tensor | torch.nn.Module") -> str:
    """Shape, dtype, layout and local shapes of a tensor, or of every parameter and buffer of a module."""
    if isinstance(value, torch.Tensor):
        return _core.describe(value)
    named = [*value.named_parameters(), *value.named_buffers()]
    return "".join(f"{name}: {_core.describe(tensor)}\n" for name, tensor in named)


class CommDebugMode(_TorchCommDebugMode):  # type: ignore[misc, valid-type]
    """Counts the collectives inside its scope: those of distributed tensors, and those that the program calls directly.

    In addition to PyTorch's counts by module and their tables, ``text()`` lists every collective and ``table()`` groups them,
    with bytes, times and the op that caused each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ours: list[Any] = []
        self._recorder = _core.Recorder(self._on_event)
        self._thread: int | None = None

    def __enter__(self) -> "CommDebugMode":
        super().__enter__()
        self._ours = []
        # Where the ranks are threads, each counts its own.
        self._thread = threading.get_ident() if is_threaded() else None
        self._recorder.start()
        _simulated_group.watchers.append(self._on_call)
        return self

    def __exit__(self, *args: Any) -> None:
        _simulated_group.watchers.remove(self._on_call)
        self._recorder.stop()
        super().__exit__(*args)

    def _on_event(self, event: Any) -> None:
        if self._thread not in (None, threading.get_ident()):
            return
        self._ours.append(event)
        name = _counted_as(event.kind, event.op, event.axis)
        if name is not None:
            self._count(name, _times(event))

    def _on_call(self, op: Any) -> None:
        """A collective of simulated ranks that the program called itself."""
        if op in _CALLED:
            self._count(op)

    def _count(self, name: Any, times: int = 1) -> None:
        tracker = self.advanced_module_tracker
        self.comm_counts[name] += times
        way = "backward" if tracker.is_bw else "forward"
        for module in {tracker.name, *tracker.module_parents_dict.get(tracker.name, ())}:
            counts = self.comm_module_counts.setdefault(module, {w: defaultdict(int) for w in ("forward", "backward")})
            counts[way][name] += times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(isinstance(arg, torch.Tensor) and _core.is_dtensor(arg) for arg in args):
            return super().__torch_dispatch__(func, types, args, kwargs)
        tracker = self.advanced_module_tracker
        ours = [arg for arg in args if isinstance(arg, torch.Tensor) and _core.is_dtensor(arg)]
        entry = {
            "name": func,
            "input_shape": [arg.shape for arg in ours],
            "input_sharding": [arg.placements for arg in ours],
            "device_mesh": str(ours[0].device_mesh),
            "is_bw": tracker.is_bw,
            "is_activation_checkpointing": tracker.activation_checkpointing,
        }
        self.comm_module_operation_counts.setdefault(tracker.name, {"operations_list": []})["operations_list"].append(entry)
        return func(*args, **(kwargs or {}))

    def events(self) -> list[Any]:
        """Every collective of distributed tensors, in order."""
        return list(self._ours)

    def total_bytes(self) -> int:
        """What one rank had to send or receive, whichever is more, over all collectives."""
        return sum(max(event.sent, event.received) for event in self._ours)

    def text(self) -> str:
        """One collective per line."""
        return "".join(f"{event!r}\n" for event in self._ours)

    def table(self) -> str:
        """Collectives grouped by kind, axis and op."""
        groups: dict[tuple, list[Any]] = {}
        for event in self._ours:
            chooser = "dispatch" if event.implicit else "the caller"
            groups.setdefault((event.kind, event.axis, event.op, chooser), []).append(event)
        rows = [("collective", "axis", "for", "chosen by", "count", "bytes", "ms")]
        for key, events in groups.items():
            size = sum(max(event.sent, event.received) for event in events)
            rows.append((*key, str(len(events)), str(size), f"{sum(e.seconds for e in events) * 1e3:.3f}"))
        widths = [max(len(row[column]) for row in rows) for column in range(7)]
        lines = (
            "  ".join(v.ljust(w) if i < 4 else v.rjust(w) for i, (v, w) in enumerate(zip(row, widths))) for row in rows
        )
        return "".join(line.rstrip() + "\n" for line in lines)
