"""replicate and fully_shard: training gives the numbers of one process, simulated and on real ranks."""

import copy
import unittest
import warnings

import torch
import torch.distributed as dist
from support import raises, run_ranks
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint
from training import data, line, mine, net, plain, same_parameters, shard_blocks
from training import tensor_parallel_trains_as_one, train, trains_as_one, whole, world_size

import intarsia
from intarsia import DTensor, Shard, distribute_tensor, fully_shard, init_device_mesh, replicate, simulate
from intarsia.data_parallel import FSDPModule, ReplicatedModule, register_fsdp_forward_method

# --- each runs in a simulation and on real ranks


def replicated_models_train_as_one() -> None:
    trains_as_one(lambda model: replicate(model, device_mesh=line()))
    trains_as_one(lambda model: replicate(model, bucket_cap_mb=1e-4, gradient_as_bucket_view=True))
    trains_as_one(lambda model: [replicate(part) for part in (model[0], model[2], model[3])])
    trains_as_one(lambda model: replicate(model, static_graph=True, find_unused_parameters=True))


def sharded_models_train_as_one() -> None:
    trains_as_one(shard_blocks)
    trains_as_one(lambda model: fully_shard(model, mesh=line()))
    trains_as_one(lambda model: shard_blocks(model, reshard_after_forward=False))
    trains_as_one(lambda model: shard_blocks(model, shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.ndim else None))
    trains_as_one(lambda model: fully_shard([model[0], model[2], model[3]], mesh=line()))
    trains_as_one(lambda model: [fully_shard(model[0], mesh=line()), replicate(model)])


def named_prefetches_change_no_number() -> None:
    def prepare(model: nn.Module) -> None:
        shard_blocks(model)
        model.set_modules_to_forward_prefetch([model[0], model[2]])
        model[2].set_modules_to_backward_prefetch([model[0]])

    trains_as_one(prepare)


def recomputed_blocks_train_as_one() -> None:
    def prepare(model: nn.Module) -> None:
        shard_blocks(model)
        for block in (model[0], model[2]):
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)

    trains_as_one(prepare)


def hooks_see_the_reduced_gradient() -> None:
    expected = net()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    x, y = data()
    for _ in range(3):
        nn.functional.mse_loss(expected(x), y).backward()
        expected[3].weight.grad.mul_(2)
        optimizer.step()
        optimizer.zero_grad()
    for prepare in (shard_blocks, lambda model: replicate(model)):
        model = net()
        prepare(model)
        doubled = isinstance(model, FSDPModule)
        if doubled:  # on a replicated leaf such a hook sees the rank's own gradient, as in PyTorch
            model[3].weight.register_hook(lambda grad: grad * 2)
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters() if p.requires_grad}

        def step(parameter: torch.Tensor) -> None:
            if not doubled and parameter is model[3].weight:
                parameter.grad.mul_(2)
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        same_parameters(model, expected)


def accumulation_reduces_the_sum() -> None:
    x, y = data()
    for prepare in (shard_blocks, lambda model: replicate(model)):
        model, expected = net(), net()
        prepare(model)
        for half in (slice(0, 12), slice(12, 24)):
            nn.functional.mse_loss(expected(x[half]), y[half]).backward()
        model.set_requires_gradient_sync(False)
        nn.functional.mse_loss(model(mine(x[:12])), mine(y[:12])).backward()
        model.set_requires_gradient_sync(True)
        nn.functional.mse_loss(model(mine(x[12:])), mine(y[12:])).backward()
        for ours, theirs in zip(model.parameters(), expected.parameters()):
            if theirs.grad is not None:
                grad = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
                torch.testing.assert_close(grad, theirs.grad, rtol=1e-12, atol=1e-12)


def state_dicts_go_through_the_whole() -> None:
    model, expected = net(), plain()
    shard_blocks(model)
    model(mine(data()[0]))  # the outermost group is whole now
    state = model.state_dict()
    assert list(state) == list(expected.state_dict()) and all(isinstance(value, DTensor) for value in state.values())
    for name, value in expected.state_dict().items():
        state[name].copy_(distribute_tensor(value, line(), state[name].placements))
    same_parameters(model, expected)
    model.load_state_dict({name: value.clone() for name, value in state.items()})
    same_parameters(model, expected)


