"""Random numbers of one device, and models that are distributed from birth, from Python."""

import unittest
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import intarsia
from intarsia import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.data_parallel import fully_shard
from intarsia.experimental import BornSharded, agree_on_generator, local_random_scope, random_scope, set_generators
from intarsia.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module
from support import run_ranks


def make():
    return nn.Sequential(nn.Linear(36, 130), nn.Dropout(0.3), nn.Linear(130, 36), nn.LayerNorm(36))


class Counted(nn.Module):
    """Linears, a buffer that a factory makes, and one that is plain."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(36, 130), nn.Linear(130, 36), nn.LayerNorm(36)
        self.register_buffer("scale", torch.full((36,), 0.5))
        self.register_buffer("offset", torch.tensor([1.0, 2.0]))

    def forward(self, x):
        return self.norm(self.down(torch.relu(self.up(x))) * self.scale) + self.offset.sum()


class Tables(ParallelStyle):
    """A style of one's own, for buffers."""

    def _apply(self, module, device_mesh):
        module.register_buffer("scale", distribute_tensor(module.scale, device_mesh, [Replicate()]))
        return module


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
LARGER_PLAN = {
    "": Tables(),
    "up": ColwiseParallel(use_local_output=False),
    "down": RowwiseParallel(use_local_output=False),
    "norm": SequenceParallel(),
}


def outcome(model, x):
    """What a step of training gives: the output, and the gradients of all parameters."""
    y = model(x)
    y.pow(2).sum().backward()
    whole = lambda t: t.full_tensor() if isinstance(t, DTensor) else t
    return [whole(y), *(whole(parameter.grad) for parameter in model.parameters())]


def born_by_styles_is_parallelized(mesh, plan=PLAN):
    x = torch.linspace(-1, 1, 5 * 36).view(5, 36)
    torch.manual_seed(3)
    made = parallelize_module(Counted(), mesh, plan)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    with BornSharded(mesh, plan) as scope:
        model = Counted()
    assert torch.equal(torch.get_rng_state(), after)
    assert scope.finish(model) is model
    for (name, ours), theirs in zip(model.state_dict().items(), made.state_dict().values()):
        assert isinstance(ours, DTensor) == isinstance(theirs, DTensor), name
        assert not isinstance(ours, DTensor) or ours.placements == theirs.placements, name
    for ours, theirs in zip(outcome(model, x), outcome(made, x)):
        assert torch.equal(ours, theirs)


def born_for_fully_shard_trains_as_made(mesh):
    def trained(born):
        torch.manual_seed(3)
        if born:
            with BornSharded(mesh):
                model = Counted()
        else:
            model = Counted()
        for part in (model.up, model.down, model):
            fully_shard(part, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 5 * 36).view(5, 36)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
        return [parameter.full_tensor().detach() for parameter in model.parameters()]

    for ours, theirs in zip(trained(True), trained(False)):
        assert torch.equal(ours, theirs)


