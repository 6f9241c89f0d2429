"""What programs do with tensors and modules besides ops: each on distributed tensors as on plain ones."""

import copy
import io
import os
import pickle
import subprocess
import sys
import textwrap
import unittest
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from intarsia import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, simulate
from intarsia.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from support import mlp, same

LAYOUTS = (Shard(0), Shard(1), Replicate())
INITS = {
    "uniform_": {},
    "normal_": {"mean": 1.0, "std": 2.0},
    "trunc_normal_": {"std": 3.0, "a": -1.0, "b": 2.0},
    "constant_": {"val": 2.0},
    "ones_": {},
    "zeros_": {},
    "eye_": {},
    "xavier_uniform_": {},
    "xavier_normal_": {},
    "kaiming_uniform_": {"a": 1.0},
    "kaiming_normal_": {"mode": "fan_out"},
    "orthogonal_": {"gain": 2.0},
    "sparse_": {"sparsity": 0.3},
}


def through_memory(save, load):
    def copied(value):
        file = io.BytesIO()
        save(value, file)
        file.seek(0)
        return load(file)

    return copied


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "clone": lambda x: x.detach().clone(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": through_memory(torch.save, lambda file: torch.load(file, weights_only=False)),
    "save in a dict": lambda x: through_memory(torch.save, lambda f: torch.load(f, weights_only=False))({"x": [x]})["x"][0],
}


