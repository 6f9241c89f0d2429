"""register_sharding: of ops that are made of others, with arguments that are no numbers, and under the drop-in as with PyTorch's DTensor."""

import unittest

import torch

from intarsia import Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.debug import CommDebugMode
from intarsia.experimental import register_sharding, strict_rules

LIBRARY = torch.library.Library("registered", "DEF")
LIBRARY.define("composite(Tensor x, float a) -> Tensor")
LIBRARY.impl("composite", lambda x, a: x.exp() * a, "CompositeImplicitAutograd")
LIBRARY.define("kernel(Tensor x, *, ScalarType? dtype=None, Layout? layout=None, MemoryFormat? format=None) -> Tensor")
LIBRARY.impl("kernel", lambda x, **options: x.to(options["dtype"] or x.dtype), "CPU")
LIBRARY.impl("kernel", lambda x, **options: torch.empty_like(x, dtype=options["dtype"] or x.dtype), "Meta")


class ARegisteredRule(unittest.TestCase):
    def setUp(self):
        self.enterContext(simulate(2))
        self.mesh = init_device_mesh("cpu", (2,))
        self.seen = []

    def rows(self, x, *args, **options):
        self.seen.append((args, options))
        return [([Shard(0)], [Shard(0), *(None for _ in args)]), ([Replicate()], [Replicate(), *(None for _ in args)])]

    def ramp(self):
        return torch.linspace(0, 1, 12).view(4, 3)

    def test_leaves_an_op_that_is_made_of_others_its_gradient(self):
        register_sharding(torch.ops.registered.composite.default)(self.rows)
        x = distribute_tensor(self.ramp(), self.mesh, [Shard(1)]).requires_grad_()
        torch.ops.registered.composite(x, 2.0).sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), self.ramp().exp() * 2)
        with torch.inference_mode(), CommDebugMode() as comms:
            y = torch.ops.registered.composite(x, 2.0)
        self.assertEqual((y.placements, comms.get_total_counts()), ((Shard(0),), 1))
        torch.testing.assert_close(y.full_tensor(), self.ramp().exp() * 2)
        self.assertEqual(self.seen[-1], ((2.0,), {}))

    def test_gets_dtypes_layouts_and_memory_formats_as_objects(self):
        register_sharding(torch.ops.registered.kernel.default)(self.rows)
        x = distribute_tensor(self.ramp(), self.mesh, [Shard(0)])
        options = {"dtype": torch.float64, "layout": torch.strided, "format": torch.contiguous_format}
        with strict_rules():
            self.assertEqual(torch.ops.registered.kernel(x, **options).dtype, torch.float64)
        self.assertEqual(self.seen, [((), options)])


if __name__ == "__main__":
    unittest.main()
