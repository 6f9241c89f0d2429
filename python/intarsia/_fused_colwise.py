"""A Linear that computes several projections at once, such as q, k and v."""

from typing import Any

from torch import nn

from .parallel import ColwiseParallel, Placement


class FusedColwiseParallel(ColwiseParallel):
    """``ColwiseParallel`` of a Linear whose output features are ``fused`` blocks: each block is cut over the ranks.

    ``qkv(x).chunk(3, -1)`` of a local output is then this rank's part of q, of k and of v. Under ``ColwiseParallel``, it is parts that
    do not belong together.
    """

    def __init__(self, fused: int, *, input_layouts: "Placement | None" = None, use_local_output: bool = True) -> None:
        from torch.distributed.tensor.placement_types import _StridedShard

        if not isinstance(fused, int) or fused < 2:
            raise ValueError(f"[FusedColwiseParallel] fused is {fused!r}. Give the number of blocks, 3 for q, k and v.")
        super().__init__(input_layouts=input_layouts, use_local_output=use_local_output)
        self.fused = fused
        block = _StridedShard(0, split_factor=fused)
        self._cuts = {nn.Linear: {"weight": block, "bias": block}}
        self.output_layouts = (None,)  # type: ignore[assignment]  # as the product lies

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        if not isinstance(module, nn.Linear):
            raise NotImplementedError(f"[FusedColwiseParallel] is for nn.Linear, but got a {type(module).__name__}.")
        if module.out_features % (self.fused * device_mesh.size()):
            raise ValueError(
                f"[FusedColwiseParallel] the Linear has {module.out_features} output features in {self.fused} blocks, which "
                f"{device_mesh.size()} ranks do not divide. Use a Linear for each block."
            )
        return super()._apply(module, device_mesh)
