"""Trains a Llama-style transformer cut over four ranks by tensor and sequence parallelism. The model is plain torch.nn, the
optimizer plain torch.optim; the same training on one rank runs beside it.

Run it by itself, and this process plays all four ranks:
    PYTHONPATH=build/python python examples/python/4_llama.py
or as four processes:
    PYTHONPATH=build/python torchrun --nproc-per-node 4 examples/python/4_llama.py
With one table for both ends of the vocabulary: add the argument tied.

It prints the loss of every step beside the loss of the same step on one rank, and what was sent in the last step. It ends
with an error if two losses differ by more than 1e-5, or if anything was sent but what theory asks for.
"""

import contextlib
import os
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from intarsia import Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode
from intarsia.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

STEPS, BATCH, LENGTH = 20, 2, 16


@dataclass
class Options:
    vocabulary: int = 96
    width: int = 32
    layers: int = 2
    heads: int = 8
    key_heads: int = 4
    hidden: int = 84
    longest: int = 64
    tied: bool = False  # the output layer uses the table of the embedding

    @property
    def head_width(self):
        return self.width // self.heads


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    """Turns each pair of features (i, i + half) of [b, heads, s, head_width] by an angle that grows with the position."""
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Attention(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.head_width, narrow = options.head_width, options.key_heads * options.head_width
        self.wq, self.wk, self.wv = linear(options.width, options.width), linear(options.width, narrow), linear(options.width, narrow)
        self.wo = linear(options.width, options.width)

    def by_heads(self, x):
        """[b, s, heads * head_width] to [b, heads, s, head_width]"""
        return x.view(x.size(0), x.size(1), -1, self.head_width).transpose(1, 2)

    def forward(self, x, cos, sin):
        q, k = rotate(self.by_heads(self.wq(x)), cos, sin), rotate(self.by_heads(self.wk(x)), cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, self.by_heads(self.wv(x)), is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.gate, self.up = linear(options.width, options.hidden), linear(options.width, options.hidden)
        self.down = linear(options.hidden, options.width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(options.width, eps=1e-5), Attention(options)
        self.mlp_norm, self.mlp = nn.RMSNorm(options.width, eps=1e-5), Mlp(options)

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        return h + self.mlp(self.mlp_norm(h))


class TiedHead(nn.Module):
    """The output layer of a tied vocabulary."""

    def forward(self, x, table):
        return F.linear(x, table)


class Model(nn.Module):
    """Tokens [b, s] to logits [b, s, vocabulary]."""

    def __init__(self, options):
        super().__init__()
        self.tied = options.tied
        self.embedding = nn.Embedding(options.vocabulary, options.width)
        self.layers = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width, eps=1e-5)
        self.output = TiedHead() if options.tied else linear(options.width, options.vocabulary)
        with torch.no_grad():
            self.embedding.weight.mul_(0.1)
        half = options.head_width // 2
        angles = torch.arange(options.longest).unsqueeze(1) * 10000.0 ** (torch.arange(half) / -half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        cos, sin = self.cos[: tokens.size(1)], self.sin[: tokens.size(1)]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.norm(x)
        return self.output(x, self.embedding.weight) if self.tied else self.output(x)


class ReplicateTables(ParallelStyle):
    """A style of one's own: every rank has the tables of the rotary positions."""

    def _apply(self, module, device_mesh):
        for name, table in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, distribute_tensor(table, device_mesh, [Replicate()]))
        return module


def plan(options):
    """Tensor and sequence parallelism. Between blocks every rank has a part of the sequence, S(1); inside attention a part
    of the heads, inside the MLP a part of the hidden features. The vocabulary is cut at both ends, so logits stay S(2)."""
    columns = ColwiseParallel(use_local_output=False)
    rows = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)

    def whole_sequence(others):  # of the first argument; the others are left alone
        rest = (None,) * others
        return PrepareModuleInput(input_layouts=(Shard(1), *rest), desired_input_layouts=(Replicate(), *rest))

    entries = {
        "": ReplicateTables(),
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "layers.*.*_norm": SequenceParallel(),
        "layers.*.attention": whole_sequence(2),
        "layers.*.attention.w[qkv]": columns,
        "layers.*.attention.wo": rows,
        "layers.*.mlp": whole_sequence(0),
        "layers.*.mlp.gate": columns,
        "layers.*.mlp.up": columns,
        "layers.*.mlp.down": rows,
        "norm": SequenceParallel(),
    }
    entries["output"] = whole_sequence(1) if options.tied else ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
    return entries


def train_step(model, optimizer, tokens, target):
    """The mean over all positions. Classes that are cut stay cut: the logits are never brought together."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def as_foreseen(comms, options, ranks):
    """Per block and pass: attention and MLP each gather their sequence and scatter their sum, all the same bytes: the
    activations [batch, length, width] less the part that a rank has already. The two ends of the vocabulary add one each."""
    size = BATCH * LENGTH * options.width * 4 * (ranks - 1) // ranks
    lines = comms.text().splitlines()
    moves = [lines.count(f"{kind} tp {size}B") for kind in ("all_gather", "reduce_scatter(sum)")]
    return moves == [4 * options.layers + 2] * 2


def main():
    alone = "RANK" not in os.environ
    with simulate(4) if alone else contextlib.nullcontext():
        ranks = 4 if alone else int(os.environ["WORLD_SIZE"])
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        say = print if alone or mesh.get_rank() == 0 else lambda *_, **__: None  # one of the ranks speaks for all
        options = Options(tied="tied" in sys.argv[1:])

        torch.manual_seed(1)
        single = Model(options)
        torch.manual_seed(1)  # the same first weights
        model = Model(options)
        optimizer_single = torch.optim.AdamW(single.parameters(), lr=0.01)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(2)
        text = torch.randint(options.vocabulary, (BATCH, LENGTH + 1))
        tokens, target = text[:, :LENGTH], text[:, 1:]

        parallelize_module(model, mesh, plan(options))  # in place: the optimizer sees it
        distributed_target = distribute_tensor(target, mesh, [Replicate()])
        say("step  loss on the mesh  on one rank")
        same = True
        for step in range(STEPS):
            with CommDebugMode() as comms:  # keeps the last step only
                result = train_step(model, optimizer, tokens, distributed_target)
            loss, expected = result.item(), train_step(single, optimizer_single, tokens, target).item()
            agree = abs(loss - expected) <= 1e-5
            same = same and agree
            say(f"{step:4d}  {loss:16.9f}  {expected:11.9f}{'' if agree else '  DIFFERS'}")
        lean = as_foreseen(comms, options, ranks)
        say(f"\nWhat a rank sent or received in the last step:\n{comms.table()}")
        say("every loss is that of one rank to 1e-5" if same else "A LOSS DIFFERS")
        say("every block sent what theory asks for" if lean else "SOMETHING ELSE WAS SENT")
        if not alone:
            torch.distributed.destroy_process_group()
        return 0 if same and lean else 1


if __name__ == "__main__":
    sys.exit(main())
