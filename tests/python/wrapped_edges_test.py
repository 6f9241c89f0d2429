"""Wrapped models off the straight path: partly plain, made in inference mode, extended later, with batch norms, read handle by handle."""

import unittest

import torch
from support import raises, run_ranks, same
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from training import data, line, mine, net, same_parameters, world_size

import intarsia
from intarsia import DTensor, Replicate, Shard, distribute_module, distribute_tensor, fully_shard, redistribute, replicate, simulate
from intarsia.data_parallel import convert_sync_batchnorm
from intarsia.parallel import ColwiseParallel, PrepareModuleInput, parallelize_module


def partly_sharded() -> tuple:
    model, expected = net(), net()
    fully_shard(model[0], mesh=line())
    replicate(model, device_mesh=line())
    return model, expected


def gradients_of_plain_and_sharded_parameters_are_clipped_together() -> None:
    x, y = data()
    model, expected = partly_sharded()
    nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
    nn.functional.mse_loss(expected(x), y).backward()
    same(nn.utils.clip_grad_norm_(model.parameters(), 0.01), nn.utils.clip_grad_norm_(expected.parameters(), 0.01))
    for ours, theirs in zip(model.parameters(), expected.parameters()):
        if theirs.grad is not None:
            same(ours.grad, theirs.grad)


def optimizers_map_over_plain_and_sharded_parameters() -> None:
    x, y = data()
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
        model, expected = partly_sharded()
        own, goal = (kind(one.parameters(), lr=0.1, weight_decay=0.1, foreach=True) for one in (model, expected))
        for _ in range(2):
            nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
            nn.functional.mse_loss(expected(x), y).backward()
            own.step()
            goal.step()
        same_parameters(model, expected)


def fused_steps_take_plain_sharded_and_scalar_parameters() -> None:
    x, y = data()
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        model, expected = partly_sharded()  # of which one has no dims
        own, goal = kind(model.parameters(), lr=0.1, fused=True), kind(expected.parameters(), lr=0.1)
        for _ in range(2):
            nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
            nn.functional.mse_loss(expected(x), y).backward()
            own.step()
            goal.step()
        same_parameters(model, expected)


def models_are_wrapped_and_remade_in_inference_mode() -> None:
    x, _ = data()
    for wrap in (lambda model: fully_shard(model, mesh=line()), lambda model: replicate(model, device_mesh=line())):
        model, expected = net(), net()
        with torch.inference_mode():
            wrap(model)
            model(mine(x))
        if hasattr(model, "reshard"):
            model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
            with torch.inference_mode():
                model(mine(x))
        for one, rows in ((model, mine(x)), (expected, x)):
            one(rows).mean().backward()
            torch.optim.SGD(one.parameters(), 0.1).step()
        same_parameters(model, expected)


def a_parameter_that_comes_after_fully_shard_is_named() -> None:
    x, _ = data()
    model = net()
    fully_shard([model[0], model[2]], mesh=line())
    fully_shard(model, mesh=line())
    model[2].late = nn.Parameter(torch.ones(3).double())
    message = '"2.late" of Sequential was registered after fully_shard was called'
    raises(ValueError, message, lambda: (model(mine(x)) * model[2].late).sum().backward())
    model.zero_grad()
    model(mine(x)).sum().backward()  # the others train on
    model[2].late.requires_grad_(False)
    (model(mine(x)) * model[2].late).sum().backward()


def ignored_parameters_do_not_come_late() -> None:
    x, _ = data()
    model = net()
    fully_shard(model, mesh=line(), ignored_params={model[3].bias})
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    model(mine(x)).sum().backward()
    assert not isinstance(model[3].bias, DTensor) and model[3].bias.grad is not None


def normed() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=None), nn.Tanh(), nn.Linear(4, 3)).double()


def wraps() -> tuple:
    return (lambda model: fully_shard(model, mesh=line()), lambda model: replicate(model, device_mesh=line()))


