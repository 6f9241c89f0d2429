"""Random numbers of one device, and models that are distributed from birth, from Python."""

import unittest
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from intarsia import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.experimental import BornSharded, random_scope


def make():
    return nn.Sequential(nn.Linear(36, 130), nn.Dropout(0.3), nn.Linear(130, 36), nn.LayerNorm(36))


class Random(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(simulate(4))
        self.mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

    def expect_equal(self, model, plain):
        made = dict(plain.named_parameters())
        for name, parameter in model.named_parameters():
            self.assertIsInstance(parameter, DTensor)
            self.assertTrue(torch.equal(parameter.full_tensor(), made[name]), name)

    def test_a_model_born_sharded_has_the_numbers_of_one_made_plainly(self):
        torch.manual_seed(3)
        plain = make()
        after = torch.get_rng_state()
        torch.manual_seed(3)
        with BornSharded(self.mesh):
            model = make()
        self.assertTrue(torch.equal(torch.get_rng_state(), after))
        self.expect_equal(model, plain)
        self.assertEqual(str(model[0].weight.placements), str((Shard(0),)))
        self.assertNotIsInstance(torch.zeros(4), DTensor)

    def test_a_plan_of_names_lays_out_each_parameter(self):
        torch.manual_seed(3)
        plain = make()
        torch.manual_seed(3)
        with BornSharded(self.mesh, lambda name, shape: [Shard(1) if len(shape) == 2 else Replicate()]) as scope:
            model = make()
        scope.finish(model)
        self.expect_equal(model, plain)
        self.assertEqual(model[2].weight.placements, (Shard(1),))
        self.assertEqual(model[2].bias.placements, (Replicate(),))

    def test_a_meta_model_is_distributed_made_empty_and_initialized(self):
        torch.manual_seed(3)
        plain = make()
        torch.manual_seed(3)
        with torch.device("meta"):
            model = make()
        for module in model:
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(distribute_tensor(parameter, self.mesh, [Shard(0)])))
        model.to_empty(device="cpu")
        for module in model:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        self.expect_equal(model, plain)

    def test_a_recomputed_segment_draws_the_same_mask(self):
        x = torch.linspace(-1, 1, 70 * 36).view(70, 36)
        for use_reentrant in (False, True):
            results = []
            for again in (False, True):
                with random_scope(self.mesh):
                    dx = distribute_tensor(x, self.mesh, [Shard(0)]).requires_grad_()
                    dropped = nn.Dropout(0.3)
                    torch.manual_seed(5)
                    y = checkpoint(lambda t: dropped(t) * t, dx, use_reentrant=use_reentrant) if again else dropped(dx) * dx
                    y.sum().backward()
                    results.append((y.full_tensor(), dx.grad.full_tensor()))
            self.assertTrue(torch.equal(results[0][0], results[1][0]))
            self.assertTrue(torch.equal(results[0][1], results[1][1]))


if __name__ == "__main__":
    unittest.main()
