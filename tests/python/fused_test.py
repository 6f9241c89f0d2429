"""One Linear for q, k and v: its local outputs are this rank's parts of each."""

import unittest

import torch
import torch.distributed as dist
from torch import nn

from intarsia import init_device_mesh, simulate
from intarsia.experimental import FusedColwiseParallel
from intarsia.parallel import RowwiseParallel, parallelize_module
from support import raises, run_ranks, same


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 6)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.sigmoid(q) * k + v)


def made():
    torch.manual_seed(0)
    return Attention()


def it_computes_and_trains_as_the_plain_model():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plain, model, x = made(), made(), torch.linspace(-1, 1, 30).view(5, 6)
    parallelize_module(model, mesh, {"qkv": FusedColwiseParallel(3), "out": RowwiseParallel()})
    same(model(x), plain(x))
    model(x).square().sum().backward()
    plain(x).square().sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters()):
        torch.testing.assert_close(parameter.grad.full_tensor(), other.grad, msg=name)
        torch.testing.assert_close(parameter.full_tensor(), other, msg=name)


class Fused(unittest.TestCase):
    def test_as_the_plain_model(self):
        for size in (1, 2, 4):
            with simulate(size):
                it_computes_and_trains_as_the_plain_model()
        run_ranks(2, [it_computes_and_trains_as_the_plain_model])

    def test_what_does_not_fit_is_an_error(self):
        with simulate(4):
            mesh = init_device_mesh("cpu", (4,))
            raises(ValueError, "has 18 output features in 3 blocks, which 4 ranks do not divide", parallelize_module, nn.Linear(2, 18), mesh, FusedColwiseParallel(3))
            raises(NotImplementedError, "is for nn.Linear, but got a Embedding", parallelize_module, nn.Embedding(4, 12), mesh, FusedColwiseParallel(3))
            raises(ValueError, "fused is 1. Give the number of blocks", FusedColwiseParallel, 1)


if __name__ == "__main__":
    unittest.main()
