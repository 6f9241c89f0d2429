"""The first program of the README, from Python. It needs no arguments and no launcher.

    PYTHONPATH=build/python python examples/python/0_first_program.py
"""

import torch

from intarsia import Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode, visualize_sharding

with simulate(4):  # this process plays four ranks
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = distribute_tensor(torch.ones(5, 3), mesh, [Shard(0), Replicate()])
    w = distribute_tensor(torch.ones(3, 4).requires_grad_(), mesh, [Replicate(), Shard(1)])
    with CommDebugMode() as comms:
        y = torch.relu(x @ w)  # ordinary PyTorch calls
        y.sum().backward()
        whole = w.grad.full_tensor()
    visualize_sharding(y)
    print(whole)
    print(comms.table(), end="")
