"""Programs that know only torch.distributed.tensor, on real processes under the drop-in: its less walked paths."""

import copy
import itertools
import pickle
import tempfile
import unittest
import warnings

import intarsia

intarsia.install()  # spawned processes import this file, so they run on Intarsia, too

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.distributed.tensor as dt  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor  # noqa: E402
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: E402
from torch.distributed.tensor._random import manual_seed  # noqa: E402
from torch.distributed.tensor._utils import ExplicitRedistributionContext, compute_local_shape_and_global_offset  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from support import mlp, raises, run_ranks, same  # noqa: E402

OPS = torch.ops.c10d_functional


def line():
    return init_device_mesh("cpu", (4,))


def grid():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def tp_mlp(mesh):
    return parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def the_constructor_takes_a_spec():
    meta = TensorMeta(torch.Size([12, 3]), (3, 1), torch.float32)
    x = DTensor(torch.ones(3, 3), DTensorSpec(line(), (Shard(0),), tensor_meta=meta), requires_grad=True)
    assert x.shape == (12, 3) and x.is_leaf and x.requires_grad and issubclass(DTensor, torch.Tensor)
    assert x._spec.num_shards == 4 and x._spec.dim_map == [0, -1] and hash(x._spec) == hash((x * 1)._spec)
    x._local_tensor.add_(1)
    same(DTensor.full_tensor(x), torch.full((12, 3), 2.0))
    with torch.no_grad():
        assert x.to_local() is x._local_tensor
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        DTensor(torch.ones(3, 3, requires_grad=True), x._spec, requires_grad=False)
    assert any("To construct" in str(warning.message) for warning in found)


def tensors_without_data_are_filled_later():
    for placement in (Shard(0), Replicate()):
        x = distribute_tensor(torch.empty(16, 8, device="meta"), line(), [placement])
        assert x.is_meta and (x * 2).is_meta and x.device.type == "meta"
        real = nn.init.constant_(torch.empty_like(x, device="cpu"), 1.5)
        assert real.placements == (placement,) and not real.is_meta
        same(real, torch.full((16, 8), 1.5))


def collectives_are_those_that_pytorch_counts():
    mesh, whole = line(), torch.arange(32.0).view(8, 4)
    table = [
        (Partial(), Replicate(), {OPS.all_reduce: 1}, {}),
        (Partial(), Shard(0), {OPS.reduce_scatter_tensor: 1}, {OPS.all_gather_into_tensor: 1}),
        (Shard(0), Replicate(), {OPS.all_gather_into_tensor: 1}, {}),
        (Shard(0), Shard(1), {OPS.all_gather_into_tensor: 1}, {OPS.all_gather_into_tensor: 1}),  # so on CPUs
        (Replicate(), Shard(0), {}, {OPS.all_gather_into_tensor: 1}),
    ]
    for before, after, forward, backward in table:
        x = DTensor.from_local(torch.ones(2, 4, requires_grad=True), mesh, [before])
        with CommDebugMode() as there:
            y = x.redistribute(mesh, [after])
        with CommDebugMode() as back:
            y.backward(torch.ones_like(y))
        assert dict(there.get_comm_counts()) == forward, (before, after, there.get_comm_counts())
        assert dict(back.get_comm_counts()) == backward, (before, after, back.get_comm_counts())
    for op, value in (("avg", 2.5), ("max", 4.0), ("min", 1.0), ("product", 24.0)):
        part = DTensor.from_local(torch.full((2,), dist.get_rank() + 1.0), mesh, [Partial(op)])
        same(part.full_tensor(), torch.full((2,), value))
    same(distribute_tensor(whole, mesh, [Shard(0)]).redistribute(placements=[Replicate()], async_op=True).to_local() + 0, whole)


def gradients_follow_the_placements_that_are_asked_for():
    x = distribute_tensor(torch.ones(8, 3), line(), [Shard(0)]).requires_grad_()
    x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]).sum().backward()
    x.full_tensor(grad_placements=[Partial()]).sum().backward()
    same(x.grad, torch.full((8, 3), 8.0))
    y = x.detach().requires_grad_()
    half = y.redistribute(placements=[Replicate()], forward_dtype=torch.bfloat16, backward_dtype=torch.float32)
    half.sum().backward()
    assert (half.dtype, y.grad.dtype, y.grad.placements) == (torch.bfloat16, torch.float32, (Shard(0),))


def shards_lie_where_pytorch_says():
    whole = torch.arange(35.0).view(7, 5)
    for placements in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        shape, offset = compute_local_shape_and_global_offset(whole.shape, grid(), placements)
        local = distribute_tensor(whole, grid(), placements).to_local()
        assert tuple(local.shape) == tuple(shape)
        if local.numel():
            same(local, whole[tuple(slice(o, o + s) for o, s in zip(offset, shape))])
    chunk = distribute_tensor(torch.arange(8.0), line(), [Shard(0)]).__create_chunk_list__()[0]
    assert (chunk.sizes, chunk.offsets) == (torch.Size([2]), torch.Size([2 * dist.get_rank()]))


