"""Batch norms that use the statistics of the rows of all ranks."""

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.placement_types import Partial, Replicate

from . import _core
from ._tensor import DTensor

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convert_sync_batchnorm(module: nn.Module, mesh: Any) -> int:
    """All BatchNorm1d, 2d and 3d in a model use mean and variance of the rows of all ranks of the mesh, which has one axis; in place.

    Outputs, gradients and running statistics are those of one device with all rows, of which ranks may have different numbers. Call it
    before or after fully_shard or replicate. Returns the number of norms.
    """
    if mesh.ndim != 1:
        raise ValueError(f"[convert_sync_batchnorm] expects a mesh of one axis, not {mesh}. Take a slice of it by name, or flatten it.")
    norms = [one for one in module.modules() if isinstance(one, _NORMS)]
    for norm in norms:
        norm._synced_over = mesh
        if not isinstance(norm, _Synced):
            norm.__class__ = _synced(type(norm))  # type: ignore[arg-type]
    return len(norms)


class _Synced:
    """What such a norm does in training; in evaluation it is the norm that it was."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        in_training = self.training or self.running_mean is None
        if not in_training or self._synced_over.size() == 1 or _core.is_dtensor(x):
            return super().forward(x)  # type: ignore[misc]
        self._check_input_dim(x)
        kind = x.dtype
        values = x.movedim(1, -1)
        values = values.float() if kind in (torch.half, torch.bfloat16) else values
        rows, channels = tuple(range(values.ndim - 1)), values.shape[-1]
        count = torch.ones_like(values.detach().select(-1, 0)).sum().view(1)
        sums = _summed(torch.cat([values.sum(rows), count]), self._synced_over)
        total = sums.narrow(0, channels, 1).detach()
        mean = sums.narrow(0, 0, channels) / total
        centered = values - mean
        variance = _summed(centered.square().sum(rows), self._synced_over) / total
        if self.training and self.track_running_stats:
            self._move_statistics(mean, variance * total / (total - 1).clamp_min(1))
        result = centered * torch.rsqrt(variance + self.eps)
        if self.affine:
            result = result * self.weight + self.bias
        return result.to(kind).movedim(-1, 1)

    @torch.no_grad()
    def _move_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - momentum).add_(now.to(running.dtype) * momentum)


def _summed(local: torch.Tensor, mesh: Any) -> torch.Tensor:
    """The sum over the ranks. Each of them uses it in a loss of its own, so the gradients of all are summed, too."""
    whole = DTensor.from_local(local, mesh, [Partial()]).redistribute(mesh, [Replicate()])
    return whole.to_local(grad_placements=[Partial()])


@functools.cache
def _synced(cls: type) -> type:
    return type(f"Synced{cls.__name__}", (_Synced, cls), {})
