"""Runs programs on several processes, of PyTorch's DTensor or of ours, and brings what they return as values that compare."""

import ast
import os
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh


def readable(value):
    """Numbers, texts and lists, rounded, for a comparison."""
    if isinstance(value, torch.Tensor):
        return readable(value.tolist())
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, (list, tuple)):
        return [readable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): readable(item) for key, item in value.items()}
    return value if isinstance(value, (int, bool, str, type(None))) else str(value)


def report(programs, folder, size):
    """Each rank writes what the programs return to a file in the folder."""
    mp.start_processes(_work, (programs, folder, size), size, start_method="spawn")


def _work(rank, programs, folder, size):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (2,) * (size // 2))
    reports = {}
    for program in programs:
        try:
            reports[program.__name__] = readable(program(mesh))
        except Exception as error:
            reports[program.__name__] = f"{type(error).__name__}: {error}"
    with open(f"{folder}/{rank}", "w") as file:
        file.write(repr(reports))
    dist.barrier()
    dist.destroy_process_group()


def reports_of(script, size, *options):
    """What the ranks report of a script that calls report() with the folder and the size that it is given."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, *options, script, folder, str(size)], capture_output=True, text=True, timeout=600)
        texts = [open(path).read() for path in (f"{folder}/{rank}" for rank in range(size)) if os.path.exists(path)]
    if len(texts) != size:
        raise AssertionError(done.stderr)
    return [ast.literal_eval(text) for text in texts]
