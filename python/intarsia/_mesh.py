"""Worlds and meshes: PyTorch's DeviceMesh is the mesh, and the core gets an equal one."""

import atexit
import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh as _torch_init_device_mesh

from . import _core

_thread = threading.local()  # .simulations: the worlds of open simulate() scopes, innermost last
_worlds: "weakref.WeakKeyDictionary[Any, _core.World]" = weakref.WeakKeyDictionary()  # of default process groups
_python_meshes: dict[int, DeviceMesh] = {}  # by the id of the core's mesh
_core_meshes: "weakref.WeakKeyDictionary[DeviceMesh, tuple[_core.World, _core.Mesh]]" = weakref.WeakKeyDictionary()
_MILLISECONDS = 1000
_THREADS_WAIT = 60  # seconds


def simulated_world() -> "_core.World | None":
    """The world of the innermost :func:`simulate` scope on this thread."""
    simulations = getattr(_thread, "simulations", None)
    return simulations[-1] if simulations else None


def current_world() -> "_core.World":
    """The simulation on this thread, else the job of the default process group, else one rank alone."""
    world = simulated_world()
    if world is not None:
        return world
    if not dist.is_initialized():
        _check_joined()
        return _core.simulated_world(1)
    group = dist.group.WORLD
    world = _worlds.get(group)
    if world is None:
        if not is_threaded():  # there, every thread has its own groups
            close_ended_worlds()
        world = _worlds[group] = _join(group)
    return world


def _check_joined() -> None:
    """A rank that forgot to join would do the work of a whole job, as every other one, and save over theirs."""
    launched = _core.launched_among_several()
    if launched is None:
        return
    launcher, rank, size = launched
    raise RuntimeError(
        f"[intarsia] {launcher} started this process as rank {rank} of {size}, but there is no process group. Call "
        "torch.distributed.init_process_group first. A process that is no rank of the job, such as a tool that a rank starts, opens "
        "intarsia.simulate(1)."
    )


@atexit.register
def close_ended_worlds() -> None:
    """Releases the connections and threads of process groups that the program has destroyed, which the core also holds."""
    for group, world in list(_worlds.items()):
        if group not in dist.distributed_c10d._world.pg_map:
            del _worlds[group]
            for _, made in [known for known in _core_meshes.values() if known[0] is world]:
                _python_meshes.pop(made.id, None)
            world.close()


def is_threaded() -> bool:
    """Whether the ranks of the job are threads of this process, as PyTorch's threaded tests have them."""
    return dist.is_initialized() and dist.get_backend() == "threaded"


def _join(group: Any) -> "_core.World":
    backend, store = dist.distributed_c10d._world.pg_map[group]
    timeout = dist.distributed_c10d._get_default_timeout(dist.Backend(dist.get_backend(group)))
    if backend == "fake":
        store = None  # type: ignore[assignment]
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    seconds = timeout.total_seconds()
    if backend == "threaded":  # a thread that fails closes no connection, so the others find out by waiting
        seconds = min(seconds, _THREADS_WAIT)
    world = _core.joined_world(store, rank, size, int(seconds * _MILLISECONDS))
    if backend != "threaded":
        world.adopt(list(range(size)), group, torch.device(_device_of(group)))
    return world


def _device_of(group: Any) -> str:
    devices = [device.type for device in group._device_types]
    return "cpu" if not devices or "cpu" in devices else devices[0]


def core_mesh(mesh: Any) -> "_core.Mesh":
    """The core's mesh for one of PyTorch's. Nothing is sent."""
    world = current_world()
    known = _core_meshes.get(mesh)
    if known is not None and known[0] is world:
        _python_meshes[known[1].id] = mesh  # of equal ones, the last used is shown: its groups are alive
        return known[1]
    # One row per group: a slice of a mesh has several side by side, and a simulation hosts them all.
    ranks = mesh._layout.remap_to_tensor(mesh._rank_map).flatten().tolist()
    names = list(mesh.mesh_dim_names or ())
    made = _core.Mesh(world, torch.device(mesh.device_type), list(mesh.shape), ranks, names)
    if not world.simulated and not is_threaded() and made.hosted:
        _adopt_groups(world, mesh, made)
    _core_meshes[mesh] = (world, made)
    _python_meshes[made.id] = mesh
    return made


