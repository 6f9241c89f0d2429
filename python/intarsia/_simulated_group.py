"""Process groups of simulated ranks: the collectives that a program calls directly.

We create PyTorch's "fake" groups, which send nothing. While a simulation of their ranks is open we simulate their collectives, on
per-rank tensors and on plain ones, which are the same on every rank. Otherwise they are PyTorch's, except for per-rank tensors,
which are recognized without a simulation as well.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg as _fake_pg
from torch._C._distributed_c10d import _create_work_from_future

from . import _collectives as collectives
from . import _core
from ._local_tensor import answers_as_the_process
from ._mesh import simulated_world
from ._numbers import any_per_rank, called_by_pytorch, per_rank, per_rank_int, tree_on, value_on

_c10d = dist.distributed_c10d
_TO_ITSELF = "_check_not_self_rank"  # the one function of PyTorch that compares ranks as a program would


def done(result: Any = None) -> Any:
    """What a collective that has happened already returns."""
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


class _Later(dist.Work):
    """Something that happens when it is waited for."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action: Callable[[], None] | None = action

    def wait(self, timeout: Any = None) -> bool:
        action, self._action = self._action, None
        if action is not None:
            action()
        return True

    def is_completed(self) -> bool:
        return self._action is None


# Observers of collectives: functions that get the op that PyTorch would have called.
watchers: list[Callable[[Any], None]] = []
_AS_OPS = {
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
}


def _tell(name: str) -> None:
    op = getattr(torch.ops.c10d, _AS_OPS.get(name, f"{name}_"), None)
    for watcher in watchers:
        watcher(op)


def _played(method: Callable) -> Callable:
    """A method that is PyTorch's own outside of simulations."""

    @functools.wraps(method)
    def call(self: "SimulatedGroup", *args: Any, **kwargs: Any) -> Any:
        if not self.is_played() and not any_per_rank((args, kwargs)):
            return getattr(self._fake, method.__name__)(*args, **kwargs)
        outermost, self._busy = not self._busy, True
        if outermost and watchers and not method.__name__.startswith("_"):
            _tell(method.__name__)
        try:
            with torch.no_grad():
                work = method(self, *args, **kwargs)
        finally:
            self._busy = not outermost
        return done() if work is None else work

    return call


def _one(tensors: Any) -> torch.Tensor:
    return tensors[0] if isinstance(tensors, (list, tuple)) else tensors


def _op_of(options: Any) -> str:
    return collectives.op_name("sum" if options is None else getattr(options, "reduceOp", options))