def buffers_are_those_of_the_first_rank() -> None:
    x, y = data()
    for wrap in wraps():
        model, expected = normed(), normed()
        wrap(model)
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        expected(x[: (len(x) + world_size() - 1) // world_size()])
        same(model[1].running_mean, expected[1].running_mean)


def converted_batch_norms_see_the_rows_of_all() -> None:
    x, y = data()
    for wrap in wraps():
        for converted_first in (True, False):
            model, expected = normed(), normed()
            for step in (convert, wrap) if converted_first else (wrap, convert):
                step(model)
            own, goal = (torch.optim.SGD(one.parameters(), 0.1) for one in (model, expected))
            for _ in range(3):
                for one, optimizer, rows, targets in ((model, own, mine(x), mine(y)), (expected, goal, x, y)):
                    nn.functional.mse_loss(one(rows), targets).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            same_parameters(model, expected)
            same(model[1].running_mean, expected[1].running_mean)
            same(model[1].running_var, expected[1].running_var)
            same(DTensor.from_local(model.eval()(mine(x)).detach(), line(), [Shard(0)]), expected.eval()(x))


def convert(model: nn.Module) -> None:
    assert convert_sync_batchnorm(model, line()) == 1


def handles_are_moved_and_cast_as_shards() -> None:
    model = net()
    fully_shard(model, mesh=line())
    for name, value in model.state_dict().items():
        for made in (value.cpu(), value.to("cpu"), value.to(torch.float32), value.to("cpu", copy=True)):
            assert isinstance(made, DTensor) and made.placements == value.placements, name
    same(model.state_dict()["3.bias"].float(), net()[3].bias.float())


def whole_state_dicts_are_those_of_one_process() -> None:
    model = net()
    fully_shard(model, mesh=line())
    model(mine(data()[0]))
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, value in net().state_dict().items():
        torch.testing.assert_close(whole[name], value)


def wrapped_parameters_are_laid_out_by_their_wrapper_alone() -> None:
    x, y = data()
    cut = {"0": PrepareModuleInput(), "3": ColwiseParallel(output_layouts=Replicate())}
    text = '"{}" of {} is sharded by fully_shard, which says how it is laid out. Call fully_shard after {}.'
    for forward_before in (False, True):
        model, expected = net(), net()
        fully_shard(model, mesh=line())
        if forward_before:
            model(mine(x))
        message = "[parallelize_module] " + text.format("3.weight", "Sequential", "parallelize_module")
        raises(ValueError, message, parallelize_module, model, line(), cut)
        message = "[distribute_module] " + text.format("weight", "Linear", "distribute_module")
        raises(ValueError, message, distribute_module, model[3], line())
        message = "[redistribute] " + text.format("0.scale", "Sequential", "redistribute")
        raises(ValueError, message, redistribute, model, line(), [Replicate()])
        for one, rows, targets in ((model, mine(x), mine(y)), (expected, x, y)):  # it is as it was
            nn.functional.mse_loss(one(rows), targets).backward()
            torch.optim.SGD(one.parameters(), 0.1).step()
        same_parameters(model, expected)


def what_is_replicated_is_not_cut_over_the_same_ranks() -> None:
    x, y = data()
    model, expected = net(), net()
    replicate(model, device_mesh=line(), ignored_modules=[model[3]])
    message = '[parallelize_module] "up.weight" of Block is replicated over the same ranks'
    raises(ValueError, message, parallelize_module, model[0], line("tp"), {"up": ColwiseParallel()})
    parallelize_module(model, line("tp"), {"2": PrepareModuleInput()})  # lays out no parameters
    for one, rows, targets in ((model, mine(x), mine(y)), (expected, x, y)):
        nn.functional.mse_loss(one(rows), targets).backward()
    for ours, theirs in zip(model[:3].parameters(), expected[:3].parameters()):
        if theirs.grad is not None:
            same(ours.grad, theirs.grad)
    parallelize_module(model, line("tp"), {"3": ColwiseParallel()})  # ignored, so free
    assert isinstance(model[3].weight, DTensor)


def sparse_gradients_are_refused_with_advice() -> None:
    words = mine(torch.tensor([1, 3, 3, 6, 0, 2]))
    simulated = "[sparse_coo_tensor] tensors that are distributed, or one per simulated rank, are dense. Make embeddings with sparse = false"
    for wrap, text in (
        (lambda model: fully_shard(model, mesh=line()), '[fully_shard] the gradient of "0.weight" is sparse'),
        (lambda model: replicate(model, device_mesh=line()), '[replicate] the gradient of "0.weight" is sparse'),
    ):
        model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 3))
        wrap(model)
        raises(NotImplementedError, simulated if hasattr(words, "_local_tensors") else text, lambda: model(words).sum().backward())
        model.zero_grad()
        model[0].sparse = False
        model(words).sum().backward()
        assert not model[0].weight.grad.is_sparse
    for layout in (Replicate(), Shard(0), Shard(1)):
        table = distribute_tensor(torch.ones(8, 4), line(), [layout]).requires_grad_()
        text = "[embedding] distributed tensors have no sparse gradients. Pass sparse = false."
        raises(NotImplementedError, text, nn.functional.embedding, distribute_tensor(torch.arange(4), line()), table, sparse=True)


def in_the_drop_in(function) -> None:
    intarsia.install()
    try:
        function()
    finally:
        intarsia.uninstall()


def wrappers_lay_out_their_parameters_in_the_drop_in() -> None:
    in_the_drop_in(wrapped_parameters_are_laid_out_by_their_wrapper_alone)
    in_the_drop_in(what_is_replicated_is_not_cut_over_the_same_ranks)


EVERYWHERE = [
    wrapped_parameters_are_laid_out_by_their_wrapper_alone,
    what_is_replicated_is_not_cut_over_the_same_ranks,
    wrappers_lay_out_their_parameters_in_the_drop_in,
    sparse_gradients_are_refused_with_advice,
    converted_batch_norms_see_the_rows_of_all,
    gradients_of_plain_and_sharded_parameters_are_clipped_together,
    optimizers_map_over_plain_and_sharded_parameters,
    fused_steps_take_plain_sharded_and_scalar_parameters,
    handles_are_moved_and_cast_as_shards,
    models_are_wrapped_and_remade_in_inference_mode,
    a_parameter_that_comes_after_fully_shard_is_named,
    ignored_parameters_do_not_come_late,
    buffers_are_those_of_the_first_rank,
]


class WrappedEdges(unittest.TestCase):
    def test_simulated(self):
        for function in EVERYWHERE:
            with self.subTest(function.__name__), simulate(2):
                function()

    def test_on_real_ranks(self):
        run_ranks(2, [*EVERYWHERE, whole_state_dicts_are_those_of_one_process])


if __name__ == "__main__":
    unittest.main()