def _adopt_groups(world: "_core.World", mesh: DeviceMesh, made: "_core.Mesh") -> None:
    if not hasattr(mesh, "_dim_group_names"):
        return  # made without process groups: the core connects the ranks itself
    for axis in range(made.ndim):
        ranks = made.line(0, axis)
        if len(ranks) > 1:
            world.adopt(ranks, mesh.get_group(axis), torch.device(mesh.device_type))


def python_mesh(mesh: "_core.Mesh") -> DeviceMesh:
    """PyTorch's mesh for one of the core's."""
    known = _python_meshes.get(mesh.id)
    if known is None:
        names = tuple(mesh.names) or None
        size = torch.Size(mesh.shape).numel()
        first = mesh.ranks.index(mesh.hosted[0]) // size * size  # of the group that we are in
        ranks = torch.tensor(mesh.ranks[first : first + size]).view(mesh.shape)
        known = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=names, _init_backend=False, _rank=mesh.hosted[0])
        _python_meshes[mesh.id] = known
    return known


def axis_names() -> set[str]:
    """The names of the axes of all meshes that tensors have been on."""
    return {name for mesh in _python_meshes.values() for name in mesh.mesh_dim_names or ()}


def init_device_mesh(device_type: str, mesh_shape: tuple[int, ...], **options: Any) -> DeviceMesh:
    """A mesh of ``mesh_shape`` over all ranks, as ``torch.distributed.device_mesh.init_device_mesh``.

    Inside :func:`simulate`, the ranks are the simulated ones and there are no process groups to make.
    """
    world = simulated_world()
    if world is None or _fake_group_of(world):
        return _torch_init_device_mesh(device_type, mesh_shape, **options)
    names = options.pop("mesh_dim_names", None)
    if options:
        raise TypeError(f"[init_device_mesh] a simulation does not take {', '.join(options)}.")
    size = torch.Size(mesh_shape).numel()
    if size > world.size:
        raise RuntimeError(f"[init_device_mesh] a mesh of {size} ranks does not fit into {world!r}.")
    ranks = torch.arange(size, dtype=torch.int).view(mesh_shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=names, _init_backend=False, _rank=0)


def _fake_group_of(world: "_core.World") -> bool:
    return dist.is_initialized() and dist.get_backend() == "fake" and dist.get_world_size() == world.size


@contextlib.contextmanager
def simulate(n: int, *, process_group: bool = True) -> Iterator["_core.World"]:
    """Hosts ``n`` simulated ranks in this process while the scope is open.

    ``to_local`` returns a tensor that stands for the shards of all ranks; ``shards_of`` lists them. If there is no
    process group yet, a fake one of ``n`` ranks stands in while the scope is open, so that DeviceMesh can be made as in
    a real job; with ``process_group=False`` the program makes its own.
    """
    from . import _functional, _numbers, _seeds

    world = _core.simulated_world(n)
    stack = _thread.__dict__.setdefault("simulations", [])
    fake = process_group and not dist.is_initialized() and _start_fake_group(n)
    _check_group_is_played(n)
    _functional.play()
    stack.append(world)
    try:
        with _numbers.numbers_scope():
            yield world
    except BaseException as error:
        _note_world(error, world)
        raise
    finally:
        stack.pop()
        _seeds.forget()
        if fake:
            dist.destroy_process_group()


def _check_group_is_played(n: int) -> None:
    """A group that was made before `import intarsia` sends nothing, and would give one rank's values for all."""
    if dist.is_initialized() and dist.get_backend() == "fake" and dist.get_world_size() == n:
        from ._simulated_group import SimulatedGroup

        if not isinstance(dist.group.WORLD, SimulatedGroup):
            raise RuntimeError(
                "[simulate] the fake process group was made before `import intarsia`, so its collectives can not be simulated. "
                "Import intarsia first, or let simulate make the group."
            )


def _note_world(error: BaseException, world: "_core.World") -> None:
    """Says below the error in which world it came up; once, where simulations are nested."""
    note = f"This process plays {world!r}: {list(world.hosted)}." if world.size > 1 else "This process plays one rank."
    if hasattr(error, "add_note") and not any("This process plays" in text for text in getattr(error, "__notes__", ())):
        error.add_note(note)


def _start_fake_group(n: int) -> bool:
    from ._simulated_group import _fake_pg as fake_pg

    hook = sys.excepthook
    dist.init_process_group("fake", rank=0, world_size=n, store=fake_pg.FakeStore())
    sys.excepthook = hook  # PyTorch's would put [rank0] before every line, once per group: here one process hosts all ranks
    return True