def handles_gather_and_free() -> None:
    model = net()
    shard_blocks(model)
    weight = model[0].up.weight
    assert isinstance(weight, DTensor) and weight.placements == (Shard(0),)
    handle = model[0].unshard(async_op=True)
    handle.wait()
    assert not isinstance(weight, DTensor) and weight.shape == (7, 5)
    model[0].reshard()
    assert isinstance(weight, DTensor) and model[0].up.weight is weight
    assert isinstance(model, FSDPModule) and isinstance(model, nn.Sequential) and type(model).__name__ == "FSDPSequential"
    assert type(model[:2]) is nn.Sequential
    assert type(replicate(net())).__name__ == "DDPSequential"


def a_parameter_is_its_shards_after_an_evaluation() -> None:
    x, _ = data()
    for prepare in (shard_blocks, lambda model: fully_shard(model, mesh=line())):
        model, expected = net(), net()
        prepare(model)
        for value in (0.5, 0.25):
            with torch.no_grad():
                model(mine(x))
                for name, parameter in model.named_parameters():
                    assert isinstance(parameter, DTensor) and isinstance(parameter.data, DTensor), name
                    parameter.to_local().fill_(value)
                    expected.get_parameter(name).fill_(value)
                out = distributed(model(mine(x)))
            torch.testing.assert_close(out.full_tensor(), expected(x).detach())
            same_parameters(model, expected)


def state_of_optimizers_from_before_moves() -> None:
    x, y = data()
    for foreach in (False, True):
        model, expected = net(), net()
        own, goal = (torch.optim.AdamW(one.parameters(), 1e-2, foreach=foreach) for one in (model, expected))
        for one, optimizer in ((model, own), (expected, goal)):
            nn.functional.mse_loss(one(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        fully_shard(model, mesh=line())
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        nn.functional.mse_loss(expected(x), y).backward()
        own.step()
        goal.step()
        same_parameters(model, expected)


def distributed(rows: torch.Tensor) -> DTensor:
    return DTensor.from_local(rows, line(), [Shard(0)])


def other_methods_gather_too() -> None:
    model, x = net()[0], data()[0]
    expected = model.down(x @ model.down.weight).detach()
    model.twice = lambda value: model.down(value @ model.down.weight)
    fully_shard(model, mesh=line())
    register_fsdp_forward_method(model, "twice")
    with torch.no_grad():
        result = model.twice(x)
    torch.testing.assert_close(result, expected)
    assert model.down.weight.shape == (5, 7)


def mixed_precision_is_that_of_casts() -> None:
    x, y = (t.float() for t in data())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    expected = copy.deepcopy(model).to(torch.bfloat16)
    fully_shard(model, mesh=line(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32))
    out = model(mine(x))
    torch.testing.assert_close(whole(out), expected(x.to(torch.bfloat16)).float())
    nn.functional.mse_loss(out, mine(y)).backward()
    assert model[0].weight.grad.dtype is torch.float32


def communication_hooks_replace_the_average() -> None:
    model, expected = net(), net()
    replicate(model)
    seen = []

    def half(state, bucket):
        seen.append(bucket.index())
        future = torch.futures.Future()
        values = DTensor.from_local(bucket.buffer(), line(), [intarsia.Partial()])
        future.set_result(values.redistribute(placements=[intarsia.Replicate()]).to_local() / (2 * world_size()))
        return future

    model.register_comm_hook(None, half)
    x, y = data()
    nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
    nn.functional.mse_loss(expected(x), y).backward()
    assert seen
    torch.testing.assert_close(model[3].weight.grad, expected[3].weight.grad / 2, rtol=1e-12, atol=1e-12)


def models_on_meta_train_as_one() -> None:
    class Layers(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(5, 7, dtype=torch.double), nn.Tanh(), nn.Linear(7, 3, dtype=torch.double))

    with torch.device("meta"):
        model = Layers()
    fully_shard(model[0], mesh=line())
    fully_shard(model, mesh=line())
    assert isinstance(model[0].weight, DTensor) and model[2].weight.is_meta
    try:
        model(mine(data()[0]))
    except RuntimeError as error:
        assert "still on meta device: ['2.weight', '2.bias']" in str(error), error
    else:
        raise AssertionError("no error")
    model.to_empty(device="cpu")
    torch.manual_seed(5)
    for layer in (model[0], model[2]):
        layer.reset_parameters()
    torch.manual_seed(5)
    expected = Layers()
    same_parameters(model, expected, 0)
    train(model, *(mine(t) for t in data()))
    train(expected, *data())
    same_parameters(model, expected)


def shard_first(model: nn.Module) -> nn.Module:
    shard_blocks(model)
    return model[0]


def wrong_calls_raise() -> None:
    model = fully_shard(net(), mesh=line())
    raises(AssertionError, "can only be applied to a module once", fully_shard, model, mesh=line())
    raises(AssertionError, "does not support deepcopy", copy.deepcopy, model)
    raises(RuntimeError, "already managed by `fully_shard`", replicate, model)
    raises(ValueError, "containers that do not implement forward", fully_shard, nn.ModuleList([nn.Linear(2, 2)]), mesh=line())
    raises(RuntimeError, "Expected device_id to be int or torch.device", replicate, net(), device_id=[0])
    raises(ValueError, "should be a bool or an int", fully_shard, net(), mesh=line(), reshard_after_forward="no")
    raises(AssertionError, "Shard dim 3 is invalid", fully_shard, net(), mesh=line(), shard_placement_fn=lambda p: Shard(3))
    raises(ValueError, "Expects FSDPModule", model.set_modules_to_forward_prefetch, [nn.Linear(2, 2)])
    raises(NotImplementedError, "no symmetric memory", model.set_symm_mem_for_comm)
    raises(RuntimeError, "root FSDP module", shard_first(net()).reset_iter_state)
    raises(ValueError, "Sizes are above 0", replicate, net(), bucket_cap_mb=0)
    raises(TypeError, "unexpected arguments: buckets", replicate, net(), buckets=3)
    raises(RuntimeError, "requires a gradient", replicate, net().requires_grad_(False))


def a_late_parameter_is_named() -> None:
    x, _ = data()
    model = nn.Sequential(net(), nn.Linear(3, 2).double())
    replicate(model[0])
    replicate(model[1])
    model[1].register_parameter("late", nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    loss = lambda: (model(mine(x)) * model[1].late).sum()
    raises(RuntimeError, "late of Linear got a gradient on rank", lambda: loss().backward())


EVERYWHERE = [
    a_late_parameter_is_named,
    replicated_models_train_as_one,
    sharded_models_train_as_one,
    named_prefetches_change_no_number,
    recomputed_blocks_train_as_one,
    hooks_see_the_reduced_gradient,
    accumulation_reduces_the_sum,
    state_dicts_go_through_the_whole,
    handles_gather_and_free,
    a_parameter_is_its_shards_after_an_evaluation,
    state_of_optimizers_from_before_moves,
    other_methods_gather_too,
    mixed_precision_is_that_of_casts,
    communication_hooks_replace_the_average,
    models_on_meta_train_as_one,
    wrong_calls_raise,
]


# --- two axes, on 4 ranks


def copies_of_shards_train_as_one() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    model = net()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, *(mine(t, mesh) for t in data()))
    same_parameters(model, plain())


def tensor_parallel_models_train_as_one() -> None:
    tensor_parallel_trains_as_one(lambda model, mesh: fully_shard(model, mesh=mesh))
    tensor_parallel_trains_as_one(lambda model, mesh: replicate(model, device_mesh=mesh))


def resharding_to_a_smaller_group_changes_no_number() -> None:
    trains_as_one(lambda model: shard_blocks(model, reshard_after_forward=2))


ON_A_GRID = [resharding_to_a_smaller_group_changes_no_number, copies_of_shards_train_as_one, tensor_parallel_models_train_as_one]


def compression_of_pytorch_is_taken() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook

    x, y = data()
    for hook, tolerance in ((allreduce_hook, 1e-12), (bf16_compress_hook, 2e-2)):
        model, expected = net(), net()
        replicate(model)
        model.register_comm_hook(None, hook)
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        nn.functional.mse_loss(expected(x), y).backward()
        grad = expected[3].weight.grad
        torch.testing.assert_close(model[3].weight.grad, grad, rtol=tolerance, atol=tolerance)
    assert isinstance(model, ReplicatedModule)


class DataParallel(unittest.TestCase):
    def test_simulated(self):
        for n in (1, 2, 3, 4):
            for function in EVERYWHERE:
                with self.subTest(function.__name__, n=n), simulate(n):
                    function()

    def test_simulated_grids(self):
        for function in ON_A_GRID:
            with self.subTest(function.__name__), simulate(4):
                function()

    def test_on_real_ranks(self):
        run_ranks(2, [*EVERYWHERE, compression_of_pytorch_is_taken])
        run_ranks(4, [*EVERYWHERE[:2], *ON_A_GRID])


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    assert not dist.is_initialized()
    unittest.main()
