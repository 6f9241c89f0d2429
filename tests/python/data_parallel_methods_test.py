"""Every method and argument of PyTorch's fully_shard and replicate is there, and does what it says."""

import importlib
import inspect
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.fsdp as theirs
from support import run_ranks
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.utils.checkpoint import checkpoint
from training import data, line, mine, net, plain, same_parameters, shard_blocks
from training import tensor_parallel_trains_as_one, train, trains_as_one, world_size

import intarsia
from intarsia import DTensor, Replicate, Shard, distribute_tensor, fully_shard, init_device_mesh, simulate
from intarsia import data_parallel as ours
from intarsia.data_parallel import replicate_with_fsdp


class Table(unittest.TestCase):
    def test_methods_and_arguments_are_pytorchs(self):
        composable = [importlib.import_module(f"torch.distributed._composable.{name}") for name in ("replicate", "replicate_with_fsdp")]
        functions = list(zip([module.replicate for module in composable], [ours.replicate, ours.replicate_with_fsdp]))
        for name in ("fully_shard", "share_comm_ctx", "register_fsdp_forward_method"):
            functions.append((getattr(theirs, name), getattr(ours, name)))
        for their, our in ((theirs.FSDPModule, ours.FSDPModule), (theirs.UnshardHandle, ours.UnshardHandle)):
            names = [name for name in vars(their) if not name.startswith("_")]
            functions += [(getattr(their, name), getattr(our, name)) for name in names]
        self.assertGreater(len(functions), 25)
        for their, our in functions:
            with self.subTest(their.__name__):
                wanted, got = (inspect.signature(f).parameters.values() for f in (their, our))
                self.assertEqual([(p.name, p.kind, p.default) for p in got], [(p.name, p.kind, p.default) for p in wanted])


# --- each runs in a simulation and on real ranks


def gradients(model: nn.Module) -> dict:
    return {name: whole_gradient(p) for name, p in model.named_parameters() if p.grad is not None}


def whole_gradient(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad


def same_gradients(model: nn.Module, expected: nn.Module, factor: float = 1) -> None:
    got, wanted = gradients(model), gradients(expected)
    assert set(got) == set(wanted), (set(got), set(wanted))
    for name, grad in got.items():
        torch.testing.assert_close(grad, wanted[name] * factor, rtol=1e-12, atol=1e-12, msg=name)


def backward_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    nn.functional.mse_loss(model(x), y).backward()


def plain_gradients() -> nn.Module:
    expected = net()
    backward_of(expected, *data())
    return expected


def hooks_change_what_was_reduced() -> None:
    for wrap in (shard_blocks, replicate_with_fsdp):
        model = net()
        wrap(model)
        seen = []
        model.set_all_reduce_hook(lambda flat: (seen.append(flat.shape), flat.mul_(3)))
        backward_of(model, *(mine(t) for t in data()))
        expected = plain_gradients()
        for name, parameter in expected.named_parameters():
            if parameter.grad is not None and (wrap is replicate_with_fsdp or name.startswith("3.")):
                parameter.grad.mul_(3)
        assert len(seen) == 1
        same_gradients(model, expected)


class Gather(AllGather):
    calls = 0

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.calls += 1
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class Reduce(ReduceScatter):
    calls = 0
    allocate = Gather.allocate

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.calls += 1
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


def collectives_of_a_program_carry_the_messages() -> None:
    gather, reduce = Gather(), Reduce()

    def prepare(model: nn.Module) -> None:
        shard_blocks(model)
        model[0].set_custom_all_gather(gather)
        model[0].set_custom_reduce_scatter(reduce)

    trains_as_one(prepare)
    assert (gather.calls, reduce.calls) == (8, 4), (gather.calls, reduce.calls)


def replicated_parameters_are_distributed_at_rest() -> None:
    model = net()
    for block in (model[0], model[2], model):
        replicate_with_fsdp(block)
    assert isinstance(model[0], ours.ReplicateModule) and type(model[0]).__name__ == "ReplicateBlock"
    train(model, *(mine(t) for t in data()))
    assert all(p.placements == (Replicate(),) for p in model.parameters())
    same_parameters(model, plain())
    model(mine(data()[0]))
    assert isinstance(model[3].weight, DTensor)  # though its memory stays until the end of backward


def lists_are_gathered_once() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    fully_shard([model[0], model[2]], mesh=line(), reshard_after_forward=True)
    fully_shard(model, mesh=line())
    x = mine(data()[0])
    with intarsia.debug.CommDebugMode() as counts, torch.no_grad():
        model(x)
    assert isinstance(model[0].weight, DTensor)
    expected = 0 if world_size() == 1 else 1
    assert counts.get_total_counts() == expected, counts.get_comm_counts()


def failed_forwards_leave_shards() -> None:
    model = net()
    shard_blocks(model)
    try:
        model[0](torch.ones(2, 3).double())
    except RuntimeError:
        pass
    assert isinstance(model[0].up.weight, DTensor)
    train(model, *(mine(t) for t in data()))
    same_parameters(model, plain())


def reentrant_checkpoints_train_as_one() -> None:
    def prepare(model: nn.Module) -> None:
        shard_blocks(model)
        for block in (model[0], model[2]):
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x.requires_grad_(), use_reentrant=True)

    trains_as_one(prepare)


def settings_wait_for_values() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double()
    for layer in (*model, model):
        fully_shard(layer, mesh=line())
    model[0].set_modules_to_forward_prefetch([model[1]])
    model.set_requires_gradient_sync(False)
    model.set_requires_gradient_sync(True)
    model[0].set_gradient_divide_factor(2 * world_size())
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    for layer in model:
        layer.reset_parameters()
    expected = copy_of(model, nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double())
    backward_of(model, *(mine(t) for t in data()))
    backward_of(expected, *data())
    for parameter in expected[0].parameters():
        parameter.grad.div_(2)
    same_gradients(model, expected)


def copy_of(model: nn.Module, plain_model: nn.Module) -> nn.Module:
    plain_model.load_state_dict({name: value.full_tensor() for name, value in model.state_dict().items()})
    return plain_model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(5, 4, dtype=torch.double), nn.Linear(5, 4, bias=False, dtype=torch.double)
        self.out.weight = self.into.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.into(x) * self.out(x)


def tied_parameters_on_meta_stay_tied() -> None:
    expected = Tied()
    with torch.device("meta"):
        model = fully_shard(Tied(), mesh=line())
    assert model.out.weight is model.into.weight and isinstance(model.out.weight, DTensor)
    whole = expected.state_dict()
    parts = {name: distribute_tensor(whole[name], line(), value.placements) for name, value in model.state_dict().items()}
    for _ in range(2):  # the second time there are values already
        model.load_state_dict(parts, assign=True)
        x = data()[0]
        torch.testing.assert_close(whole_of(model(mine(x))), expected(x).detach(), rtol=1e-12, atol=1e-12)
        assert model.out.weight is model.into.weight
        model.reshard()


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    return DTensor.from_local(tensor.detach(), line(), [Shard(0)]).full_tensor()


def scalers_agree_on_what_is_infinite() -> None:
    torch.manual_seed(1)
    model = fully_shard(nn.Linear(5, 3), mesh=line())
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0)
    for infinite, scale in ((False, 2.0), (True, 1.0), (False, 1.0)):
        before = model.weight.full_tensor().detach().clone()
        scaler.scale(model(torch.ones(2, 5)).sum()).backward()
        if infinite:
            with torch.no_grad():  # in the last row, which one rank has
                model.weight.grad.copy_(distribute_tensor(torch.tensor([[0.0], [0.0], [torch.inf]]).expand(3, 5), line(), [Shard(0)]))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == scale and not isinstance(scaler._scale, DTensor)
        assert torch.equal(model.weight.full_tensor(), before) == infinite


EVERYWHERE = [
    hooks_change_what_was_reduced,
    collectives_of_a_program_carry_the_messages,
    replicated_parameters_are_distributed_at_rest,
    lists_are_gathered_once,
    failed_forwards_leave_shards,
    reentrant_checkpoints_train_as_one,
    settings_wait_for_values,
    tied_parameters_on_meta_stay_tied,
    scalers_agree_on_what_is_infinite,
]


# --- two axes, on 4 ranks


def averages_over_copies_wait() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    for factor in (None, 16):
        model, expected = net(), net()
        fully_shard(model, mesh=mesh)
        if factor:
            model.set_gradient_divide_factor(factor)
        for number, half in enumerate((slice(0, 12), slice(12, 24))):
            x, y = (t[half] for t in data())
            model.set_requires_all_reduce(number == 1)
            backward_of(model, mine(x, mesh), mine(y, mesh))
            backward_of(expected, x, y)
            waits = str(model[3].weight.grad.placements[0]) if number == 0 else None
            assert number or "P" in waits, waits
            assert model[3].weight.grad.placements[1] == Shard(0)
        same_gradients(model, expected, 4 / factor if factor else 1)


def parameters_choose_their_mesh() -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    model = net()
    chosen = set(model[0].parameters())
    info = FSDPMeshInfo(grid, shard_mesh_dim=1), FSDPMeshInfo(line(), shard_mesh_dim=0)
    fully_shard(model, mesh=line(), shard_placement_fn=lambda p: ShardPlacementResult(None, info[p not in chosen]))
    assert model[0].up.weight.device_mesh.ndim == 2 and model[3].weight.device_mesh.ndim == 1
    train(model, *(mine(t) for t in data()))
    same_parameters(model, plain())
    try:
        model.set_custom_all_gather(Gather())
    except ValueError as error:
        assert "multiple param groups" in str(error)
    else:
        raise AssertionError("no error")


def replicas_of_tensor_parallel_models_train_as_one() -> None:
    tensor_parallel_trains_as_one(lambda model, mesh: replicate_with_fsdp(model, mesh=mesh))


ON_A_GRID = [averages_over_copies_wait, parameters_choose_their_mesh, replicas_of_tensor_parallel_models_train_as_one]


class Methods(unittest.TestCase):
    def test_simulated(self):
        for n in (1, 2, 3):
            for function in EVERYWHERE:
                with self.subTest(function.__name__, n=n), simulate(n):
                    function()

    def test_simulated_grids(self):
        for function in ON_A_GRID:
            with self.subTest(function.__name__), simulate(4):
                function()

    def test_on_real_ranks(self):
        run_ranks(2, EVERYWHERE)
        run_ranks(4, ON_A_GRID)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    unittest.main()