def shards_of_shards_are_strided():
    mesh, whole = grid(), torch.arange(16.0)
    first = distribute_tensor(whole, mesh["tp"], [Shard(0)]).to_local()
    both = (_StridedShard(0, split_factor=2), Shard(0))
    mine = first.chunk(2)[mesh.get_coordinate()[0]].clone()
    x = DTensor.from_local(mine, mesh, both, shape=whole.shape, stride=whole.stride())
    same(x * 2, whole * 2)
    same(x.redistribute(placements=[Replicate(), Shard(0)]).to_local(), first)


def ranks_off_the_mesh_hold_nothing():
    mesh, outside = DeviceMesh("cpu", [0, 2]), dist.get_rank() % 2
    x = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)])
    assert x.shape == (6, 4) and (x + x).shape == (6, 4)
    assert x.to_local().numel() == (0 if outside else 12) and x.full_tensor().numel() == (0 if outside else 24)
    assert x.equal(x + 0) and x.sum().to_local() == (0 if outside else 12)


def errors_are_those_of_pytorch():
    mesh = grid()
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Replicate()])
    raises(ValueError, "must have the same length", distribute_tensor, torch.ones(4), mesh, [Shard(0)])
    raises(ValueError, "do you want to call", distribute_tensor, x, mesh, [Replicate(), Replicate()])
    raises(ValueError, "different device mesh", distribute_tensor, x, line(), [Replicate()])
    raises(RuntimeError, "non-leaf", distribute_tensor, torch.ones(2, requires_grad=True) * 2, mesh, [Shard(0)] * 2)
    raises(RuntimeError, "both shape and stride", DTensor.from_local, torch.ones(2), line(), [Shard(0)], shape=(8,))
    raises(RuntimeError, "placements is needed", x.redistribute, mesh)
    raises(RuntimeError, "Can not redistribute", x.redistribute, mesh, [Partial(), Replicate()])
    pending = DTensor.from_local(torch.ones(4, 4), mesh, [Partial(), Shard(0)])
    assert pending.redistribute(mesh, [Partial(), Shard(1)]).placements == (Partial(), Shard(1))
    raises(RuntimeError, "Can not redistribute", pending.redistribute, mesh, [Replicate(), Partial()])
    leaf = distribute_tensor(torch.ones(4), line(), [Partial()]).requires_grad_()
    leaf.redistribute(line(), [Partial()]).backward(DTensor.from_local(torch.ones(4), line(), [Partial()]))
    assert leaf.grad.placements == (Partial(),)
    same(leaf.grad, torch.full((4,), 4.0))
    some = torch.ones(2, requires_grad=dist.get_rank() == 0)
    raises(ValueError, "requires grad", DTensor.from_local, some, line(), [Shard(0)], run_check=True)
    raises(ValueError, "dtypes", DTensor.from_local, some.detach().to(torch.half if dist.get_rank() else torch.float), line(), [Shard(0)], run_check=True)
    raises(RuntimeError, "mixed torch.Tensor and DTensor", lambda: x + torch.ones(4, 4))
    raises(RuntimeError, "different meshes", lambda: x + distribute_tensor(torch.ones(4, 4), mesh["tp"], [Shard(0)]))
    raises(RuntimeError, "only be called once", distribute_module, distribute_module(mlp(), mesh), mesh)
    raises(ValueError, "3 arguments", distribute_module, mlp(), mesh, None, lambda a: a)
    raises(NotImplementedError, "only support nn.Linear", parallelize_module, nn.ReLU(), line(), ColwiseParallel())
    raises(TypeError, "nonsense", dt.zeros, 3, device_mesh=mesh, nonsense=1)
    raises(RuntimeError, "to_local().numpy()", x.numpy)
    torch.matmul(x, x)  # a call that is known already is refused as well
    with ExplicitRedistributionContext():
        raises(RuntimeError, "redistribut", torch.matmul, x, x)
        with ExplicitRedistributionContext(enable=False):
            torch.matmul(x, x)


def styles_can_be_replaced_in_part():
    class Doubling(ColwiseParallel):
        @staticmethod
        def _prepare_input_fn(input_layouts, desired_input_layouts, mod, inputs, device_mesh):
            doubled = (inputs[0] * 2,)
            return ColwiseParallel._prepare_input_fn(input_layouts, desired_input_layouts, mod, doubled, device_mesh)

        def _partition_linear_fn(self, name, module, device_mesh):
            super()._partition_linear_fn(name, module, device_mesh)
            module.seen = name

    class Whole(ParallelStyle):
        def _apply(self, module, device_mesh):
            enter = lambda m, inputs, mesh: DTensor.from_local(inputs[0], mesh, [Replicate()])
            return distribute_module(module, device_mesh, None, enter, lambda m, out, mesh: out.to_local())

    torch.manual_seed(0)
    linear, x = nn.Linear(8, 8, bias=False), torch.ones(2, 8)
    doubled = parallelize_module(copy.deepcopy(linear), line(), Doubling(output_layouts=Replicate()))
    same(doubled(x), linear(x) * 2)
    assert doubled.seen == ""
    same(parallelize_module(copy.deepcopy(linear), line(), Whole())(x), linear(x))


