"""The engines as a backend of torch.distributed: ``init_process_group("intarsia")``."""

import collections
import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import _core

NAME = "intarsia"
_MILLISECONDS = 1000
_made: "collections.Counter[str]" = collections.Counter()  # groups by name; a name may recur after destroy_process_group


def _create(common: Any, _options: Any) -> Any:
    _made[common.group_id] += 1
    store = dist.PrefixStore(f"{NAME}/{_made[common.group_id]}", common.store)  # the store may be reused
    ranks = list(common.global_ranks_in_group)  # empty for the default group
    world_size = dist.get_world_size() if ranks else common.group_size
    seconds = common.timeout.total_seconds()
    return _core.make_backend(
        store, common.group_rank, common.group_size, common.group_id, ranks, world_size, int(seconds * _MILLISECONDS)
    )


def carries(group: Any) -> bool:
    """Whether our backend carries the CPU tensors of a process group."""
    return any(pair.split(":")[-1] == NAME for pair in dist.get_backend_config(group).split(",") if pair.startswith("cpu:"))


_torch_monitored_barrier = dist.monitored_barrier


@functools.wraps(_torch_monitored_barrier)
def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """As PyTorch's, which asks for the name of gloo."""
    if group is dist.GroupMember.NON_GROUP_MEMBER or not carries(group):
        return _torch_monitored_barrier(group, timeout, wait_all_ranks)
    if isinstance(timeout, (int, float)):
        timeout = timedelta(seconds=timeout)
    timeout = timeout or dist.distributed_c10d._get_default_timeout(NAME)  # type: ignore[arg-type]
    (group or dist.group.WORLD).monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


if dist.is_available() and NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier
