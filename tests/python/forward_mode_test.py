"""Forward-mode derivatives and functorch's transforms over distributed tensors and wrapped models: right, or refused."""

import unittest
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.distributed.fsdp import MixedPrecisionPolicy

from intarsia import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.data_parallel import fully_shard, replicate

SERVED = {
    "exp": torch.exp,
    "sum": torch.sum,
    "square": lambda x: x * x,
    "softmax": lambda x: x.softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "view": lambda x: x.view(48),
    "cat": lambda x: torch.cat([x, x]),
    "gelu": F.gelu,
    "matmul of both": lambda x: x @ x.t(),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}
REFUSED = {  # what LibTorch says of a function that has no formula for it
    "linear": lambda x: F.linear(x, x),
    "redistribute": lambda x: x.redistribute(placements=[Replicate()]),
    "to_local": lambda x: x.to_local(),
    "full_tensor": lambda x: x.full_tensor(),
}


def with_tangent(function, x, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent)))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class ForwardMode(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        self.x, self.tangent = torch.randn(8, 6), torch.randn(8, 6)
        self.enterContext(simulate(2))
        self.mesh = init_device_mesh("cpu", (2,))

    def expect_same(self, got, expected, **tolerance):
        for ours, theirs in zip(got, expected):
            for value in [ours.full_tensor()] if isinstance(ours, DTensor) else ours._local_tensors.values() if hasattr(ours, "_local_tensors") else [ours]:
                torch.testing.assert_close(value, theirs, **tolerance)

    def test_has_the_numbers_of_plain_tensors(self):
        for name, function in SERVED.items():
            expected = with_tangent(function, self.x, self.tangent)
            transformed = torch.func.jvp(function, (self.x,), (self.tangent,))
            for place in (Shard(0), Shard(1), Replicate()):
                with self.subTest(name, place=place):
                    x, tangent = (distribute_tensor(value, self.mesh, [place]) for value in (self.x, self.tangent))
                    self.expect_same(with_tangent(function, x, tangent), expected)
                    self.expect_same(torch.func.jvp(function, (x,), (tangent,)), transformed)

    def test_takes_tangents_of_other_layouts(self):
        ones = DTensor.from_local(torch.ones(8, 6), self.mesh, [Partial()])
        x = distribute_tensor(self.x, self.mesh, [Shard(0)])
        for tangent, plain in ((distribute_tensor(self.tangent, self.mesh, [Shard(1)]), self.tangent), (ones, torch.full((8, 6), 2.0))):
            self.expect_same(with_tangent(lambda x: x * x, x, tangent), with_tangent(lambda x: x * x, self.x, plain))

    def test_is_refused_where_there_is_no_formula(self):
        x, tangent = (distribute_tensor(value, self.mesh, [Shard(0)]) for value in (self.x, self.tangent))
        for name, function in REFUSED.items():
            with self.subTest(name), self.assertRaisesRegex((RuntimeError, NotImplementedError), "jvp is not implemented"):
                with_tangent(function, x, tangent)
        with self.assertRaisesRegex(RuntimeError, "got mixed torch.Tensor and DTensor"):
            with_tangent(torch.exp, x, self.tangent)

    def test_goes_through_wrapped_models(self):
        expected = with_tangent(model(), self.x, self.tangent)
        for wrap in (replicate, fully_shard):
            for policy, tolerance in ((None, {}), (MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32), {"rtol": 0.05, "atol": 0.05})):
                options = {} if policy is None else {"mp_policy": policy}
                if wrap is replicate and policy is not None:
                    from intarsia._replicate_fsdp import replicate as wrap  # the one that has a policy
                wrapped = model()
                wrap(wrapped, mesh=self.mesh, **options) if wrap is not replicate else wrap(wrapped, device_mesh=self.mesh)
                self.expect_same(with_tangent(wrapped, self.x, self.tangent), expected, **tolerance)


if __name__ == "__main__":
    unittest.main()
