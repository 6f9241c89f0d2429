"""Every parameter of every public function of torch.distributed.tensor, under the drop-in: it has an effect, or is an error."""

import contextlib
import copy
import importlib
import inspect
import io
import os
import tempfile
import unittest
import warnings

import torch
import torch.distributed.tensor  # before installing: these are PyTorch's own
import torch.distributed.tensor.debug
import torch.distributed.tensor.experimental
import torch.distributed.tensor.parallel
from torch import nn

import intarsia

TENSOR = "torch.distributed.tensor"
MODULES = ("", ".parallel", ".debug", ".experimental")
PYTORCHS = ("DeviceMesh", "init_device_mesh", "Shard", "Replicate", "Partial", "Placement", "ParallelStyle", "context_parallel")


def public_parameters():
    """(function, parameter) for everything that the modules offer and that is replaced."""
    found = set()
    for path in MODULES:
        module = importlib.import_module(TENSOR + path)
        for name in (name for name in module.__all__ if name not in PYTORCHS):
            value = getattr(module, name)
            methods = {name: value} if not inspect.isclass(value) else {
                f"{name}.{key}": getattr(value, key) for key in vars(value) if key == "__init__" or not key.startswith("_")
            }
            for key, function in methods.items():
                if inspect.isfunction(function):
                    found |= {(key, parameter) for parameter in inspect.signature(function).parameters if parameter != "self"}
    return found


WANTED = public_parameters() - {("DTensor.__init__", "args"), ("DTensor.__init__", "kwargs")}
PROOFS: dict = {}

intarsia.install()

from torch.distributed.tensor import (  # noqa: E402
    DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh,
)
from torch.distributed.tensor.debug import CommDebugMode, visualize_sharding  # noqa: E402
from torch.distributed.tensor.experimental import local_map, register_sharding  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput, RowwiseParallel, SequenceParallel,
    parallelize_module,
)


def proves(function, *parameters):
    """Marks a test as what shows that parameters count."""

    def mark(test):
        for parameter in parameters:
            PROOFS[function, parameter] = test.__name__
        return test

    return mark


