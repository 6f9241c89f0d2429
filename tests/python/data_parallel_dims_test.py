"""dp_mesh_dims: parameters and activations lie on one mesh of all axes; training gives the numbers of one process."""

import unittest
import warnings

import torch
from support import raises, run_ranks
from torch import nn
from torch.distributed.fsdp import DataParallelMeshDims as Dims
from torch.distributed.fsdp import MixedPrecisionPolicy
from training import data, same_parameters

from intarsia import DTensor, Replicate, Shard, distribute_tensor, fully_shard, init_device_mesh, simulate
from intarsia.data_parallel import FSDPModule, ReplicateModule, replicate_with_fsdp

PLAN = {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1), "2.bias": Replicate()}
HYBRID = Dims(shard="dp", replicate="copies")
TWO = Dims(shard=("a", "b"))

# Shape and names of the mesh, which axes are data-parallel, the size of a dim, and how 0.weight lies at rest: as PyTorch has it.
CUTS = [
    ((2, 2), ("dp", "tp"), Dims(shard="dp"), 8, "(_StridedShard(dim=0, sf=2), Shard(dim=0)) of ('dp', 'tp')"),
    ((2, 2), ("dp", "tp"), Dims(shard="dp"), 7, "(_StridedShard(dim=0, sf=2), Shard(dim=0)) of ('dp', 'tp')"),
    ((2, 2), ("tp", "dp"), Dims(shard="dp"), 7, "(Shard(dim=0), Shard(dim=0)) of ('tp', 'dp')"),
    ((4,), ("dp",), Dims(shard="dp"), 7, "(Shard(dim=0),) of ('dp',)"),
    ((2, 2, 1), ("copies", "dp", "tp"), HYBRID, 5, "(Replicate(), Shard(dim=0), Shard(dim=0)) of ('copies', 'dp', 'tp')"),
    ((2, 2, 1), ("dp", "copies", "tp"), HYBRID, 8, "(Shard(dim=0), Replicate(), Shard(dim=0)) of ('dp', 'copies', 'tp')"),
    ((2, 2, 1), ("a", "b", "tp"), TWO, 7, "(Shard(dim=0), Shard(dim=0)) of ('a_b', 'tp')"),
    ((2, 1, 2), ("a", "b", "tp"), TWO, 8, "(_StridedShard(dim=0, sf=2), Shard(dim=0)) of ('a_b', 'tp')"),
    ((2, 1, 2, 1), ("r", "a", "b", "tp"), Dims(("a", "b"), "r"), 8, "(Replicate(), Shard(dim=0), Shard(dim=0)) of ('r', 'a_b', 'tp')"),
    ((2, 1, 2), ("a", "b", "tp"), Dims(replicate=("a", "b")), 7, "(Replicate(), Replicate(), Shard(dim=0)) of ('a', 'b', 'tp')"),
    ((2, 2), ("dp", "tp"), Dims(replicate="dp"), 7, "(Replicate(), Shard(dim=0)) of ('dp', 'tp')"),
]
# By the number of ranks. 9 rows over 2, and then over 4: no StridedShard says that.
OTHERS = {
    1: [((1, 1), ("dp", "tp"), Dims(shard="dp"), 7, "(Shard(dim=0), Shard(dim=0)) of ('dp', 'tp')")],
    2: [
        ((2, 1), ("dp", "tp"), Dims(shard="dp"), 7, "(Shard(dim=0), Shard(dim=0)) of ('dp', 'tp')"),
        ((1, 2), ("dp", "tp"), Dims(shard="dp"), 7, "(_StridedShard(dim=0, sf=2), Shard(dim=0)) of ('dp', 'tp')"),
    ],
    8: [
        ((4, 2), ("dp", "tp"), Dims(shard="dp"), 9, "(Shard(dim=0), Shard(dim=0)) of ('tp', 'dp')"),
        ((2, 2, 2), ("copies", "dp", "tp"), HYBRID, 8, "(Replicate(), _StridedShard(dim=0, sf=2), Shard(dim=0)) of ('copies', 'dp', 'tp')"),
        ((2, 2, 2), ("a", "b", "tp"), TWO, 9, "(Shard(dim=0), Shard(dim=0)) of ('tp', 'a_b')"),
        ((2, 2, 2), ("a", "tp", "b"), TWO, 8, "(_StridedShard(dim=0, sf=2), Shard(dim=0)) of ('a_b', 'tp')"),
    ],
}


