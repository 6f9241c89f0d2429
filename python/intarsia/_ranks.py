"""The functions by which a program asks for ranks and groups. In a simulation the answer is a per-rank number."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as _device_mesh

from ._local_tensor import answers_as_the_process
from ._mesh import DeviceMesh, core_mesh, simulated_world
from ._numbers import called_by_pytorch, joined, numbers_of, per_rank_int, tree_on, value_on
from ._simulated_group import SimulatedGroup

_c10d = dist.distributed_c10d


def _group_of(group: Any) -> "SimulatedGroup | None":
    """The group, if its ranks are played here."""
    if simulated_world() is None or not dist.is_initialized():
        return None
    group = dist.group.WORLD if group is None else group
    return group if isinstance(group, SimulatedGroup) and group.is_played() else None


def _replace(module: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces a function of PyTorch, and its other names."""
    theirs = getattr(module, name)
    ours = functools.wraps(theirs)(make(theirs))
    for place in (module, dist, _c10d):
        if getattr(place, name, None) is theirs:
            setattr(place, name, ours)


def _get_rank(theirs: Callable) -> Callable:
    def get_rank(group: Any = None) -> Any:
        mine = _group_of(group)
        if mine is None or (not called_by_pytorch(1) and answers_as_the_process()):
            return theirs(group)
        return mine.acting if called_by_pytorch(1) else mine.numbers(lambda line, rank: line.index(rank), -1)

    return get_rank


def _get_node_local_rank(theirs: Callable) -> Callable:
    def get_node_local_rank(fallback_rank: "int | None" = None) -> Any:
        mine = _group_of(None)
        if mine is None or answers_as_the_process():
            return theirs(fallback_rank)
        return mine.numbers(lambda line, rank: rank, -1)

    return get_node_local_rank


def _get_group_rank(theirs: Callable) -> Callable:
    def get_group_rank(group: Any, global_rank: Any) -> Any:
        mine = _group_of(group)
        if mine is None or (not numbers_of(global_rank) and answers_as_the_process()):
            return theirs(group, global_rank)

        def place(line: list[int], rank: int) -> int:
            wanted = value_on(global_rank, rank)
            if wanted not in line:
                raise ValueError(f"Global rank {wanted} is not part of group {mine}: that of rank {rank} is {line}.")
            return line.index(wanted)

        return _common(mine, place)

    return get_group_rank


def _get_global_rank(theirs: Callable) -> Callable:
    def get_global_rank(group: Any, group_rank: Any) -> Any:
        mine = None if called_by_pytorch(1) else _group_of(group)
        if mine is None or (not numbers_of(group_rank) and answers_as_the_process()):
            return theirs(group, group_rank)
        return _common(mine, lambda line, rank: line[value_on(group_rank, rank)])

    return get_global_rank


def _common(group: SimulatedGroup, of_rank: Callable[[list[int], int], int]) -> Any:
    """A plain number where the ranks of the group agree; ranks outside of it do not count."""
    values = {of_rank(line, rank) for line in group.lines for rank in line}
    return values.pop() if len(values) == 1 else group.numbers(of_rank, -1)


def _get_process_group_ranks(theirs: Callable) -> Callable:
    def get_process_group_ranks(group: Any) -> list:
        mine = None if called_by_pytorch(1) else _group_of(group)
        if mine is None or len(mine.lines) == 1 or answers_as_the_process():
            return theirs(group)
        return [mine.numbers(lambda line, rank, place=place: line[place], -1) for place in range(mine.size())]  # type: ignore[misc]

    return get_process_group_ranks


def _new_group(theirs: Callable) -> Callable:
    def new_group(ranks: "Sequence[int] | None" = None, *args: Any, **kwargs: Any) -> Any:
        mine = None if called_by_pytorch(1) else _group_of(None)
        if mine is None or not ranks:
            return theirs(ranks, *args, **kwargs)
        mine.acting = min(ranks)  # so that the group is made even if rank 0 is not in it
        try:
            return theirs(ranks, *args, **kwargs)
        finally:
            mine.acting = 0

    return new_group


