"""Trains a small MLP on a 2x2 mesh: the batch is cut over "dp", the layers over "tp". The model is plain torch.nn, the
optimizer plain torch.optim; the same training on one rank runs beside it.

Run it by itself, and this process plays all four ranks:
    PYTHONPATH=build/python python examples/python/2_train_an_mlp.py
or as four processes:
    PYTHONPATH=build/python torchrun --nproc-per-node 4 examples/python/2_train_an_mlp.py

It prints how the parameters lie on the mesh, the loss of every step beside the loss of the same step on one rank, and
what was sent in the last step. It ends with an error if two losses differ by more than 1e-6.
"""

import contextlib
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from intarsia import Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode, describe, picture

STEPS, BATCH, IN, HIDDEN, CLASSES = 10, 64, 16, 32, 4


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(IN, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def split_over_tp(name, module, mesh):
    """fc1 makes a part of the hidden units on each rank of "tp"; fc2 takes that part, and leaves a sum over "tp"."""
    cuts = {"fc1": {"weight": Shard(0), "bias": Shard(0)}, "fc2": {"weight": Shard(1)}}
    for parameter, cut in cuts.get(name, {}).items():
        whole = getattr(module, parameter)
        module.register_parameter(parameter, nn.Parameter(distribute_tensor(whole.data, mesh, [Replicate(), cut])))


def train_step(model, optimizer, x, y):
    """Ordinary PyTorch code: it does not know whether its tensors are distributed."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    alone = "RANK" not in os.environ
    with simulate(4) if alone else contextlib.nullcontext():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

        torch.manual_seed(0)
        x, y = torch.randn(BATCH, IN), torch.randint(CLASSES, (BATCH,))
        torch.manual_seed(1)
        plain = Mlp()
        torch.manual_seed(1)  # the same first weights
        model = distribute_module(Mlp(), mesh, split_over_tp)
        optimizer_plain = torch.optim.AdamW(plain.parameters(), 0.01)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        dx = distribute_tensor(x, mesh, [Shard(0), Replicate()])
        dy = distribute_tensor(y, mesh, [Shard(0), Replicate()])

        say = print if alone or mesh.get_rank() == 0 else lambda *_, **__: None  # one of the ranks speaks for all
        say(f"The parameters on {mesh}:\n{describe(model)}")
        say(f"Which ranks hold what of fc1.weight: {picture(model.fc1.weight)}and of the batch: {picture(dx)}")
        say("step  loss on the mesh  on one rank")
        same, comms = True, CommDebugMode()
        for step in range(STEPS):
            with comms:  # keeps the last step only
                loss = train_step(model, optimizer, dx, dy)
            expected = train_step(plain, optimizer_plain, x, y)
            agree = abs(loss - expected) <= 1e-6
            same = same and agree
            say(f"{step:4d}  {loss:16.9f}  {expected:11.9f}{'' if agree else '  DIFFERS'}")
        say(f"\nWhat a rank sent or received in the last step:\n{comms.table()}")
        say("every loss is that of one rank to 1e-6" if same else "A LOSS DIFFERS")
        if not alone:
            torch.distributed.destroy_process_group()
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
