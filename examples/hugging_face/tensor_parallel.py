"""A Llama of Hugging Face, split by transformers' own plan (tp_plan="auto"): loss, gradients and greedy tokens of one process.

Run: python -m intarsia -m torch.distributed.run --nproc-per-node 2 tensor_parallel.py
"""

import time

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from tiny_llama import batch, engine, greedy, join, largest, say, shared_folder, tiny_llama


def main() -> None:
    rank = join()
    plain, folder = tiny_llama(), shared_folder()
    if rank == 0:
        plain.save_pretrained(folder)
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")

    expected, loss = (m(batch(), labels=batch()).loss for m in (plain, model))
    expected.backward()
    loss.backward()
    wanted = dict(plain.named_parameters())
    pairs = [(whole(p.grad), wanted[name].grad) for name, p in model.named_parameters()]
    say(f"engine of the tensors: {engine()}")
    say(f"loss differs by {abs(whole(loss).item() - expected.item()):.0e}, gradients by {largest(pairs):.0e}")
    assert abs(whole(loss).item() - expected.item()) < 1e-5 and largest(pairs) < 1e-4
    assert greedy(model) == greedy(plain)
    say("greedy tokens are those of one process")
    say(f"a training step takes {step_time(model):.1f} ms")
    dist.destroy_process_group()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def step_time(model: torch.nn.Module) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    for step in range(12):
        begin = time.perf_counter()
        model(batch(step), labels=batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2] * 1000


main()
