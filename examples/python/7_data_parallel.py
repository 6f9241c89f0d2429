"""Trains a small transformer with its parameters in shards (fully_shard), and with a copy on every rank (replicate), beside the same
training on one rank. The model is plain torch.nn, the optimizer plain torch.optim.

Run it by itself, and this process plays all four ranks:
    PYTHONPATH=build/python python examples/python/7_data_parallel.py
or as four processes:
    PYTHONPATH=build/python torchrun --nproc-per-node 4 examples/python/7_data_parallel.py

It prints the loss of every step three times. It ends with an error if losses differ by more than 1e-6.
"""

import contextlib
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from intarsia import DTensor, Shard, distribute_tensor, fully_shard, init_device_mesh, replicate, simulate

STEPS, BATCH, LENGTH, WIDTH, WORDS = 6, 8, 6, 16, 11


def transformer():
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)).double()


def losses_of(model, batch):
    """Ordinary PyTorch code. Each rank brings its part of the batch; gradients are those of the mean of all."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(batch[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        yield loss


def main():
    alone = "RANK" not in os.environ
    with simulate(4) if alone else contextlib.nullcontext():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        torch.manual_seed(1)
        batch = torch.randint(WORDS, (BATCH, LENGTH + 1))
        mine = distribute_tensor(batch, mesh, [Shard(0)]).to_local()

        sharded, copied = transformer(), transformer()
        for block in sharded[1:3]:
            fully_shard(block, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        replicate(copied, device_mesh=mesh)

        say = print if alone or mesh.get_rank() == 0 else lambda *_, **__: None
        say(f"At rest a sharded parameter is {sharded[3].weight.placements} of {tuple(sharded[3].weight.shape)}.")
        say("step  fully_shard  replicate    one rank")
        same = True
        for step, three in enumerate(zip(losses_of(sharded, mine), losses_of(copied, mine), losses_of(transformer(), batch))):
            means = [mean_over(loss, mesh) for loss in three]
            same = same and max(means) - min(means) <= 1e-6
            say(f"{step:4d}  {means[0]:.8f}  {means[1]:.8f}  {means[2]:.8f}")
        say("every loss is that of one rank to 1e-6" if same else "A LOSS DIFFERS")
        if not alone:
            torch.distributed.destroy_process_group()
        return 0 if same else 1


def mean_over(loss, mesh):
    """Of the ranks' losses."""
    return DTensor.from_local(loss.detach().reshape(1), mesh, [Shard(0)]).mean().item()


if __name__ == "__main__":
    sys.exit(main())
