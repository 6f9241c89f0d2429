"""What the Python tests share: models, comparisons, and running a function on several ranks."""

import faulthandler
import json
import os
import pathlib
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 10))


def same(left: torch.Tensor, right: torch.Tensor, **tolerance) -> None:
    """Compares a tensor, distributed or per rank, with a plain one."""
    for value in whole_values(left):
        torch.testing.assert_close(value.detach(), right.detach(), **tolerance)


def raises(kind: type, text: str, call, *args, **options) -> None:
    """Checks that the call is an error of that kind with that text in it."""
    try:
        call(*args, **options)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


def print_on_a_fake_group(ranks: int, reports_of) -> None:
    """Prints as JSON what `reports_of` finds on a mesh of a group that moves nothing: how PyTorch's own DTensor lays results out."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.simplefilter("ignore")
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    print(json.dumps(reports_of(init_device_mesh("cpu", (ranks,)))), flush=True)


def whole_values(tensor: torch.Tensor) -> list:
    if hasattr(tensor, "full_tensor"):
        return [tensor.full_tensor()]
    return list(tensor._local_tensors.values()) if hasattr(tensor, "_local_tensors") else [tensor]


def _child(rank: int, size: int, folder: str, functions: list, args: tuple, backend: str) -> None:
    torch.set_num_threads(1)
    faulthandler.enable()
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    for function in functions:
        try:
            function(*args)
        except BaseException:
            with open(os.path.join(folder, f"{function.__name__}.{rank}"), "w") as file:
                file.write(traceback.format_exc())
            os._exit(1)  # the others notice by the closed connections
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(size: int, functions: list, *args, backend: str = "gloo") -> None:
    """Runs the functions in order on `size` processes. The first failure of any rank is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        processes = mp.start_processes(_child, (size, folder, functions, args, backend), size, join=False, start_method="spawn")
        try:
            while not processes.join():
                pass
        except Exception as error:
            texts = [path.read_text() for path in sorted(pathlib.Path(folder).glob("*.[0-9]"))]
            raise AssertionError("\n".join(texts) or str(error)) from None