def layers(hidden: int) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()


def spread(model: nn.Module, mesh, plan=PLAN) -> nn.Module:
    """Every parameter becomes a distributed one, whole along all axes but "tp"."""
    for name, parameter in list(model.named_parameters()):
        path, _, leaf = name.rpartition(".")
        made = distribute_tensor(parameter.detach(), mesh, [plan[name] if axis == "tp" else Replicate() for axis in mesh.mesh_dim_names])
        setattr(model.get_submodule(path), leaf, nn.Parameter(made))
    return model


def rows(tensor: torch.Tensor, mesh, dims: Dims) -> DTensor:
    names = (*dims.shard_names, *dims.replicate_names)
    return distribute_tensor(tensor, mesh, [Shard(0) if axis in names else Replicate() for axis in mesh.mesh_dim_names])


def own_loss(model: nn.Module, x: DTensor, y: DTensor) -> torch.Tensor:
    """Of this rank's rows."""
    return nn.functional.mse_loss(model(x).redistribute(placements=x.placements).to_local(), y.to_local())


def train(model: nn.Module, x, y, loss=own_loss, steps: int = 4) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(hidden: int) -> nn.Module:
    model = layers(hidden)
    train(model, *data(), lambda model, x, y: nn.functional.mse_loss(model(x), y))
    return model


def layout(tensor: DTensor) -> str:
    return f"{tensor.placements} of {tensor.device_mesh.mesh_dim_names}"


def every_choice_of_axes_trains_as_one(cases=CUTS) -> None:
    for shape, names, dims, hidden, text in cases:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        batch = [rows(t, mesh, dims) for t in data()]
        for groups in (lambda m: (m,), lambda m: (m[0], m)):
            model = spread(layers(hidden), mesh)
            for module in groups(model):
                fully_shard(module, mesh=mesh, dp_mesh_dims=dims)
            assert isinstance(model, FSDPModule) and layout(model.state_dict()["0.weight"]) == text, layout(model[0].weight)
            train(model, *batch)
            assert layout(model[0].weight) == text
            same_parameters(model, trained(hidden))


def grid():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), Dims(shard="dp")


def replicas_train_as_one() -> None:
    mesh, _ = grid()
    dims = Dims(replicate="dp")
    model = spread(layers(7), mesh)
    replicate_with_fsdp(model, mesh=mesh, dp_mesh_dims=dims)
    assert isinstance(model, ReplicateModule) and model[2].weight.placements == (Replicate(), Shard(1))
    train(model, *(rows(t, mesh, dims) for t in data()))
    same_parameters(model, trained(7))


def the_whole_is_what_was_given() -> None:
    mesh, dims = grid()
    model = fully_shard(spread(layers(7), mesh), mesh=mesh, dp_mesh_dims=dims)
    out = model(rows(data()[0], mesh, dims))
    model.unshard()
    assert model[0].weight.placements == (Replicate(), Shard(0)) and model[2].weight.placements == (Replicate(), Shard(1))
    assert out.placements[0] == Shard(0) and out.device_mesh == mesh
    torch.testing.assert_close(out.full_tensor(), layers(7)(data()[0]), rtol=1e-12, atol=1e-12)
    model.reshard()
    assert model[2].weight.placements == (Shard(0), Shard(1))


def gradients_of(model: nn.Module) -> dict:
    return {name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for name, p in model.named_parameters()}


def same_gradients(model: nn.Module, expected: nn.Module, factor: float = 1) -> None:
    wanted = gradients_of(expected)
    for name, grad in gradients_of(model).items():
        torch.testing.assert_close(grad, wanted[name] * factor, rtol=1e-12, atol=1e-12, msg=name)