def unseeded_ranks_draw_the_same():
    """To be called first: nobody has seeded these processes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.rand(dist.get_rank() + 1)  # on each rank for itself
    drawn = intarsia.randn(70, 60, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    whole = [torch.empty_like(drawn) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, drawn)
    assert all(torch.equal(each, drawn) for each in whole)
    torch.rand(dist.get_rank() + 1)  # now the generators are known, and differ
    named_in_error(lambda: torch.rand_like(distribute_tensor(torch.ones(5), mesh, [Shard(0)])))


def named_in_error(draw):
    others = list(range(1, dist.get_world_size()))
    try:
        draw()
    except ValueError as error:
        assert f"the generators of the ranks {others} are in another state than that of rank 0" in str(error), error
    else:
        raise AssertionError("no error")


def other_seeds_are_named_or_followed():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(70, 60), mesh, [Shard(0)])
    expected = torch.rand(70, 60, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(dist.get_rank())
    named_in_error(lambda: torch.rand_like(x))
    named_in_error(lambda: random_scope(mesh).__enter__())
    agree_on_generator(mesh)
    assert torch.equal(torch.rand_like(x).full_tensor(), expected)
    torch.manual_seed(dist.get_rank())
    set_generators("follow")
    assert torch.equal(torch.rand_like(x).full_tensor(), expected)
    set_generators("compare")
    with random_scope(mesh) as scope:
        torch.manual_seed(0)
        scope.agree()
        assert torch.equal(torch.rand_like(x).full_tensor(), expected)


def local_tensors_draw_their_part(size=None):
    mesh = init_device_mesh("cpu", (size or dist.get_world_size(),))
    x = torch.ones(24, 3)
    torch.manual_seed(4)
    expected = [nn.functional.dropout(x, 0.5), torch.rand(24, 3)]
    torch.manual_seed(4)
    local = distribute_tensor(x, mesh, [Shard(0)]).to_local()
    with local_random_scope(mesh):
        drawn = [nn.functional.dropout(local, 0.5), torch.rand_like(local)]
    for one, whole in zip(drawn, expected):
        assert torch.equal(DTensor.from_local(one, mesh, [Shard(0)]).full_tensor(), whole)


def the_drop_in_follows_the_first_rank():
    intarsia.install()
    from torch.distributed.tensor import rand

    torch.manual_seed(dist.get_rank())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    drawn = rand(70, 60, device_mesh=mesh, placements=[Shard(0)])
    assert torch.equal(drawn.full_tensor(), torch.rand(70, 60, generator=torch.Generator().manual_seed(0)))
    intarsia.uninstall()
    torch.manual_seed(dist.get_rank())
    named_in_error(lambda: torch.rand_like(drawn))
    torch.manual_seed(0)


def models_are_born_on_processes():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    born_by_styles_is_parallelized(mesh)
    born_by_styles_is_parallelized(mesh, LARGER_PLAN)
    born_for_fully_shard_trains_as_made(mesh)


class Processes(unittest.TestCase):
    def test_two_and_four(self):
        functions = [
            unseeded_ranks_draw_the_same,
            other_seeds_are_named_or_followed,
            local_tensors_draw_their_part,
            the_drop_in_follows_the_first_rank,
            models_are_born_on_processes,
        ]
        for size in (2, 4):
            run_ranks(size, functions)


class Random(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(simulate(4))
        self.mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

    def test_local_tensors_draw_their_part(self):
        local_tensors_draw_their_part(4)

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

    def test_a_plan_of_styles_gives_the_model_that_parallelize_module_gives(self):
        born_by_styles_is_parallelized(self.mesh)
        born_by_styles_is_parallelized(self.mesh, LARGER_PLAN)

    def test_a_single_style_is_a_plan(self):
        torch.manual_seed(3)
        plain = nn.Linear(36, 130)
        torch.manual_seed(3)
        with BornSharded(self.mesh, ColwiseParallel()) as scope:
            model = nn.Linear(36, 130)
        scope.finish(model)
        self.expect_equal(model, plain)
        self.assertEqual(model.weight.placements, (Shard(0),))

    def test_fully_shard_takes_over_what_is_born_sharded(self):
        born_for_fully_shard_trains_as_made(self.mesh)

    def test_a_plan_of_names_lays_out_plain_buffers_too(self):
        with BornSharded(self.mesh, lambda name, shape: [Replicate()]) as scope:
            model = Counted()
        scope.finish(model)
        self.assertEqual(model.offset.full_tensor().tolist(), [1.0, 2.0])
        self.assertEqual(model.scale.placements, (Replicate(),))

    def test_a_plan_of_another_kind_is_an_error(self):
        with self.assertRaisesRegex(TypeError, r"\[BornSharded\] the plan is a list\. Give a function"):
            BornSharded(self.mesh, [Shard(0)])
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with self.assertRaisesRegex(ValueError, r"\[BornSharded\] .* has 2 axes, and styles are for one"):
            BornSharded(grid, PLAN)

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
