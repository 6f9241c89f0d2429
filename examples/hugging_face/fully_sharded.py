"""A Llama of Hugging Face under fully_shard: AdamW, clipping, a checkpoint in between, and generate.

Run: python -m intarsia -m torch.distributed.run --nproc-per-node 2 fully_sharded.py
"""

import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tiny_llama import batch, engine, greedy, join, say, shared_folder, tiny_llama


def sharded() -> torch.nn.Module:
    model = tiny_llama()
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, mine: slice) -> tuple[list, list]:
    """Each rank takes its part of every batch. Returns the losses, and how long the steps took."""
    losses, times = [], []
    for step in steps:
        begin, tokens = time.perf_counter(), batch(step)[mine]
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        times.append(time.perf_counter() - begin)
    return losses, times


def main() -> None:
    rank, size, folder = join(), dist.get_world_size(), shared_folder()
    rows = 4 // size
    mine = slice(rank * rows, (rank + 1) * rows)
    plain = tiny_llama()
    expected, _ = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3), range(10), slice(None))

    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, times = train(model, optimizer, range(5), mine)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/step5")

    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/step5")
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
    more, more_times = train(model, optimizer, range(5, 10), mine)
    losses, times = losses + more, sorted(times + more_times)

    mean = torch.stack(losses)
    dist.all_reduce(mean)
    worst = (mean / size - torch.stack(expected)).abs().max().item()
    say(f"engine of the tensors: {engine()}")
    say(f"10 losses, resumed after the fifth, differ from one process by {worst:.0e}")
    assert worst < 1e-4
    assert greedy(model) == greedy(plain)
    say("greedy tokens are those of one process")
    say(f"a training step takes {times[len(times) // 2] * 1000:.1f} ms")
    dist.destroy_process_group()


main()
