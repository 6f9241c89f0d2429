"""What the programs of this folder share: a Llama with random weights, a batch, and one process to compare with."""

import os
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM


def join() -> int:
    """Joins the job of torchrun, and returns the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return dist.get_rank()


def tiny_llama() -> LlamaForCausalLM:
    """The same weights on every rank."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def batch(step: int = 0) -> torch.Tensor:
    """The same tokens on every rank."""
    return torch.randint(1, 256, (4, 16), generator=torch.Generator().manual_seed(step))


def shared_folder() -> str:
    """A folder that all ranks of this host know."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    return folder[0]


def greedy(model: torch.nn.Module) -> list:
    """Tokens that the model goes on with."""
    with torch.no_grad():
        made = model.generate(batch()[:, :4], attention_mask=torch.ones(4, 4, dtype=torch.long), max_new_tokens=8, do_sample=False)
    return made.tolist()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def engine() -> str:
    """Whose distributed tensors these are."""
    from torch.distributed.tensor import DTensor

    return type(DTensor).__module__.partition(".")[0]


def largest(pairs: list) -> float:
    """The largest difference, relative to the larger values."""
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item() for a, b in pairs)


assert "RANK" in os.environ, "run it with torchrun --nproc-per-node 2"
