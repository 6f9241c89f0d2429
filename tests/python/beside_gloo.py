"""What the tests of the backend share: values that name their rank, and a group over gloo to compare with."""

import torch
import torch.distributed as dist

Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int32, torch.int64)
OURS = (torch.bool, torch.int16, torch.complex64)  # gloo knows no reduction for these
SHAPES = ((3, 5), (1,), (), (0, 2), (300, 41))
OPS = {
    Op.SUM: lambda a, b: a | b if a.dtype == torch.bool else a + b,
    Op.PRODUCT: lambda a, b: a & b if a.dtype == torch.bool else a * b,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
    Op.BAND: torch.bitwise_and,
    Op.BOR: torch.bitwise_or,
    Op.BXOR: torch.bitwise_xor,
}
_gloo: list = []


def gloo():
    """A group of all ranks over gloo, for comparison."""
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def value(rank, shape, dtype, seed=0):
    """What a rank brings: small whole numbers, so that every order of adding gives the same."""
    numbers = torch.randint(1, 4, shape, generator=torch.Generator().manual_seed(100 * seed + rank))
    return (numbers > 1) if dtype == torch.bool else numbers.to(dtype)


def values(shape, dtype, seed=0):
    return [value(rank, shape, dtype, seed) for rank in range(dist.get_world_size())]


def reduced(op, tensors):
    if op == Op.AVG:
        return sum(tensors[1:], tensors[0]) / len(tensors)
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = OPS[op](result, tensor)
    return result


def same(left, right, **tolerance):
    torch.testing.assert_close(left, right, **(tolerance or {"rtol": 0, "atol": 0}))