def random_numbers_repeat_and_agree():
    for draw in (dt.rand, dt.randn):
        values = []
        for _ in range(2):
            manual_seed(7, line())
            values.append(draw(8, 4, device_mesh=line(), placements=[Shard(0)]).full_tensor())
        seen = [torch.empty(8, 4) for _ in range(4)]
        dist.all_gather(seen, values[0])
        assert all(torch.equal(value, values[1]) for value in seen) and values[0].unique().numel() == 32


def modules_are_copied_converted_averaged_and_pickled():
    model = tp_mlp(line())
    state = model.state_dict()
    model.load_state_dict(state, assign=True)
    twin = copy.deepcopy(model).double()
    assert twin[0].weight.dtype == torch.float64 and isinstance(twin[0].weight, DTensor)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    same(average.module[0].weight, model[0].weight.full_tensor())
    same(pickle.loads(pickle.dumps(model[0].weight)), model[0].weight.full_tensor())
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 10)).sum()).backward()
    scaler.unscale_(optimizer)
    expected = mlp()
    expected(torch.ones(2, 10)).sum().backward()
    same(model[0].weight.grad, expected[0].weight.grad)
    norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.1, foreach=True) for m in (model, expected)]
    same(norms[0], norms[1])
    scaler.step(optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def parallel_modules_are_sharded_once_more():
    model, expected = tp_mlp(grid()["tp"]), mlp()
    fully_shard(model, mesh=grid()["dp"])
    model(torch.ones(2, 10)).sum().backward()
    expected(torch.ones(2, 10)).sum().backward()
    assert isinstance(model[0].weight, DTensor) and model[0].weight.device_mesh.ndim == 2
    same(model[0].weight.grad, expected[0].weight.grad)


def trained():
    model = tp_mlp(init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def save(folder):
    model, optimizer = trained()
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    states = get_state_dict(model, optimizer)
    assert isinstance(states[0]["0.weight"], DTensor)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    same(whole["0.weight"], model[0].weight.full_tensor())
    dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=folder)
    wholes = [model[0].weight.full_tensor(), optimizer.state[model[0].weight]["exp_avg"].full_tensor()]
    if dist.get_rank() == 0:
        torch.save(wholes, f"{folder}/whole")


def tuples_of_tensors_are_saved(folder):
    x = distribute_tensor(torch.arange(6.0), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])
    dcp.save({"a": {"pair": (1, x), "list": [None, x]}, "step": 3}, checkpoint_id=f"{folder}/tuples")
    read = {"a": {"pair": (0, x * 0), "list": [0, x * 0]}, "step": 0}
    dcp.load(read, checkpoint_id=f"{folder}/tuples")
    assert read["step"] == 3 and read["a"]["pair"][0] == 1 and read["a"]["list"][0] is None
    assert torch.equal(read["a"]["list"][1].full_tensor(), torch.arange(6.0))
    pickled = read["a"]["pair"][1]  # a tuple is one object, that of the first rank, as in PyTorch
    assert type(pickled) is torch.Tensor and torch.equal(pickled.to_local(), torch.arange(3.0))


def load(folder):
    model, optimizer = trained()
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    weight, average = torch.load(f"{folder}/whole")
    same(model[0].weight, weight)
    same(optimizer.state[model[0].weight]["exp_avg"], average)


class Programs(unittest.TestCase):
    def test_four_ranks(self):
        warnings.simplefilter("ignore")
        run_ranks(
            4,
            [
                the_constructor_takes_a_spec,
                tensors_without_data_are_filled_later,
                collectives_are_those_that_pytorch_counts,
                gradients_follow_the_placements_that_are_asked_for,
                shards_lie_where_pytorch_says,
                shards_of_shards_are_strided,
                ranks_off_the_mesh_hold_nothing,
                errors_are_those_of_pytorch,
                styles_can_be_replaced_in_part,
                random_numbers_repeat_and_agree,
                modules_are_copied_converted_averaged_and_pickled,
                parallel_modules_are_sharded_once_more,
            ],
        )

    def test_model_and_optimizer_of_four_ranks_are_read_by_two(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(4, [save], folder)
            run_ranks(2, [load, tuples_of_tensors_are_saved], folder)


if __name__ == "__main__":
    unittest.main()