def sums_are_averaged_unless_a_factor_says_otherwise() -> None:
    mesh, dims = grid()
    expected = layers(7)
    nn.functional.mse_loss(expected(data()[0]), data()[1]).backward()
    for factor, part in ((None, 0.5), (1, 1), (4, 0.25)):
        model = fully_shard(spread(layers(7), mesh), mesh=mesh, dp_mesh_dims=dims)
        if factor:
            model.set_gradient_divide_factor(factor)
        x, y = (rows(t, mesh, dims) for t in data())
        nn.functional.mse_loss(model(x), y).backward()  # one loss over all ranks
        same_gradients(model, expected, part)


class Shift(nn.Module):
    """Its gradient comes as the rows of the batch lie, that of its scale as a value."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.scale = nn.Parameter(torch.ones(24, 5).double()), nn.Parameter(torch.ones(3).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rows


def gradients_of_every_kind_are_terms_of_an_average() -> None:
    for replicated in (False, True):
        mesh, _ = grid()
        dims = Dims(replicate="dp") if replicated else Dims(shard="dp")
        model = spread(Shift(), mesh, {"rows": Replicate(), "scale": Replicate()})
        fully_shard(model, mesh=mesh, dp_mesh_dims=dims)
        out, scale = model(rows(data()[0], mesh, dims)), model.scale
        (out.to_local().sum() + scale.square().sum().to_local()).backward()
        torch.testing.assert_close(model.rows.grad.full_tensor(), data()[0] / 2, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model.scale.grad.full_tensor(), 2 * torch.ones(3).double(), rtol=1e-12, atol=1e-12)


def accumulation_reduces_the_sum() -> None:
    for shape, names, dims in (((2, 2), ("dp", "tp"), Dims(shard="dp")), ((2, 2, 1), ("copies", "dp", "tp"), HYBRID)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for waits in ("set_requires_gradient_sync", "set_requires_all_reduce"):
            model, expected = spread(layers(7), mesh), layers(7)
            fully_shard(model, mesh=mesh, dp_mesh_dims=dims)
            for number, half in enumerate((slice(0, 12), slice(12, 24))):
                x, y = (t[half] for t in data())
                nn.functional.mse_loss(expected(x), y).backward()
                getattr(model, waits)(number == 1)
                own_loss(model, rows(x, mesh, dims), rows(y, mesh, dims)).backward()
                pending = number == 0 and (waits == "set_requires_gradient_sync" or "copies" in names)
                assert any(p.is_partial() for p in model[2].weight.grad.placements) == pending
            same_gradients(model, expected)


def states_go_through_loads() -> None:
    for shape, names, dims, hidden, text in (CUTS[1], CUTS[6], CUTS[-1]):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for assign in (False, True):
            model, other = (fully_shard(spread(layers(hidden), mesh), mesh=mesh, dp_mesh_dims=dims) for _ in range(2))
            state = {name: value.clone() for name, value in model.state_dict().items()}
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.mul_(2)
            other.load_state_dict(state, assign=assign)
            train(other, *(rows(t, mesh, dims) for t in data()))
            same_parameters(other, trained(hidden))
            assert layout(other[0].weight) == text


def models_on_meta_are_laid_out_at_once() -> None:
    for shape, names, dims, hidden, text in (CUTS[1], CUTS[5], CUTS[6], CUTS[-1]):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        with torch.device("meta"):
            model = spread(layers(hidden), mesh)
        fully_shard(model, mesh=mesh, dp_mesh_dims=dims)
        stays = "a_b" in text  # until there are values: it will lie on another mesh
        assert model[0].weight.is_meta and (layout(model[0].weight) == text or stays), layout(model[0].weight)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), layers(hidden).parameters()):
                ours.copy_(distribute_tensor(theirs, mesh, ours.placements))
        train(model, *(rows(t, mesh, dims) for t in data()))
        assert layout(model[0].weight) == text
        same_parameters(model, trained(hidden))


def both_may_cut_any_dim() -> None:
    mesh, dims = grid()
    for hidden in (8, 7):
        model = spread(layers(hidden), mesh)
        fully_shard(model, mesh=mesh, dp_mesh_dims=dims, shard_placement_fn=lambda p: Shard(p.ndim - 1))
        assert str(model[2].weight.placements) == "(_StridedShard(dim=1, sf=2), Shard(dim=1))", model[2].weight.placements
        train(model, *(rows(t, mesh, dims) for t in data()))
        same_parameters(model, trained(hidden))


def mixed_precision_is_that_of_casts() -> None:
    mesh, dims = grid()
    model, expected = spread(layers(8), mesh), layers(8).float()
    fully_shard(model, mesh=mesh, dp_mesh_dims=dims, mp_policy=MixedPrecisionPolicy(torch.float32, torch.float64))
    x, y = (t.float() for t in data())
    for number in range(2):  # the first adds up
        model.set_requires_gradient_sync(number == 1)
        own_loss(model, rows(x, mesh, dims), rows(y, mesh, dims)).backward()
        nn.functional.mse_loss(expected(x), y).backward()
    for ours, theirs in zip(model.parameters(), expected.parameters()):
        assert ours.grad.dtype is torch.float64
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad.double(), rtol=1e-5, atol=1e-6)


def wrong_calls_raise() -> None:
    mesh, dims = grid()
    other, unnamed = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)), init_device_mesh("cpu", (2, 2))

    def fails(error: type, text: str, model=None, on=mesh, dims=dims, function=fully_shard, **options) -> None:
        raises(error, text, function, model or spread(layers(8), mesh), mesh=on, dp_mesh_dims=dims, **options)

    nothing = Dims(shard="dp")
    nothing.shard = None
    fails(ValueError, "Mesh dim name 'cp' not found in mesh.mesh_dim_names ('dp', 'tp')", dims=Dims(shard=("dp", "cp")))
    fails(ValueError, "At least one of shard or replicate must be set in dp_mesh_dims", dims=nothing)
    fails(ValueError, "mesh must have mesh_dim_names when dp_mesh_dims is provided", on=unnamed)
    fails(ValueError, "all parameters must be DTensors on the full SPMD mesh", layers(8))
    fails(ValueError, "to be the same mesh passed to fully_shard, but got different mesh objects", on=other)
    fails(NotImplementedError, "as int is not yet supported with SPMD mesh (dp_mesh_dims)", reshard_after_forward=2)
    fails(ValueError, "requires replicate-only dims (no shard dims)", function=replicate_with_fsdp)
    fails(KeyError, "Mesh dim indices should be in ascending order", dims=Dims(shard=("tp", "dp")))
    fails(ValueError, "named twice", dims=Dims("dp", "dp"))
    cut = {name: Shard(0) for name in PLAN}
    fails(ValueError, "Expected Replicate() on DP shard dim 'tp' (index 1) but got S(0)", spread(layers(8), mesh, cut), dims=Dims(shard="tp"))
    fails(ValueError, "Expected Replicate() on DP replicate dim 'tp' (index 1)", spread(layers(8), mesh, cut), dims=Dims("dp", "tp"))


EVERYWHERE = [
    every_choice_of_axes_trains_as_one,
    replicas_train_as_one,
    the_whole_is_what_was_given,
    sums_are_averaged_unless_a_factor_says_otherwise,
    gradients_of_every_kind_are_terms_of_an_average,
    accumulation_reduces_the_sum,
    states_go_through_loads,
    models_on_meta_are_laid_out_at_once,
    both_may_cut_any_dim,
    mixed_precision_is_that_of_casts,
    wrong_calls_raise,
]


class Dimensions(unittest.TestCase):
    def test_simulated(self):
        for function in EVERYWHERE:
            with self.subTest(function.__name__), simulate(4):
                function()
        for n, cases in OTHERS.items():
            with self.subTest(n=n), simulate(n):
                every_choice_of_axes_trains_as_one(cases)

    def test_on_real_ranks(self):
        run_ranks(4, EVERYWHERE)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    unittest.main()