def _new_subgroups_by_enumeration(theirs: Callable) -> Callable:
    def new_subgroups_by_enumeration(ranks_per_subgroup_list: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> Any:
        if _group_of(None) is None or not ranks_per_subgroup_list:
            return theirs(ranks_per_subgroup_list, *args, **kwargs)
        options = dict(zip(("timeout", "backend", "pg_options", "group_desc"), args)) | kwargs
        lines = [sorted(ranks) for ranks in ranks_per_subgroup_list]
        _check_apart(lines)
        subgroups = [dist.new_group(ranks=ranks, **options) for ranks in lines]
        mine = dist.new_group(ranks=lines[0], **options)  # every rank's own: it represents them all
        mine.lines = lines
        return mine, subgroups

    return new_subgroups_by_enumeration


def _split_group(theirs: Callable) -> Callable:
    def split_group(
        parent_pg: Any = None,
        split_ranks: "Sequence[Sequence[int]] | None" = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: "str | None" = None,
        backend: Any = None,
    ) -> Any:
        parent = _group_of(parent_pg)
        if parent is None:
            return theirs(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        if backend is not None and str(backend) != parent.getBackendName():
            raise ValueError(f"[split_group] the groups of a simulation are {parent.getBackendName()!r}, but backend is {backend!r}. Leave it out.")
        splits = _checked_splits(split_ranks, parent.size())
        lines = [[line[place] for place in split] for line in parent.lines for split in splits]
        options = {"timeout": timeout, "pg_options": pg_options, "group_desc": group_desc}
        group = dist.new_group(ranks=lines[0], sort_ranks=False, **options)  # every rank's own: it represents them all
        group.lines = lines
        return group

    return split_group


def _checked_splits(splits: "Sequence[Sequence[int]] | None", size: int) -> list[list[int]]:
    if not splits:
        raise ValueError("split_ranks cannot be None or empty")
    for split in splits:
        if not split:
            raise ValueError("the split group cannot be empty")
        if len(split) != len(set(split)):
            raise ValueError("the split group cannot have duplicate ranks")
        if not all(0 <= place < size for place in split):
            raise ValueError(f"[split_group] the ranks of the group are 0 to {size - 1}, but a split is {list(split)}.")
    ordered = [sorted(split) for split in splits]
    _check_apart(ordered)
    return ordered


def _check_apart(lines: Sequence[Sequence[int]]) -> None:
    seen: dict[int, Sequence[int]] = {}
    for line in lines:
        for rank in line:
            if rank in seen:
                raise ValueError(f"Rank {rank} has appeared in both subgroup {seen[rank]} and {line}")
            seen[rank] = line
    if len({len(line) for line in lines}) > 1:
        raise NotImplementedError(
            f"[new_subgroups] a simulation plays subgroups of one size, but got {[len(line) for line in lines]}. Use new_group for each."
        )


def _by_root(root: str) -> Callable:
    """PyTorch's function goes on as the root, which is the one that has a list. One call is that of all ranks here."""

    def make(theirs: Callable) -> Callable:
        signature = inspect.signature(theirs)

        def function(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            mine = _group_of(given.get("group"))
            if mine is None:
                return theirs(*args, **kwargs)
            place = given.get(f"group_{root}")
            if place is None:
                place = dist.get_group_rank(mine, given.get(root) or 0)
            before, mine.acting = mine.acting, place
            try:
                return theirs(*args, **kwargs)
            finally:
                mine.acting = before

        return function

    return make


def _scatter_object_list(theirs: Callable) -> Callable:
    def scatter_object_list(
        scatter_object_output_list: list,
        scatter_object_input_list: "list | None" = None,
        src: Any = None,
        group: Any = None,
        group_src: Any = None,
    ) -> None:
        mine = _group_of(group)
        if mine is None:
            return theirs(scatter_object_output_list, scatter_object_input_list, src, group, group_src)
        if not scatter_object_input_list or len(scatter_object_input_list) != mine.size():
            raise ValueError("[scatter_object_list] in a simulation one call is that of all ranks: pass a list with an object for each.")
        root = dist.get_group_rank(mine, src or 0) if group_src is None else group_src
        given, values = scatter_object_input_list, []
        for rank in range(dist.get_world_size()):
            line = mine.line_of(rank)
            old = tree_on(scatter_object_output_list[0], rank)
            values.append(old if line is None else tree_on(given[line.index(rank)], line[root]))
        scatter_object_output_list[0] = joined(values, "scatter_object_list")

    return scatter_object_list


def _refused(advice: str) -> Callable:
    def make(theirs: Callable) -> Callable:
        def function(*args: Any, **kwargs: Any) -> Any:
            if _group_of(None) is not None:
                raise NotImplementedError(f"[{theirs.__name__}] is not simulated. {advice}")
            return theirs(*args, **kwargs)

        return function

    return make


def _all_gather_object(theirs: Callable) -> Callable:
    def all_gather_object(object_list: list, obj: Any, group: Any = None) -> None:
        mine = _group_of(group)
        if mine is None:
            return theirs(object_list, obj, group)
        for place in range(mine.size()):
            object_list[place] = _told(mine, lambda line, place=place: tree_on(obj, line[place]), object_list[place])  # type: ignore[misc]

    return all_gather_object


def _broadcast_object_list(theirs: Callable) -> Callable:
    def broadcast_object_list(
        object_list: list, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None
    ) -> None:
        mine = _group_of(group)
        if mine is None:
            return theirs(object_list, src, group, device, group_src)
        if group_src is None:
            group_src = dist.get_group_rank(mine, 0 if src is None else src)
        for place, value in enumerate(object_list):
            object_list[place] = _told(mine, lambda line, value=value: tree_on(value, line[group_src]), value)  # type: ignore[misc]

    return broadcast_object_list


def _told(group: SimulatedGroup, of_line: Callable[[list[int]], Any], old: Any) -> Any:
    """What every rank receives in its line; a rank outside keeps its value."""
    lines = [group.line_of(rank) for rank in range(dist.get_world_size())]
    return joined([tree_on(old, rank) if line is None else of_line(line) for rank, line in enumerate(lines)], "object")


def _refuse_wrapper(kind: type) -> None:
    """A wrapper that averages in C++, by the one rank that a process is there: in a simulation an error."""
    theirs = kind.__init__  # type: ignore[misc]

    @functools.wraps(theirs)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if _group_of(kwargs.get("process_group")) is not None:
            raise NotImplementedError(
                f"[{kind.__name__}] is not simulated: its averages are taken between processes. Use replicate(model) or "
                "fully_shard(model), which are."
            )
        theirs(self, module, *args, **kwargs)

    kind.__init__ = init  # type: ignore[misc]


def _mesh_method(name: str, ours: Callable) -> None:
    theirs = getattr(DeviceMesh, name)

    @functools.wraps(theirs)
    def method(self: DeviceMesh, *args: Any, **kwargs: Any) -> Any:
        world = simulated_world()
        if world is None or world.size == 1 or _called_by_meshes():
            return theirs(self, *args, **kwargs)
        return ours(self, *args, **kwargs)

    setattr(DeviceMesh, name, method)


def _called_by_meshes() -> bool:
    import sys

    return sys._getframe(2).f_globals.get("__name__") == _device_mesh.__name__


def _mesh_rank(self: DeviceMesh) -> Any:
    return per_rank_int(core_mesh(self).hosted)


def _mesh_coordinate(self: DeviceMesh) -> tuple:
    return tuple(per_rank_int(list(axis)) for axis in zip(*core_mesh(self).coordinates))


def _mesh_local_rank(self: DeviceMesh, mesh_dim: "int | str | None" = None) -> Any:
    if self.ndim > 1 and mesh_dim is None:
        raise RuntimeError(
            f"Found the DeviceMesh have {self.ndim} dimensions",
            "Optional kwarg `mesh_dim` needs to be specified when device_mesh.ndim > 1.",
        )
    if isinstance(mesh_dim, str):
        if mesh_dim not in (self.mesh_dim_names or ()):
            raise KeyError(f"[get_local_rank] the mesh {self} has no dim {mesh_dim!r}.")
        mesh_dim = self.mesh_dim_names.index(mesh_dim)
    if len(core_mesh(self).hosted) == simulated_world().size and dist.is_initialized():
        group = _group_of(self.get_group(mesh_dim or 0))
        if group is not None:  # its order need not be that of the mesh
            return group.numbers(lambda line, rank: line.index(rank), -1)
    return _mesh_coordinate(self)[mesh_dim or 0]  # type: ignore[index]


def _note_lines(theirs: Callable) -> Callable:
    """A mesh has a group per line of an axis, and keeps the one of this rank. In a simulation it plays them all."""

    @functools.wraps(theirs)
    def init_one_process_group(sub_layout: Any, rank_map: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = theirs(sub_layout, rank_map, *args, **kwargs)
        group = None if name is None else _c10d._resolve_process_group(name)
        if isinstance(group, SimulatedGroup) and not group.of_world:
            lines = _device_mesh._MeshLayout([sub_layout]).remap_to_tensor(rank_map)
            group.lines = [sorted(line) for line in lines.tolist()]
        return name

    return init_one_process_group


_replace(_c10d, "get_rank", _get_rank)
_replace(_c10d, "get_node_local_rank", _get_node_local_rank)
_replace(_c10d, "get_group_rank", _get_group_rank)
_replace(_c10d, "get_global_rank", _get_global_rank)
_replace(_c10d, "get_process_group_ranks", _get_process_group_ranks)
_replace(_c10d, "new_group", _new_group)
_replace(_c10d, "all_gather_object", _all_gather_object)
_replace(_c10d, "broadcast_object_list", _broadcast_object_list)
_replace(_c10d, "new_subgroups_by_enumeration", _new_subgroups_by_enumeration)
_replace(_c10d, "scatter_object_list", _scatter_object_list)
_replace(_c10d, "gather", _by_root("dst"))
_replace(_c10d, "scatter", _by_root("src"))
_replace(_c10d, "split_group", _split_group)
for _name in ("gather_object", "send_object_list", "recv_object_list"):
    _replace(_c10d, _name, _refused("Use all_gather_object or broadcast_object_list."))
_refuse_wrapper(torch.nn.parallel.DistributedDataParallel)
_mesh_method("get_rank", _mesh_rank)
_mesh_method("get_coordinate", _mesh_coordinate)
_mesh_method("get_local_rank", _mesh_local_rank)
_mesh_method("_sym_get_coordinate", lambda self, index: _mesh_coordinate(self)[index])
DeviceMesh._init_one_process_group = staticmethod(_note_lines(DeviceMesh._init_one_process_group))