class Everyday(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.enterContext(simulate(4))
        self.mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

    def cut(self, tensor, placement=Shard(0)):
        return distribute_tensor(tensor, self.mesh, [placement])

    def tp_mlp(self):
        return parallelize_module(mlp(), self.mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Inits(Everyday):
    def both(self, name, shape, options, placement):
        made = []
        for tensor in (torch.empty(shape), self.cut(torch.empty(shape), placement)):
            torch.manual_seed(3)
            made.append(getattr(nn.init, name)(tensor, **options))
            self.assertIs(made[-1], tensor)
        return made

    def test_fill_with_the_numbers_of_one_device(self):
        for name, options in INITS.items():
            for placement in LAYOUTS:
                with self.subTest(name, placement=placement):
                    plain, cut = self.both(name, (7, 6), options, placement)
                    same(cut, plain, rtol=0, atol=0)
                    self.assertEqual(cut.placements, (placement,))

    def test_dirac_keeps_channels(self):
        for placement in LAYOUTS:
            for groups in (1, 2):
                same(*reversed(self.both("dirac_", (8, 3, 5), {"groups": groups}, placement)), rtol=0, atol=0)

    def test_every_init_of_pytorch_is_here(self):
        offered = {name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
        self.assertEqual(offered, {*INITS, "dirac_"})

    def test_parameters_stay_parameters(self):
        weight = self.tp_mlp()[0].weight
        for name in ("eye_", "sparse_", "orthogonal_"):
            self.assertIs(getattr(nn.init, name)(weight, **INITS[name]), weight)
            self.assertTrue(weight.requires_grad and weight.is_leaf and isinstance(weight, DTensor))


class Copies(Everyday):
    def test_keep_values_layout_and_class(self):
        whole = torch.arange(10.0).view(5, 2)
        for name, make in COPIES.items():
            for x in (self.cut(whole), nn.Parameter(self.cut(whole, Shard(1))), nn.Parameter(self.cut(whole), False)):
                with self.subTest(name, x=type(x)):
                    made = make(x)
                    self.assertEqual((made.placements, made.device_mesh), (x.placements, x.device_mesh))
                    self.assertTrue(name == "clone" or (type(made), made.requires_grad) == (type(x), x.requires_grad))
                    same(made, whole)

    def test_of_modules_and_optimizers_go_on_alike(self):
        model = self.tp_mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.ones(2, 10)).sum().backward()
        optimizer.step()
        twin = copy.deepcopy(model)
        other = torch.optim.AdamW(twin.parameters(), lr=0.1)
        other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
        for m, o in ((model, optimizer), (twin, other)):
            o.zero_grad()
            m(torch.full((2, 10), 2.0)).sum().backward()
            o.step()
        for left, right in zip(model.parameters(), twin.parameters()):
            self.assertIsNot(left, right)
            same(left, right.full_tensor(), rtol=0, atol=0)

    def test_state_dicts_are_read_by_names_strictly(self):
        source, target = self.tp_mlp(), self.tp_mlp()
        nn.init.constant_(source[2].weight, 3.0)
        target.load_state_dict(source.state_dict())
        same(target[2].weight, torch.full((10, 16), 3.0))
        state = source.state_dict()
        del state["0.bias"]
        self.assertRaisesRegex(RuntimeError, "Missing key.*0.bias", target.load_state_dict, state)
        plain = {name: value.full_tensor() for name, value in source.state_dict().items()}
        mlp().load_state_dict(plain)


class Reading(Everyday):
    def test_of_memory_says_what_to_call(self):
        x = self.cut(torch.ones(4))
        for name in ("numpy", "data_ptr", "tolist", "storage", "untyped_storage", "__array__"):
            with self.assertRaisesRegex(RuntimeError, rf"\[{name}\].*x.to_local\(\).{name}\(\).*x.full_tensor\(\).{name}\(\)"):
                getattr(x, name)()

    def test_batches_of_a_loader_are_distributed(self):
        loader = DataLoader(torch.arange(12.0).view(6, 2), batch_size=3, pin_memory=torch.cuda.is_available())
        batches = [self.cut(batch) for batch in loader]
        same(torch.cat(batches), torch.arange(12.0).view(6, 2))
        self.assertFalse(batches[0].is_pinned())


class Modules(Everyday):
    def test_hooks_see_distributed_tensors_and_may_change_them(self):
        model, seen = self.tp_mlp(), []
        note = lambda kind: lambda *args: seen.append((kind, isinstance(args[-1][0], torch.Tensor)))
        model[1].register_forward_pre_hook(note("before"))
        model[1].register_forward_hook(lambda module, args, out: seen.append(("after", True)) or out * 2)
        model[1].register_full_backward_hook(note("backward"))
        model.register_state_dict_post_hook(lambda module, state, *_: seen.append(("state", isinstance(state["0.weight"], DTensor))))
        model(torch.ones(2, 10)).sum().backward()
        model.state_dict()
        self.assertEqual(seen, [("before", True), ("after", True), ("backward", True), ("state", True)])
        plain = mlp()
        plain[2](plain[1](plain[0](torch.ones(2, 10))) * 2).sum().backward()
        same(model[0].weight.grad, plain[0].weight.grad)

    def test_gradients_are_clipped_by_the_global_norm_and_by_value(self):
        for clip in (
            lambda p: nn.utils.clip_grad_norm_(p, 0.1, foreach=True),
            lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=float("inf"), foreach=False),
            lambda p: nn.utils.clip_grad_value_(p, 0.01),
            lambda p: nn.utils.get_total_norm([q.grad for q in p]),
        ):
            plain, model = mlp(), self.tp_mlp()
            norms = []
            for m in (plain, model):
                m(torch.ones(2, 10)).square().sum().backward()
                norms.append(clip(list(m.parameters())))
            if norms[0] is not None:
                same(norms[1], norms[0])
            for left, right in zip(model.parameters(), plain.parameters()):
                same(left.grad, right.grad)

    def test_modes_mean_what_they_mean_for_plain_tensors(self):
        plain, model, x = mlp(), self.tp_mlp(), torch.ones(2, 10)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outs = [m(x) for m in (plain, model)]
            self.assertEqual(outs[0].dtype, outs[1].dtype)
        for m, out in zip((plain, model), outs):
            out.float().sum().backward()
        self.assertEqual(model[0].weight.grad.dtype, torch.float32)
        same(model[0].weight.grad, plain[0].weight.grad, rtol=0.05, atol=0.05)
        with torch.no_grad():
            self.assertFalse(model[0].weight.mul(2).requires_grad)
            model[0].weight.mul_(2)
        self.assertTrue(model[0].weight.requires_grad)
        with torch.inference_mode():
            y = self.cut(torch.ones(4)) * 2
            self.assertTrue(y.is_inference() and not y.requires_grad)
        with torch.enable_grad():
            self.assertTrue(model[0].weight.mul(2).requires_grad)

    def test_checkpointed_parts_run_again_in_backward(self):
        plain, model, runs = mlp(), self.tp_mlp(), []
        model[1].register_forward_hook(lambda *_: runs.append(1))
        checkpoint(model, torch.ones(2, 10), use_reentrant=False).sum().backward()
        plain(torch.ones(2, 10)).sum().backward()
        same(model[2].weight.grad, plain[2].weight.grad)
        self.assertEqual(len(runs), 2)


class Compile(Everyday):
    def test_runs_the_code_as_it_stands(self):
        x = torch.randn(6, 5)
        f = torch.compile(lambda t: (t @ t.t()).relu().sum())
        cut, plain = self.cut(x).requires_grad_(), x.clone().requires_grad_()
        out = f(cut)
        out.backward()
        (plain @ plain.t()).relu().sum().backward()
        same(cut.grad, plain.grad)

    def test_of_a_module_gives_the_numbers_of_the_module(self):
        model, x = torch.compile(self.tp_mlp(), backend="eager"), torch.randn(3, 10)
        for _ in range(2):
            same(model(x), mlp()(x))

    def test_of_a_full_graph_is_an_error_that_says_so(self):
        with self.assertRaisesRegex(Exception, "distributed tensors of Intarsia are not traced"):
            torch.compile(lambda t: t + 1, fullgraph=True, backend="eager")(self.cut(torch.ones(4)))


class Words(unittest.TestCase):
    def run_program(self, text):
        command = [sys.executable, "-c", textwrap.dedent(text)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, env=dict(os.environ))

    def test_an_error_in_a_simulation_is_told_once_with_its_world(self):
        done = self.run_program(
            """
            from intarsia import simulate
            for _ in range(2):
                with simulate(2): pass
            with simulate(4), simulate(2):
                raise ValueError("no")
            """
        )
        self.assertNotIn("[rank", done.stderr)
        self.assertEqual(done.stderr.splitlines()[-2:], ["ValueError: no", "This process plays a simulation of 2 ranks: [0, 1]."])

    def test_code_that_is_not_compiled_is_named_once(self):
        done = self.run_program(
            """
            import torch
            from intarsia import *
            with simulate(2):
                x = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
                for k in range(3):
                    assert torch.compile(lambda t: (t * k).sum(), backend="eager")(x).item() == 4 * k
            """
        )
        self.assertEqual((done.returncode, done.stderr.count("the code around them runs without compilation")), (0, 1), done.stderr)

    def test_numpy_is_not_needed(self):
        done = self.run_program(
            """
            import sys, warnings
            sys.modules["numpy"] = None
            warnings.simplefilter("ignore")
            import torch, intarsia, intarsia.debug
            from intarsia import *
            intarsia.install()
            from torch.distributed.tensor.debug import CommDebugMode, visualize_sharding
            with simulate(2), CommDebugMode() as comms:
                x = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
                x.full_tensor()
                visualize_sharding(x)
            assert comms.get_total_counts() == 2, comms.get_comm_counts()
            """
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("│ 0", done.stdout)


if __name__ == "__main__":
    unittest.main()
