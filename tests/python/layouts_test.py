"""Results of the drop-in have the layouts of PyTorch's DTensor, and as much is sent."""

import subprocess
import sys
import unittest
import warnings

import torch
import torch.nn.functional as F

import intarsia

intarsia.install()

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.distributed.tensor.parallel import loss_parallel  # noqa: E402

# What PyTorch 2.13.0 does on a mesh of 4 ranks with tensors [8, 8] that are cut along dim 0: the results are whole after one gather.
GATHERED = {
    "softmax": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x.t(), (8,)),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(0)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "sort": lambda x: x.sort(0)[0],
    "median": lambda x: x.median(0)[0],
    "var": lambda x: x.var(0),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "narrow": lambda x: x.narrow(0, 1, 3),
    "split": lambda x: x.split(2)[1],
    "cat": lambda x: torch.cat([x, x]),
    "repeat": lambda x: x.repeat(2, 1),
    "diagonal": lambda x: x.diagonal(),
    "trace": lambda x: x.trace(),
    "pad": lambda x: F.pad(x, (0, 0, 1, 1)),
    "glu": lambda x: F.glu(x, 0),
}
# The same where dims stay cut: nothing has to be gathered.
KEPT = {
    "softmax": lambda x: F.softmax(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "narrow": lambda x: x.narrow(1, 1, 3),
    "relu": lambda x: x.relu(),
}


class Layouts(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(intarsia.simulate(4))
        self.mesh = init_device_mesh("cpu", (4,))
        torch.manual_seed(0)

    def cut(self, tensor, dim=0):
        return distribute_tensor(tensor, self.mesh, [Shard(dim)])

    def counts(self, function, *args):
        with CommDebugMode() as comms:
            result = function(*args)
        return result, {str(op).split(".")[-1]: count for op, count in comms.get_comm_counts().items() if count}

    def test_an_op_over_a_cut_dim_gathers_it_once(self):
        x = torch.randn(8, 8)
        for name, function in GATHERED.items():
            y, counts = self.counts(function, self.cut(x))
            self.assertEqual(y.placements, (Replicate(),), name)
            sent = {"all_gather_into_tensor": 2 if name == "cat" else 1}
            self.assertEqual(counts, sent, name)
            torch.testing.assert_close(y.full_tensor(), function(x), msg=name)

    def test_other_dims_stay_cut(self):
        x = torch.randn(8, 8)
        for name, function in KEPT.items():
            y, counts = self.counts(function, self.cut(x))
            self.assertEqual((y.placements, counts), ((Shard(0),), {}), name)

    def test_uneven_and_empty_shards_have_the_same_values(self):
        for rows in (1, 5, 7):
            x = torch.randn(rows, 8)
            for name, function in (GATHERED | KEPT).items():
                if name in ("layer_norm", "glu", "split", "narrow") and function is GATHERED.get(name):
                    continue
                torch.testing.assert_close(function(self.cut(x)).full_tensor(), function(x), equal_nan=True, msg=name)

    def test_gradients_are_those_of_the_plain_op(self):
        x = torch.randn(8, 8)
        for name, function in (GATHERED | KEPT).items():
            plain, cut = x.clone().requires_grad_(), self.cut(x).requires_grad_()
            for tensor in (plain, cut):
                function(tensor).pow(2).sum().backward()
            torch.testing.assert_close(cut.grad.full_tensor(), plain.grad, msg=name)

    def test_a_product_gathers_rather_than_cutting_another_dim(self):
        a, b = torch.randn(8, 8), torch.randn(8, 8)
        for dim in (0, 1):
            y, counts = self.counts(torch.mm, self.cut(a, dim), self.cut(b, dim))
            self.assertEqual((y.placements, counts), ((Shard(dim),), {"all_gather_into_tensor": 1}))
            torch.testing.assert_close(y.full_tensor(), a @ b)

    def test_a_quarter_turn_keeps_the_dim_that_it_does_not_flip_cut(self):
        x = torch.randn(5, 6)
        for turns, dim in ((1, 0), (3, 1), (-1, 1)):
            y, counts = self.counts(torch.rot90, self.cut(x, dim), turns)
            self.assertEqual((y.placements, counts), ((Shard(1 - dim),), {}), turns)
            torch.testing.assert_close(y.full_tensor(), x.rot90(turns))

    def test_solutions_for_a_pending_side_are_pending(self):
        sides, matrix = torch.randn(3, 2), torch.randn(3, 3)
        factors = torch.linalg.cholesky(matrix @ matrix.t() + torch.eye(3))
        pending = DTensor.from_local(sides / 4, self.mesh, [Partial()])
        y, counts = self.counts(torch.cholesky_solve, pending, distribute_tensor(factors, self.mesh, [Replicate()]))
        self.assertEqual((y.placements, counts), ((Partial(),), {}))
        torch.testing.assert_close(y.full_tensor(), torch.cholesky_solve(sides, factors))

    def test_loss_parallel_keeps_the_classes_cut(self):
        x, target = torch.randn(6, 8), torch.randint(0, 8, (6,))
        with loss_parallel():
            logits = self.cut(x, 1).requires_grad_()
            loss, counts = self.counts(F.cross_entropy, logits, target)
            loss.backward()
        self.assertNotIn("all_gather_into_tensor", counts)
        torch.testing.assert_close(loss.full_tensor(), F.cross_entropy(x, target))
        self.assertEqual(logits.grad.placements, (Shard(1),))

    def test_our_layouts_are_a_choice(self):
        program = (
            "import torch, intarsia; intarsia.install(layouts='intarsia')\n"
            "from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh\n"
            "with intarsia.simulate(4):\n"
            "    x = distribute_tensor(torch.ones(8), init_device_mesh('cpu', (4,)), [Shard(0)])\n"
            "    print(x.softmax(0).placements)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(done.stdout, "(Shard(dim=0),)\n", done.stderr)
        with self.assertRaisesRegex(ValueError, "layouts are 'pytorch' or 'intarsia'"):
            intarsia.install(layouts="other")


if __name__ == "__main__":
    unittest.main()
