"""replicate and fully_shard: data parallelism on the C++ engine, under PyTorch's names."""

from ._fsdp_module import FSDPModule, UnshardHandle, share_comm_ctx
from ._fully_shard import fully_shard, register_fsdp_forward_method
from ._replicate import ReplicatedModule, replicate
from ._replicate_fsdp import ReplicateModule
from ._replicate_fsdp import replicate as replicate_with_fsdp
from ._sync_batchnorm import convert_sync_batchnorm

__all__ = [
    "FSDPModule",
    "ReplicateModule",
    "ReplicatedModule",
    "UnshardHandle",
    "convert_sync_batchnorm",
    "fully_shard",
    "register_fsdp_forward_method",
    "replicate",
    "replicate_with_fsdp",
    "share_comm_ctx",
]
