"""Tests on four simulated ranks."""

import unittest
import warnings

import torch
import torch.distributed as dist

from intarsia import init_device_mesh, simulate


class Simulated(unittest.TestCase):
    """The ranks in a line and on a grid."""

    def setUp(self) -> None:
        warnings.simplefilter("ignore")
        self.enterContext(simulate(4))
        self.mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        self.grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def values(tensor, count=4):
    """The value of every rank; a plain tensor is the same on all."""
    return [v.tolist() for v in tensor._local_tensors.values()] if hasattr(tensor, "_local_tensors") else [tensor.tolist()] * count


class Ranks(Simulated):
    def setUp(self):
        super().setUp()
        self.rank = dist.get_rank()

    def check(self, tensor, expected):
        self.assertEqual(values(tensor), [torch.as_tensor(value).tolist() for value in expected])