class SimulatedGroup(dist.ProcessGroup):
    """A process group that plays the collectives of all simulated ranks at once."""

    def __init__(self, rank: int, size: int, ranks: Sequence[int], fake: Any) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.lines = [list(ranks) or list(range(size))]  # which ranks communicate, in the order of the group
        self.of_world = not ranks
        self.acting = rank  # the rank for which PyTorch's own functions run
        self._busy = False  # one collective may consist of others
        self._letters: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self._fake = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
        for device in ("cpu", "cuda"):
            for group in (self, self._fake):
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, fake)
        self._fake._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def is_played(self) -> bool:
        """Whether a simulation of its world is open on this thread."""
        world = simulated_world()
        return world is not None and dist.is_initialized() and dist.get_world_size() == world.size

    def rank(self) -> Any:
        """A number per simulated rank for programs."""
        if not self.is_played() or (called_by_pytorch(1) and not _asks_like_a_program()):
            return self.acting
        if not called_by_pytorch(1) and answers_as_the_process():
            return self.acting
        return self.numbers(lambda line, rank: line.index(rank), -1)

    def size(self) -> int:
        return len(self.lines[0])

    def getBackendName(self) -> str:
        return "fake"

    def line_of(self, rank: int) -> "list[int] | None":
        return next((line for line in self.lines if rank in line), None)

    def numbers(self, of_rank: Callable[[list[int], int], int], otherwise: int) -> Any:
        """A number per rank of the world, from its line and itself."""
        lines = [self.line_of(rank) for rank in range(dist.get_world_size())]
        return per_rank_int([otherwise if line is None else of_rank(line, rank) for rank, line in enumerate(lines)])

    def _values(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The value on every rank of the world."""
        count = dist.get_world_size()
        if not _core.is_per_rank(tensor):
            return [tensor] * count
        values = _core.values_of(tensor)
        if len(values) != count:
            raise ValueError(f"[simulate] a tensor that stands for {len(values)} ranks meets a process group of a world of {count}.")
        return values

    def _lists(self, tensors: Sequence[torch.Tensor]) -> list:
        """For every rank, the list of its values."""
        return list(zip(*map(self._values, tensors)))

    def _write(self, target: torch.Tensor, results: list) -> None:
        """Puts each rank's result into its value of the tensor. A plain one becomes one per rank, if they differ."""
        olds = self._values(target)
        for old, new in zip(olds, results):
            if new is not None and (new.shape != old.shape or new.dtype != old.dtype):
                raise ValueError(
                    f"[simulate] a collective gives {collectives._form(new)}, which does not fit into {collectives._form(old)}."
                )
        if all(new is results[0] for new in results):
            if results[0] is not None:
                target.copy_(results[0])
            return
        target.copy_(per_rank([old.clone() if new is None else new for old, new in zip(olds, results)]))

    def _write_lists(self, targets: Sequence[torch.Tensor], results: list) -> None:
        for place, target in enumerate(targets):
            self._write(target, [None if result is None else result[place] for result in results])

    @_played
    def allreduce(self, tensors: Any, options: Any = None, *_: Any, **__: Any) -> Any:
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            self._write(tensor, collectives.all_reduce(self._values(tensor), self.lines, _op_of(options)))

    @_played
    def allreduce_coalesced(self, tensors: Any, options: Any = None) -> Any:
        return self.allreduce(tensors, options)

    @_played
    def reduce(self, tensors: Any, options: Any, *_: Any, **__: Any) -> Any:
        tensor = _one(tensors)
        self._write(tensor, collectives.reduce(self._values(tensor), self.lines, _op_of(options), options.rootRank))

    @_played
    def broadcast(self, tensors: Any, options: Any = None, **named: Any) -> Any:
        root = named.get("root", 0) if options is None else getattr(options, "rootRank", options)
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            self._write(tensor, collectives.broadcast(self._values(tensor), self.lines, root))

    @_played
    def allgather(self, outputs: Any, inputs: Any, options: Any = None, **_: Any) -> Any:
        for targets, source in zip(outputs, inputs) if isinstance(inputs, (list, tuple)) else [(outputs, inputs)]:
            self._write_lists(targets, collectives.all_gather(self._values(source), self.lines))

    @_played
    def allgather_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        # The first list is that of a rank: it holds one tensor per input.
        for place, source in enumerate(inputs):
            self.allgather([[of_rank[place] for of_rank in outputs]], [source])

    @_played
    def all_gather_single(self, output: Any, source: Any, options: Any = None, **_: Any) -> Any:
        got = collectives.all_gather(self._values(source), self.lines)
        self._write(output, _same_once(got, lambda parts: torch.cat([p.reshape(-1) for p in parts]), self._values(output)))

    @_played
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        for output, source in zip(outputs, inputs):
            self.all_gather_single(output, source)

    @_played
    def gather(self, outputs: Any, inputs: Any, options: Any, **_: Any) -> Any:
        if not outputs or not outputs[0]:
            raise _needs_all("gather", "gather_list")
        self._write_lists(outputs[0], collectives.gather(self._values(_one(inputs)), self.lines, options.rootRank))

    @_played
    def scatter(self, outputs: Any, inputs: Any, options: Any, **_: Any) -> Any:
        if not inputs or not inputs[0]:
            raise _needs_all("scatter", "scatter_list")
        self._write(_one(outputs), collectives.scatter(self._lists(inputs[0]), self.lines, options.rootRank))

    @_played
    def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None, **_: Any) -> Any:
        for output, parts in zip(outputs, inputs):
            self._write(output, collectives.reduce_scatter(self._lists(parts), self.lines, _op_of(options)))

    @_played
    def reduce_scatter_single(self, output: Any, source: Any, options: Any = None, **_: Any) -> Any:
        lists = [collectives.pieces(value.reshape(-1), self.size()) for value in self._values(source)]
        got = collectives.reduce_scatter(lists, self.lines, _op_of(options))
        self._write(output, _same_once(got, lambda part: part, self._values(output)))

    @_played
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        for output, source in zip(outputs, inputs):
            self.reduce_scatter_single(output, source, options)

    @_played
    def alltoall(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        self._write_lists(outputs, collectives.all_to_all(self._lists(inputs), self.lines))

    @_played
    def all_to_all_single(self, output: Any, source: Any, out_sizes: Any, in_sizes: Any, options: Any = None, **_: Any) -> Any:
        got = collectives.all_to_all(self._cut(source, in_sizes), self.lines)
        for rank, parts in enumerate(got):
            wanted = tree_on(list(out_sizes or ()), rank)
            if parts is not None and wanted and [part.size(0) for part in parts] != wanted:
                sizes = [part.size(0) for part in parts]
                raise ValueError(f"[simulate] rank {rank} of an all-to-all gets pieces of sizes {sizes}, but expects {wanted}.")
        self._write(output, _same_once(got, torch.cat, self._values(output)))

    def _cut(self, source: torch.Tensor, sizes: Any) -> list:
        """For every rank, the pieces of its value for the ranks of its line."""
        values = self._values(source)
        return [collectives.pieces(value, self.size(), tree_on(list(sizes or ()), rank)) for rank, value in enumerate(values)]

    @_played
    def barrier(self, *_: Any, **__: Any) -> Any:
        pass

    @_played
    def monitored_barrier(self, *_: Any, **__: Any) -> Any:
        pass

    @_played
    def send(self, tensors: Any, to: Any, tag: int = 0) -> Any:
        for rank, value in enumerate(self._values(_one(tensors))):
            line = self.line_of(rank)
            if line is not None:
                self._letters.setdefault((rank, line[value_on(to, rank)], tag), []).append(value.clone())

    @_played
    def recv(self, tensors: Any, source: Any, tag: int = 0) -> Any:
        return _Later(lambda: self._receive(_one(tensors), source, tag))

    @_played
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        raise NotImplementedError("[recv] simulated ranks receive from a rank that is named. Pass src.")

    @torch.no_grad()
    def _receive(self, tensor: torch.Tensor, source: Any, tag: int) -> None:
        results: list = [None] * dist.get_world_size()
        for rank in range(len(results)):
            line = self.line_of(rank)
            if line is None:
                continue
            sender = line[value_on(source, rank)]
            letters = self._letters.get((sender, rank, tag))
            if not letters:
                raise RuntimeError(
                    f"[recv] rank {rank} waits for rank {sender}, which has sent it nothing. Simulated ranks run in lockstep: "
                    "call send before recv, or irecv before it and wait after it."
                )
            results[rank] = letters.pop(0)
        self._write(tensor, results)

    @_played
    def _start_coalescing(self, *_: Any) -> Any:
        pass

    @_played
    def _end_coalescing(self, *_: Any) -> Any:
        pass

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _asks_like_a_program() -> bool:
    import sys

    return sys._getframe(2).f_code.co_name == _TO_ITSELF


def _same_once(results: list, make: Callable[[Any], torch.Tensor], like: Sequence[torch.Tensor]) -> list:
    """Each result put together and given its shape; what several ranks share is made once."""
    made: dict = {}
    for rank, result in enumerate(results):
        if result is not None and (id(result), like[rank].shape) not in made:
            whole = make(result)
            if whole.numel() != like[rank].numel():
                raise ValueError(
                    f"[simulate] a collective gives {whole.numel()} elements, which do not fit into {collectives._form(like[rank])}."
                )
            made[id(result), like[rank].shape] = whole.view(like[rank].shape)
    return [None if result is None else made[id(result), like[rank].shape] for rank, result in enumerate(results)]


def _needs_all(what: str, name: str) -> Exception:
    return ValueError(f"[{what}] in a simulation one call is that of all ranks, the root too: pass {name}.")


def _create(common: Any, options: Any) -> Any:
    fake = _fake_pg.FakeProcessGroup._create_internal(common.group_rank, common.group_size, options)  # type: ignore[call-arg]
    return SimulatedGroup(common.group_rank, common.group_size, list(common.global_ranks_in_group), fake)


dist.Backend._plugins["FAKE"] = dist.Backend._plugins["FAKE"]._replace(creator_fn=_create)