class Parameters(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(intarsia.simulate(4))
        self.mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        self.grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        self.rank = self.mesh.get_local_rank()

    def cut(self, *shape):
        return distribute_tensor(torch.arange(float(torch.Size(shape).numel())).view(shape), self.mesh, [Shard(0)])

    def values(self, tensor):
        return [value.tolist() for value in tensor._local_tensors.values()]

    def test_the_table_is_complete(self):
        self.assertEqual(sorted(WANTED - PROOFS.keys()), [])
        self.assertEqual(sorted(PROOFS.keys() - WANTED), [])

    @proves("DTensor.from_local", "local_tensor", "device_mesh", "placements")
    def test_from_local_lays_out(self):
        x = DTensor.from_local(torch.ones(1) * self.rank, self.grid, [Shard(0), Replicate()])
        self.assertEqual((x.device_mesh, x.placements, x.shape), (self.grid, (Shard(0), Replicate()), (2,)))
        self.assertEqual(self.values(x.to_local()), [[0], [1], [2], [3]])
        with self.assertRaisesRegex(ValueError, "Mixed Partial"):
            DTensor.from_local(torch.ones(1), self.grid, [Partial("sum"), Partial("max")])

    @proves("DTensor.from_local", "run_check")
    def test_run_check_broadcasts_replicas(self):
        for check, expected in ((True, [[0], [0], [0], [0]]), (False, [[0], [1], [2], [3]])):
            x = DTensor.from_local(torch.ones(1) * self.rank, self.mesh, [Replicate()], run_check=check)
            self.assertEqual(self.values(x.to_local()), expected)

    @proves("DTensor.from_local", "shape", "stride")
    def test_shape_and_stride_of_uneven_shards(self):
        local = self.cut(6).to_local()
        x = DTensor.from_local(local, self.mesh, [Shard(0)], shape=torch.Size([6]), stride=(1,))
        self.assertEqual((x.shape, x.full_tensor().tolist()), ((6,), [0, 1, 2, 3, 4, 5]))
        with self.assertRaisesRegex(RuntimeError, "both shape and stride"):
            DTensor.from_local(local, self.mesh, [Shard(0)], shape=torch.Size([6]))

    @proves("DTensor.from_local", "grad_placements")
    def test_from_local_lays_the_gradient_out(self):
        gradient = torch.tensor([4.0, 8.0])
        for back, expected in (
            (None, [[4, 8]] * 4),
            ([Replicate()], [[4, 8]] * 4),
            ([Partial()], [[1, 2]] * 4),
            ([Partial("avg")], [[4, 8]] * 4),
        ):
            w = torch.ones(2, requires_grad=True)
            x = DTensor.from_local(w, self.mesh, [Replicate()], grad_placements=back)
            x.backward(distribute_tensor(gradient, self.mesh, [Replicate()]))
            self.assertEqual(self.values(w.grad) if hasattr(w.grad, "_ranks") else [w.grad.tolist()] * 4, expected)

    @proves("DTensor.from_local", "grad_placements")
    @proves("DTensor.to_local", "grad_placements")
    def test_pending_gradients_stay_apart(self):
        for back, expected in (([Partial()], [[1], [2], [3], [4]]), (None, [[10]] * 4)):
            w = torch.ones(1, requires_grad=True)
            x = DTensor.from_local(w, self.mesh, [Replicate()], grad_placements=back)
            (x.to_local(grad_placements=[Partial()]) * (self.rank + 1)).sum().backward()
            self.assertEqual(self.values(w.grad), expected)

    @proves("DTensor.full_tensor", "grad_placements")
    def test_full_tensor_takes_the_gradient_as_told(self):
        for back, expected in (([Partial()], 4), ([Replicate()], 1), (None, 1)):
            x = self.cut(4).requires_grad_()
            x.full_tensor(grad_placements=back).sum().backward()
            self.assertEqual(x.grad.full_tensor().tolist(), [expected] * 4)

    @proves("DTensor.redistribute", "device_mesh", "placements", "async_op")
    def test_redistribute_moves(self):
        x = self.cut(4, 4)
        for options in ({}, {"async_op": True}, {"device_mesh": self.mesh}):
            y = x.redistribute(placements=[Shard(1)], **options)
            self.assertEqual((y.placements, y.to_local()._local_tensors[1].flatten().tolist()), ((Shard(1),), [1, 5, 9, 13]))
        y = x.redistribute(self.grid, [Shard(0), Shard(1)])
        self.assertEqual((y.device_mesh, y.to_local()._local_tensors[1].flatten().tolist()), (self.grid, [2, 3, 6, 7]))

    @proves("DTensor.redistribute", "forward_dtype", "backward_dtype")
    def test_data_and_gradient_travel_in_their_dtypes(self):
        third = torch.tensor([1 / 3])
        coarse = third.bfloat16().float().item()
        for forward, backward, value, gradient in (
            (None, None, third.item(), third.item()),
            (torch.bfloat16, None, coarse, coarse),
            (torch.bfloat16, torch.float64, coarse, coarse),
            (None, torch.bfloat16, third.item(), coarse),
        ):
            x = DTensor.from_local(third, self.mesh, [Replicate()]).requires_grad_()
            y = x.redistribute(placements=[Shard(0)], forward_dtype=forward, backward_dtype=backward)
            self.assertEqual((y.dtype, y.full_tensor().item()), (forward or torch.float32, value))
            y.backward(distribute_tensor(third.to(y.dtype), self.mesh, [Shard(0)]))
            self.assertEqual((x.grad.dtype, x.grad.full_tensor().item()), (torch.float32, gradient))

    @proves("DTensor.redistribute", "backward_dtype")
    def test_without_a_dtype_the_gradient_is_summed_in_that_of_the_tensor(self):
        # 256 + 1 is 256 in bfloat16
        x = distribute_tensor(torch.zeros(1), self.mesh, [Replicate()]).requires_grad_()
        for back, expected in ((None, 259.0), (torch.bfloat16, 256.0)):
            x.grad = None
            y = x.redistribute(placements=[Replicate()], forward_dtype=torch.bfloat16, backward_dtype=back)
            terms = torch.where(torch.arange(1) == self.rank, 256.0, 1.0).bfloat16()
            y.backward(DTensor.from_local(terms, self.mesh, [Partial()]))
            self.assertEqual(x.grad.full_tensor().item(), expected)

    @proves("distribute_tensor", "tensor", "device_mesh", "placements", "src_data_rank")
    def test_distribute_tensor_deals_out(self):
        x = torch.ones(4) * self.rank
        for source, expected in ((0, [0] * 4), (2, [2] * 4), (None, [0, 1, 2, 3])):
            dealt = distribute_tensor(x, self.mesh, [Shard(0)], src_data_rank=source)
            self.assertEqual(dealt.full_tensor().tolist(), expected)

    @proves("distribute_module", "module", "device_mesh", "partition_fn", "input_fn", "output_fn")
    def test_distribute_module_calls_its_functions(self):
        def partition(name, module, mesh):
            module.weight = nn.Parameter(distribute_tensor(module.weight.detach(), mesh, [Shard(0)]))

        model = distribute_module(
            nn.Linear(2, 4),
            self.mesh,
            partition,
            lambda module, inputs, mesh: (distribute_tensor(inputs[0] * 2, mesh, [Replicate()]),),
            lambda module, output, mesh: output.full_tensor(),
        )
        expected = nn.functional.linear(torch.full((1, 2), 2.0), model.weight.full_tensor(), model.bias.full_tensor())
        torch.testing.assert_close(model(torch.ones(1, 2)), expected)
        self.assertEqual((model.weight.placements, model.bias.placements), ((Shard(0),), (Replicate(),)))

    @proves("full", "fill_value", "size", "dtype", "layout", "requires_grad", "device_mesh", "placements")
    @proves("zeros", "size", "dtype", "layout", "requires_grad", "device_mesh", "placements")
    @proves("ones", "size", "dtype", "layout", "requires_grad", "device_mesh", "placements")
    @proves("empty", "size", "dtype", "layout", "requires_grad", "device_mesh", "placements")
    @proves("rand", "size", "dtype", "layout", "requires_grad", "device_mesh", "placements")
    @proves("randn", "size", "dtype", "layout", "requires_grad", "device_mesh", "placements")
    def test_factories_take_their_options(self):
        for name in ("full", "zeros", "ones", "empty", "rand", "randn"):
            make = getattr(torch.distributed.tensor, name)
            args = ((3, 2), 7) if name == "full" else (3, 2)
            options = {"dtype": torch.float64, "requires_grad": True, "device_mesh": self.mesh, "placements": [Shard(0)]}
            x = make(*args, **options)
            self.assertEqual((x.shape, x.dtype, x.requires_grad, x.placements), ((3, 2), torch.float64, True, (Shard(0),)))
            self.assertEqual(x.device_mesh, self.mesh)
            with self.assertRaisesRegex(NotImplementedError, "layout"):
                make(*args, layout=torch.sparse_coo, **options)
        self.assertEqual(torch.distributed.tensor.full((2,), 7, device_mesh=self.mesh).full_tensor().tolist(), [7, 7])

    @proves("parallelize_module", "module", "device_mesh", "parallelize_plan")
    @proves("ColwiseParallel.__init__", "input_layouts", "output_layouts", "use_local_output")
    @proves("RowwiseParallel.__init__", "input_layouts", "output_layouts", "use_local_output")
    @proves("SequenceParallel.__init__", "sequence_dim", "use_local_output")
    def test_styles_take_their_layouts(self):
        x = torch.arange(32.0).view(4, 8) / 32
        table = [
            (nn.Linear(8, 4), ColwiseParallel, {"input_layouts": Shard(0), "output_layouts": Replicate()}, Shard(0)),
            (nn.Linear(8, 4), RowwiseParallel, {"input_layouts": Shard(1), "output_layouts": Shard(0)}, Shard(1)),
            (nn.LayerNorm(8), SequenceParallel, {"sequence_dim": 0}, Shard(0)),
        ]
        for module, style, options, given in table:
            for local in (True, False):
                plan = {"0": style(use_local_output=local, **options)}
                model = parallelize_module(nn.Sequential(copy.deepcopy(module)), self.mesh, plan)
                y = model(distribute_tensor(x, self.mesh, [given]).to_local())
                wanted = options.get("output_layouts", Shard(0))
                self.assertEqual(isinstance(y, DTensor), not local)
                y = DTensor.from_local(y, self.mesh, [wanted]) if local else y
                self.assertEqual(y.placements, (wanted,))
                torch.testing.assert_close(y.full_tensor(), module(x))

    @proves("parallelize_module", "src_data_rank")
    def test_parameters_are_those_of_the_source(self):
        for source, expected in ((0, [1, 1, 1, 1]), (2, [3, 3, 3, 3]), (None, [1, 2, 3, 4])):
            model = nn.Linear(2, 4, bias=False)
            with torch.no_grad():
                model.weight.copy_(torch.ones(4, 2) * (self.rank + 1))
            parallelize_module(model, self.mesh, ColwiseParallel(), src_data_rank=source)
            self.assertEqual(model.weight.full_tensor()[:, 0].tolist(), expected)

    @proves("PrepareModuleInput.__init__", "input_layouts", "desired_input_layouts", "input_kwarg_layouts",
            "desired_input_kwarg_layouts", "use_local_output")
    @proves("PrepareModuleOutput.__init__", "output_layouts", "desired_output_layouts", "use_local_output")
    @proves("PrepareModuleInputOutput.__init__", "input_layouts", "desired_input_layouts", "input_kwarg_layouts",
            "desired_input_kwarg_layouts", "use_local_input", "output_layouts", "desired_output_layouts", "use_local_output")
    def test_prepared_modules_see_what_they_asked_for(self):
        class Adds(nn.Module):
            def forward(self, x, *, y):
                self.seen = [getattr(value, "placements", None) for value in (x, y)]
                return x + y

        inputs = {
            "input_layouts": (Shard(0),), "desired_input_layouts": (Replicate(),),
            "input_kwarg_layouts": {"y": Shard(0)}, "desired_input_kwarg_layouts": {"y": Replicate()},
        }
        outputs = {"output_layouts": (Replicate(),), "desired_output_layouts": (Shard(0),)}
        local = self.cut(4).to_local()
        for local_input in (False, True):
            kind = None if local_input else (Replicate(),)
            both = PrepareModuleInputOutput(**inputs, **outputs, use_local_input=local_input, use_local_output=False)
            alone = parallelize_module(Adds(), self.mesh, PrepareModuleInput(**inputs, use_local_output=local_input))
            adds = parallelize_module(Adds(), self.mesh, both)
            out = adds(local, y=local)
            alone(local, y=local)
            self.assertEqual((adds.seen, alone.seen), ([kind] * 2, [kind] * 2))
            self.assertEqual((out.placements, out.full_tensor().tolist()), ((Shard(0),), [0, 2, 4, 6]))
        for use_local in (False, True):
            out = parallelize_module(nn.Identity(), self.mesh, PrepareModuleOutput(**outputs, use_local_output=use_local))(torch.ones(4))
            self.assertEqual(getattr(out, "placements", None), None if use_local else (Shard(0),))

    @proves("local_map", "func", "out_placements", "in_placements", "in_grad_placements", "device_mesh", "redistribute_inputs")
    def test_local_map_takes_its_layouts(self):
        x = self.cut(4).requires_grad_()
        options = {"out_placements": [Replicate()], "in_placements": ([Replicate()],), "device_mesh": self.mesh}
        twice = local_map(lambda t: t * 2, redistribute_inputs=True, **options)
        self.assertEqual((twice(x).placements, twice(x).full_tensor().tolist()), ((Replicate(),), [0, 2, 4, 6]))
        with self.assertRaisesRegex(ValueError, "redistribute_inputs"):
            local_map(lambda t: t * 2, **options)(x)
        whole = x.redistribute(placements=[Replicate()])
        for back, expected in ((([Partial()],), 8), (None, 2)):
            x.grad = None
            local_map(lambda t: t * 2, in_grad_placements=back, **options)(x.redistribute(placements=[Replicate()])).sum().backward()
            self.assertEqual(x.grad.full_tensor().tolist(), [expected] * 4)
        self.assertEqual(whole.placements, (Replicate(),))

    @proves("register_sharding", "op")
    def test_register_sharding_adds_a_rule(self):
        @register_sharding(torch.ops.aten.cummax.default)
        def rows(x, dim):
            return [([Replicate(), Replicate()], [Replicate(), None])]

        self.assertEqual(torch.cummax(self.cut(4), 0)[0].placements, (Replicate(),))

    @proves("visualize_sharding", "dtensor", "header", "use_rich")
    @proves("CommDebugMode.generate_json_dump", "file_name", "noise_level")
    @proves("CommDebugMode.log_comm_debug_tracing_table_to_file", "file_name", "noise_level")
    @proves("CommDebugMode.generate_comm_debug_tracing_table", "noise_level")
    def test_reports_take_their_options(self):
        shown = []
        for options in ({}, {"header": "the header"}, {"use_rich": True}):
            with contextlib.redirect_stdout(io.StringIO()) as text:
                visualize_sharding(self.cut(4), **options)
            shown.append(text.getvalue())
        self.assertEqual(shown[1], "the header\n" + shown[0])
        self.assertNotEqual(shown[2], shown[0])
        with CommDebugMode() as comms:
            model = nn.Linear(2, 2)
            model(torch.ones(1, 2))
            self.cut(4).full_tensor()
        tables = [comms.generate_comm_debug_tracing_table(noise_level=level) for level in (0, 3)]
        self.assertNotEqual(*tables)
        with tempfile.TemporaryDirectory() as folder:
            for level in (0, 3):
                names = [os.path.join(folder, f"{level}.{kind}") for kind in ("json", "txt")]
                comms.generate_json_dump(names[0], noise_level=level)
                comms.log_comm_debug_tracing_table_to_file(names[1], noise_level=level)
            texts = [[open(os.path.join(folder, f"{level}.{kind}")).read() for level in (0, 3)] for kind in ("json", "txt")]
        for low, high in texts:
            self.assertNotEqual(low, high)


if __name__ == "__main__":
    unittest.main()
