"""Libraries that train a Llama of Hugging Face on several ranks, each beside one process; `clients.py name ...` runs some of them.

Run: python -m intarsia -m torch.distributed.run --nproc-per-node 2 clients.py
"""

import sys
import traceback
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist

from tiny_llama import batch, engine, join, say, shared_folder, tiny_llama

STEPS = 4


def rows() -> slice:
    """This rank's part of a batch."""
    count = 4 // dist.get_world_size()
    return slice(dist.get_rank() * count, (dist.get_rank() + 1) * count)


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, mine: slice, backward: Callable, clip: Callable) -> torch.Tensor:
    losses = []
    for step in range(STEPS):
        tokens = batch(step)[mine]
        loss = model(input_ids=tokens, labels=tokens).loss
        backward(loss)
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def one_process(model: torch.nn.Module) -> torch.Tensor:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    return steps(model, optimizer, slice(None), torch.Tensor.backward, torch.nn.utils.clip_grad_norm_)


def mean(losses: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(losses)
    return losses / dist.get_world_size()


def accelerate_fsdp2() -> tuple:
    """accelerate's plugin for fully_shard. On CPUs accelerate leaves the plugin aside without a word, unless the state names it."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )
    accelerator, model = Accelerator(cpu=True, fsdp_plugin=plugin), tiny_llama()
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = steps(model, optimizer, rows(), accelerator.backward, accelerator.clip_grad_norm_)
    return model, mean(losses), one_process(tiny_llama())


def accelerate_ddp() -> tuple:
    """accelerate with DistributedDataParallel."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), tiny_llama()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = steps(model, optimizer, rows(), accelerator.backward, accelerator.clip_grad_norm_)
    return model, mean(losses), one_process(tiny_llama())


def trainer() -> tuple:
    """transformers' Trainer, with DistributedDataParallel."""
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": row, "labels": row} for step in range(STEPS) for row in batch(step)]
    arguments = TrainingArguments(
        output_dir=shared_folder(), max_steps=STEPS, per_device_train_batch_size=4 // dist.get_world_size(), learning_rate=1e-3,
        lr_scheduler_type="constant", logging_steps=1, max_grad_norm=1.0, use_cpu=True, report_to=[], disable_tqdm=True, seed=0,
        data_seed=0, train_sampling_strategy="sequential", weight_decay=0.01,
    )
    made = Trainer(model=tiny_llama(), args=arguments, train_dataset=data)
    made.train()
    losses = torch.tensor([entry["loss"] for entry in made.state.log_history if "loss" in entry])
    return made.model_wrapped, losses, one_process(tiny_llama())


def lora() -> torch.nn.Module:
    from peft import LoraConfig, get_peft_model

    model = tiny_llama()
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, init_lora_weights=True))


def peft_fully_shard() -> tuple:
    """PEFT's LoRA under fully_shard."""
    from torch.distributed.fsdp import fully_shard

    model = lora()
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = steps(model, optimizer, rows(), torch.Tensor.backward, torch.nn.utils.clip_grad_norm_)
    return model, mean(losses), one_process(lora())


def fabric_fsdp2() -> tuple:
    """Lightning Fabric's ModelParallelStrategy with fully_shard."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    def shard(model: torch.nn.Module, mesh: object) -> torch.nn.Module:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["data_parallel"])
        return fully_shard(model, mesh=mesh["data_parallel"])

    strategy = ModelParallelStrategy(parallelize_fn=shard, data_parallel_size=dist.get_world_size(), tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=strategy)
    fabric.launch()
    model = fabric.setup_module(tiny_llama())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = steps(model, optimizer, rows(), fabric.backward, torch.nn.utils.clip_grad_norm_)
    return model, mean(losses), one_process(tiny_llama())


def fabric_ddp() -> tuple:
    """Lightning Fabric with DistributedDataParallel."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    model = tiny_llama()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = steps(model, optimizer, rows(), fabric.backward, torch.nn.utils.clip_grad_norm_)
    return model, mean(losses), one_process(tiny_llama())


SHARDED = [accelerate_fsdp2, peft_fully_shard, fabric_fsdp2]
CLIENTS = [accelerate_ddp, trainer, fabric_ddp, *SHARDED]


def is_sharded(model: torch.nn.Module) -> bool:
    from torch.distributed.tensor import DTensor

    return all(isinstance(value, DTensor) for value in model.state_dict().values())


def main() -> None:
    warnings.simplefilter("ignore")
    join()
    say(f"engine of the tensors: {engine()}")
    failed = 0
    for client in [client for client in CLIENTS if not sys.argv[1:] or client.__name__ in sys.argv[1:]]:
        try:
            model, losses, expected = client()
            difference = (losses - expected).abs().max().item()
            is_right = difference < 1e-4 and is_sharded(model) == (client in SHARDED)
            failed += not is_right
            say(f"{client.__name__}: {'works' if is_right else 'is wrong'}, losses differ from one process by {difference:.0e}")
        except Exception as error:
            failed += 1
            say("".join(traceback.format_tb(error.__traceback__)[-3:]))
            say(f"{client.__name__}: fails: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    dist.destroy_process_group()
    sys.exit(failed)


main()
