"""A Llama-style transformer that is born in parts: each rank makes a quarter of every parameter, and no rank ever holds a whole
one. The numbers are those of the model made plainly after the same seed, so it trains as that one does.

Run it by itself, and this process plays four ranks:
    PYTHONPATH=build/python python examples/python/8_born_sharded.py
or as four processes:
    PYTHONPATH=build/python torchrun --nproc-per-node 4 examples/python/8_born_sharded.py

It prints how much of the parameters a rank holds at birth and after the plan, and the loss of every step beside that of one
rank. It ends with an error if two losses differ by more than 1e-5.
"""

import contextlib
import importlib
import os
import sys

import torch

from intarsia import Replicate, distribute_tensor, init_device_mesh, simulate
from intarsia.experimental import BornSharded

llama = importlib.import_module("4_llama")


def bytes_held(model):
    """By the rank that holds most."""
    shards = lambda p: p.shards if hasattr(p, "shards") else [p]
    return sum(max(shard.nbytes for shard in shards(parameter.detach())) for parameter in model.parameters())


def main():
    alone = "RANK" not in os.environ
    with simulate(4) if alone else contextlib.nullcontext():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        say = print if alone or mesh.get_rank() == 0 else lambda *_, **__: None  # one of the ranks speaks for all
        options = llama.Options(vocabulary=512, width=128, layers=4, hidden=344)

        torch.manual_seed(1)
        with BornSharded(mesh, llama.plan(options)) as scope:
            model = llama.Model(options)
        at_birth = bytes_held(model)
        scope.finish(model)  # names are known now: each parameter goes where the plan wants it
        torch.manual_seed(1)
        single = llama.Model(options)  # for comparison: whole
        held, whole = bytes_held(model), bytes_held(single)
        say(f"a rank holds {at_birth} of {whole} bytes at birth, and {held} after the plan\n")

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer_single = torch.optim.SGD(single.parameters(), lr=0.1)
        same = at_birth < 0.26 * whole
        for step in range(5):
            text = (torch.arange(2 * 17).view(2, 17) * 7 + step) % options.vocabulary
            tokens, target = text[:, :16].contiguous(), text[:, 1:].contiguous()
            distributed_target = distribute_tensor(target, mesh, [Replicate()])
            loss = llama.train_step(model, optimizer, tokens, distributed_target).item()
            expected = llama.train_step(single, optimizer_single, tokens, target).item()
            same = same and abs(loss - expected) <= 1e-5
            say(f"step {step}  loss {loss:.6f}  alone {expected:.6f}")
        if not alone:
            torch.distributed.destroy_process_group()
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
