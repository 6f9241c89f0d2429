"""Tests on four simulated ranks."""

import unittest
import warnings

from intarsia import init_device_mesh, simulate


class Simulated(unittest.TestCase):
    """The ranks in a line and on a grid."""

    def setUp(self) -> None:
        warnings.simplefilter("ignore")
        self.enterContext(simulate(4))
        self.mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        self.grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
