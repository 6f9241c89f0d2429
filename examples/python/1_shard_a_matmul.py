"""Shards a matrix product over four ranks in two ways and looks at the shards.

Run it by itself, and this process plays all four ranks:
    PYTHONPATH=build/python python examples/python/1_shard_a_matmul.py
or as four processes, where every rank prints its own shards:
    PYTHONPATH=build/python torchrun --nproc-per-node 4 examples/python/1_shard_a_matmul.py

For each way it prints who holds what of both factors and of the product, the local values, and what had to be sent. It
ends with an error if a product differs from that of plain tensors.
"""

import contextlib
import os
import sys

import torch

from intarsia import Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode, picture


def show(title, a, b, mesh, cut_a, cut_b):
    """a @ b with both factors distributed; False if the product is wrong."""
    left = distribute_tensor(a, mesh, cut_a)
    right = distribute_tensor(b, mesh, cut_b)

    with CommDebugMode() as comms:
        product = left @ right  # an ordinary PyTorch call
    whole = product.full_tensor()

    print(f"=== {title}")
    print(f"a: {picture(left)}b: {picture(right)}a @ b: {picture(product)}")
    print(product)
    print("sent during mm:", comms.text() or "nothing\n")
    return torch.equal(whole, a @ b)


def main():
    alone = "RANK" not in os.environ
    with simulate(4) if alone else contextlib.nullcontext():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

        # Small whole numbers: every order of adding gives the same sum, so results can be compared exactly.
        a = torch.arange(30.0).view(5, 6)
        b = torch.arange(24.0).view(6, 4)

        right = show("rows of a: the product is cut as a is", a, b, mesh, [Shard(0)], [Replicate()])
        right &= show("the dim that is summed: every rank holds a term of the product", a, b, mesh, [Shard(1)], [Shard(0)])
        print("both products are right" if right else "A PRODUCT IS WRONG")
        if not alone:
            torch.distributed.destroy_process_group()
        return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
