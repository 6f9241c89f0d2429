"""A custom op gets a sharding rule.

    PYTHONPATH=build/python python examples/python/3_a_rule_of_your_own.py

prints:
    without a rule: the op got the distributed tensor itself
    with a rule:    the op got shards of 2 rows; the result is (Shard(dim=0),)
"""

import sys

import torch

from intarsia import DTensor, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.experimental import register_sharding


seen: list = []


def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
    """x * sigmoid(beta * x), as a library of yours might have it."""
    seen.append(x)
    return x * torch.sigmoid(x * beta)


unruled = torch.library.custom_op("mylib::unruled", swish, mutates_args=())
ruled = torch.library.custom_op("mylib::swish", swish, mutates_args=())
for op in (unruled, ruled):
    op.register_fake(lambda x, beta: torch.empty_like(x))


@register_sharding(torch.ops.mylib.swish.default)
def split_swish(x, beta):
    """Elementwise, so every dim may be cut: lists of (placements of the results, placements of the arguments)."""
    return [([Shard(dim)], [Shard(dim), None]) for dim in range(x.ndim)]


def main():
    with simulate(4):
        plain = torch.randn(8, 3)
        x = distribute_tensor(plain, init_device_mesh("cpu", (4,)), [Shard(0)])
        unruled(x, 2.0)
        print("without a rule: the op got", "the distributed tensor itself" if isinstance(seen[0], DTensor) else "shards")
        y = ruled(x, 2.0)
        print(f"with a rule:    the op got shards of {len(seen[-1])} rows; the result is {y.placements}")
        return 0 if torch.allclose(y.full_tensor(), swish(plain, 2.0)) and not isinstance(seen[1], DTensor) else 1


if __name__ == "__main__":
    sys.exit(main())
