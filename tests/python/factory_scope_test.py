"""Functions of PyTorch that are written in Python and make tensors on their way: they work on distributed tensors as on plain ones."""

import unittest

import torch
import torch.nn.functional as F
from support import same
from torch import nn

from intarsia import Replicate, Shard, distribute_tensor
from four_ranks import Simulated

CUTS = (Shard(0), Shard(1), Replicate())
OPTIONS = {"norm": (2, 1), "normalize": (2, 1), "std": (1, True), "var": (1, True)}


class FromNothing(Simulated):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.x, self.mask = torch.randn(5, 6), torch.rand(5, 6) > 0.4

    def cut(self, tensor, placement=Shard(0)):
        return distribute_tensor(tensor, self.mesh, [placement])

    def test_masked_reductions_and_scans(self):
        names = [name for name in torch.masked.__all__ if getattr(torch.masked, name).__module__ == "torch.masked._ops"]
        self.assertGreater(len(names), 15)
        for name in set(names) - {"logaddexp"}:
            function, options = getattr(torch.masked, name), OPTIONS.get(name, (1,))
            for mask in (self.mask, None):
                expected = function(self.x, *options, mask=mask)
                for placement in CUTS:
                    got = function(self.cut(self.x, placement), *options, mask=None if mask is None else self.cut(mask, placement))
                    same(got, expected, equal_nan=True, msg=name)

    def test_masked_sums_of_exponentials(self):
        x, mask = self.cut(self.x), self.cut(self.mask)
        expected = torch.masked.logaddexp(self.x, self.x, input_mask=self.mask, other_mask=self.mask)
        same(torch.masked.logaddexp(x, x, input_mask=mask, other_mask=mask), expected)

    def test_places_in_a_shape(self):
        places = torch.tensor([0, 7, 29, 3, 11])
        for got, expected in zip(torch.unravel_index(self.cut(places), (5, 6)), torch.unravel_index(places, (5, 6)), strict=True):
            same(got, expected)

    def test_bags_of_one_size(self):
        rows, table = torch.tensor([[0, 3, 1], [4, 4, 2], [1, 0, 3], [2, 2, 2], [4, 0, 1]]), torch.randn(5, 6)
        for mode in ("sum", "mean", "max"):
            expected = F.embedding_bag(rows, table, mode=mode)
            for placement in CUTS:
                same(F.embedding_bag(self.cut(rows, placement), self.cut(table, Shard(1)), mode=mode), expected)

    def test_losses_that_are_computed_in_chunks(self):
        target, options = torch.tensor([0, 8, 3, 3, 5]), nn.LinearCrossEntropyOptions()
        x, weight = self.x.clone().requires_grad_(), torch.randn(9, 6).requires_grad_()
        expected = F.linear_cross_entropy(x, weight, target, options=options)
        expected.backward()
        for placement in CUTS:
            ours = [self.cut(t.detach(), p).requires_grad_() for t, p in ((x, Shard(0)), (weight, placement))]
            loss = F.linear_cross_entropy(*ours, self.cut(target), options=options)
            loss.backward()
            same(loss, expected)
            for mine, plain in zip(ours, (x, weight)):
                same(mine.grad, plain.grad)

    def test_eigenvalues_that_begin_at_random(self):
        matrix = self.x.T @ self.x
        torch.manual_seed(1)
        expected = torch.lobpcg(matrix, k=1)[0]
        torch.manual_seed(1)
        same(torch.lobpcg(self.cut(matrix), k=1)[0], expected, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
