"""replicate and fully_shard: data parallelism on the C++ engine, under PyTorch's names."""

from ._fully_shard import FSDPModule, UnshardHandle, fully_shard, register_fsdp_forward_method
from ._replicate import ReplicatedModule, replicate

__all__ = ["FSDPModule", "ReplicatedModule", "UnshardHandle", "fully_shard", "register_fsdp_forward_method", "replicate"]
