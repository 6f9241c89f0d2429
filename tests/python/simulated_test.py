"""Distributed tensors from Python, on simulated ranks."""

import copy
import io
import os
import pickle
import unittest
import unittest.mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import intarsia
import intarsia.checkpoint
from intarsia import DTensor, Partial, Replicate, Shard, distribute_tensor
from intarsia.debug import CommDebugMode, describe, picture
from intarsia.experimental import implicit_replication, local_errors, local_map, register_sharding, strict_rules
from intarsia.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from four_ranks import Simulated
from support import mlp, same


class Distributed(Simulated):
    def cut(self, tensor, *placements):
        mesh = self.mesh if len(placements) == 1 else self.grid
        return distribute_tensor(tensor, mesh, placements)

    def tp_mlp(self):
        return parallelize_module(mlp(), self.mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class ARankThatHasNotJoined(unittest.TestCase):
    def setUp(self):
        variables = unittest.mock.patch.dict(os.environ, RANK="1", WORLD_SIZE="2")
        variables.start()
        self.addCleanup(variables.stop)

    def test_has_no_world(self):
        with self.assertRaises(RuntimeError) as caught:
            intarsia.checkpoint.load("/not/there", {"x": torch.ones(1)})
        self.assertEqual(
            str(caught.exception),
            "[intarsia] torchrun started this process as rank 1 of 2, but there is no process group. Call "
            "torch.distributed.init_process_group first. A process that is no rank of the job, such as a tool that a rank starts, "
            "opens intarsia.simulate(1).",
        )

    def test_may_say_that_it_is_none(self):
        with intarsia.simulate(1) as world:
            self.assertEqual(world.size, 1)
            self.assertIs(intarsia._mesh.current_world(), world)


class Tensors(Distributed):
    def test_a_distributed_tensor_is_an_instance_and_a_plain_one_is_not(self):
        x = self.cut(torch.ones(5, 3), Shard(0))
        self.assertIsInstance(x, DTensor)
        self.assertIsInstance(nn.Parameter(x), DTensor)
        self.assertIsInstance(nn.Parameter(x), nn.Parameter)
        for plain in (torch.ones(2), nn.Parameter(torch.ones(2)), 3, None, x.full_tensor(), x.to_local()):
            self.assertNotIsInstance(plain, DTensor)

    def test_plain_tensors_have_none_of_the_attributes(self):
        for name in ("to_local", "full_tensor", "redistribute", "device_mesh", "placements", "_spec", "_local_tensor"):
            self.assertFalse(hasattr(torch.ones(2), name), name)
            self.assertTrue(hasattr(self.cut(torch.ones(4), Shard(0)), name), name)

    def test_layout_is_read_back(self):
        x = self.cut(torch.ones(5, 3), Shard(-1), Replicate())
        self.assertEqual(x.placements, (Shard(1), Replicate()))
        self.assertIs(x.device_mesh, self.grid)
        self.assertEqual((x._spec.mesh, x._spec.placements), (self.grid, x.placements))
        self.assertEqual(x._spec.tensor_meta.shape, (5, 3))

    def test_every_pair_of_layouts_keeps_the_values(self):
        x = torch.arange(35.0).view(7, 5)
        layouts = [(a, b) for a in (Replicate(), Shard(0), Shard(1)) for b in (Replicate(), Shard(0), Shard(1))]
        for before in layouts:
            for after in layouts:
                moved = self.cut(x, *before).redistribute(placements=after)
                self.assertEqual(moved.placements, after)
                same(moved, x)

    def test_a_slice_of_a_mesh_holds_one_tensor_per_group(self):
        x = distribute_tensor(torch.arange(4.0), self.grid["tp"], [Shard(0)])
        self.assertEqual([shard.tolist() for shard in x.shards], [[0, 1], [2, 3], [0, 1], [2, 3]])

    def test_from_local_and_to_local_share_memory_and_carry_gradients(self):
        local = torch.ones(2, 3, requires_grad=True)
        x = DTensor.from_local(local, self.mesh, [Shard(0)])
        self.assertEqual(x.shape, (8, 3))
        x.to_local().sum().backward()
        same(local.grad, torch.full((2, 3), 1.0))
        (shards,) = [self.cut(torch.zeros(8), Shard(0)).shards]
        y = DTensor.from_local(shards[0], self.mesh, [Replicate()])
        self.assertEqual(y.shape, (2,))

    def test_repr_shows_mesh_placements_and_values(self):
        text = repr(self.cut(torch.arange(3.0), Shard(0)))
        for part in ("DTensor", "DeviceMesh", "Shard(dim=0)", "tensor([2.])"):
            self.assertIn(part, text)
        self.assertIn("Parameter containing", repr(nn.Parameter(self.cut(torch.ones(4), Shard(0)))))

    def test_memory_is_an_error_that_says_what_to_call(self):
        x = self.cut(torch.ones(4), Shard(0))
        for call in (x.numpy, x.data_ptr, x.untyped_storage, x.tolist):
            with self.assertRaisesRegex(RuntimeError, "to_local.*full_tensor"):
                call()
        self.assertEqual(torch.ones(2).numpy().tolist(), [1, 1])

    def test_errors_have_the_types_of_pytorch(self):
        x = self.cut(torch.ones(4, 2), Shard(0))
        self.assertRaises(ValueError, self.cut, torch.ones(2), Shard(0), Shard(0), Shard(0))
        self.assertRaises(IndexError, self.cut, torch.ones(2), Shard(3))
        self.assertRaises(TypeError, distribute_tensor, torch.ones(2), self.mesh, ["S(0)"])
        self.assertRaises(TypeError, distribute_tensor, torch.ones(2), "mesh", [Shard(0)])
        self.assertRaises(RuntimeError, lambda: x + torch.ones(4, 2))
        self.assertRaises(RuntimeError, x.redistribute, placements=[Partial()])
        self.assertRaises(RuntimeError, lambda: x @ x)

    def test_factories_make_shards(self):
        for make in (intarsia.zeros, intarsia.ones, intarsia.empty, intarsia.rand, intarsia.randn):
            for size in ((5, 3), ((5, 3),)):
                x = make(*size, device_mesh=self.mesh, placements=[Shard(0)], dtype=torch.float64, requires_grad=True)
                self.assertEqual((x.shape, x.dtype, x.requires_grad), ((5, 3), torch.float64, True))
                self.assertEqual([len(shard) for shard in x.shards], [2, 2, 1, 0])
        same(intarsia.full((3,), 2.5, device_mesh=self.mesh), torch.full((3,), 2.5))
        same(intarsia.full((3,), True, device_mesh=self.mesh), torch.full((3,), True))

    def test_deepcopy_keeps_layout_gradient_and_class(self):
        x = nn.Parameter(self.cut(torch.ones(5), Shard(0)))
        (x * 2).sum().backward()
        for original in (x, self.cut(torch.arange(5.0), Shard(0))):
            made = copy.deepcopy(original)
            self.assertIs(type(made), type(original))
            self.assertEqual(made.placements, original.placements)
            made.data.zero_()
            self.assertNotEqual(original.sum().item(), 0)
        self.assertEqual(copy.deepcopy(x).requires_grad, True)

    def test_pickle_and_save_keep_layout_and_values(self):
        x = torch.arange(5.0)
        for value in (self.cut(x, Shard(0)), nn.Parameter(self.cut(x, Shard(0)))):
            made = pickle.loads(pickle.dumps(value))
            self.assertEqual((type(made), made.placements), (type(value), value.placements))
            same(made, x)
            file = io.BytesIO()
            torch.save({"x": value}, file)
            file.seek(0)
            same(torch.load(file, weights_only=False)["x"], x)

    def test_reading_values(self):
        x = self.cut(torch.arange(12.0).view(4, 3), Shard(0))
        self.assertEqual((x.sum().item(), float(x.mean()), bool((x >= 0).all()), len(x)), (66, 5.5, True, 4))
        self.assertTrue(torch.equal(x, x.clone()) and torch.allclose(x, x))
        same(x[1:3, 2], torch.arange(12.0).view(4, 3)[1:3, 2])
        self.assertEqual([row.sum().item() for row in x], [3, 12, 21, 30])

    def test_a_custom_function_sees_distributed_tensors(self):
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                return 2 * ctx.saved_tensors[0] * grad

        x = self.cut(torch.arange(5.0), Shard(0)).requires_grad_()
        Square.apply(x).sum().backward()
        same(x.grad, 2 * torch.arange(5.0))


class Training(Distributed):
    MAKERS = {
        "sgd": lambda p, **o: torch.optim.SGD(p, lr=0.1, momentum=0.9, **o),
        "adam": lambda p, **o: torch.optim.Adam(p, lr=0.1, **o),
        "adamw": lambda p, **o: torch.optim.AdamW(p, lr=0.1, **o),
    }

    def train(self, model, optimizer):
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(7, 10)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def test_optimizers_take_the_steps_of_one_device(self):
        for name, make in self.MAKERS.items():
            for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
                plain, cut = mlp(), self.tp_mlp()
                self.train(plain, make(plain.parameters(), **options))
                self.train(cut, make(cut.parameters(), **options))
                for left, right in zip(cut.parameters(), plain.parameters()):
                    same(left, right, rtol=1e-4, atol=1e-5)

    def test_state_dicts_load(self):
        source, target = self.tp_mlp(), self.tp_mlp()
        nn.init.constant_(source[0].weight, 3.0)
        target.load_state_dict(source.state_dict())
        same(target[0].weight, torch.full((16, 10), 3.0))

    def test_checkpointing_gives_the_same_gradients(self):
        plain, x = mlp(), torch.ones(2, 10)
        plain(x).sum().backward()
        for reentrant in (True, False):
            cut = self.tp_mlp()
            checkpoint(cut, x.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
            same(cut[0].weight.grad, plain[0].weight.grad)

    def test_autocast_no_grad_and_inference_mode(self):
        plain, cut, x = mlp(), self.tp_mlp(), torch.ones(2, 10)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(cut(x), plain(x), rtol=0.05, atol=0.05)
        with torch.no_grad():
            self.assertFalse(cut(x).requires_grad)
        with torch.inference_mode():
            same(cut(x), plain(x))

    def test_hooks_run_on_distributed_gradients(self):
        x, seen = self.cut(torch.ones(4), Shard(0)).requires_grad_(), []
        x.register_hook(lambda grad: seen.append(isinstance(grad, DTensor)) or grad * 2)
        x.register_post_accumulate_grad_hook(lambda parameter: seen.append(isinstance(parameter.grad, DTensor)))
        (x * 3).sum().backward()
        same(x.grad, torch.full((4,), 6.0))
        self.assertEqual(seen, [True, True])

    def test_a_module_without_data_gets_it_later(self):
        with torch.device("meta"):
            linear = nn.Linear(8, 8)
        parallelize_module(linear, self.mesh, ColwiseParallel()).to_empty(device="cpu")
        nn.init.ones_(linear.weight)
        same(linear.weight, torch.ones(8, 8))

    def test_dtypes_move_with_the_module(self):
        model = self.tp_mlp().to(torch.float64)
        self.assertIsInstance(model[0].weight, DTensor)
        same(model(torch.ones(1, 10, dtype=torch.float64)), mlp().double()(torch.ones(1, 10, dtype=torch.float64)))


class Parallel(Distributed):
    def test_distribute_module_calls_its_functions(self):
        calls = []
        model = intarsia.distribute_module(
            mlp(),
            self.mesh,
            lambda name, module, mesh: calls.append(name),
            lambda module, inputs, mesh: distribute_tensor(inputs[0], mesh, [Shard(0)]),
            lambda module, outputs, mesh: outputs.full_tensor(),
        )
        self.assertEqual(calls, ["", "0", "1", "2"])
        same(model(torch.ones(5, 10)), mlp()(torch.ones(5, 10)))

    def test_embeddings_and_norms(self):
        table, tokens = nn.Embedding(9, 6), torch.randint(9, (2, 5))
        for style in (ColwiseParallel(output_layouts=Replicate()), RowwiseParallel(input_layouts=Replicate())):
            same(parallelize_module(copy.deepcopy(table), self.mesh, style)(tokens), table(tokens))
        norm, x = nn.LayerNorm(6), torch.randn(2, 8, 6)
        cut = parallelize_module(copy.deepcopy(norm), self.mesh, SequenceParallel())
        same(cut(self.cut(x, Shard(1))), norm(x))

    def test_rowwise_takes_features_that_do_not_divide(self):
        linear, x = nn.Linear(10, 3), torch.randn(4, 10)
        cut = parallelize_module(copy.deepcopy(linear), self.mesh, RowwiseParallel())
        same(cut(self.cut(x, Shard(1)).to_local()), linear(x))

    def test_inputs_and_outputs_are_prepared(self):
        module = nn.Identity()
        plan = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
        parallelize_module(module, self.mesh, plan)
        parallelize_module(
            module, self.mesh, PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
        )
        self.assertEqual(module(torch.ones(2, 4)).shape, (8, 1))

    def test_a_path_without_a_match_and_an_empty_plan_warn(self):
        for plan in ({"nothing.*": ColwiseParallel()}, None):
            with self.assertWarns(UserWarning):
                parallelize_module(mlp(), self.mesh, plan)

    def test_loss_of_cut_classes_gathers_nothing(self):
        logits, target = torch.randn(6, 8), torch.randint(8, (6,))
        cut, plain = self.cut(logits, Shard(1)).requires_grad_(), logits.clone().requires_grad_()
        with loss_parallel(), CommDebugMode() as comms:
            loss = F.cross_entropy(cut, self.cut(target, Replicate()))
            loss.backward()
        expected = F.cross_entropy(plain, target)
        expected.backward()
        same(loss, expected)
        same(cut.grad, plain.grad)
        self.assertEqual((cut.grad.placements, "gather" in comms.text()), ((Shard(1),), False))


class Debug(Distributed):
    def test_collectives_are_counted_under_pytorchs_names_by_module(self):
        model = self.tp_mlp()
        with CommDebugMode() as comms:
            model(torch.ones(2, 10))
        reduce = torch.ops.c10d_functional.all_reduce
        self.assertEqual(dict(comms.get_comm_counts()), {reduce: 1})
        self.assertEqual(comms.comm_module_counts["Sequential.2"]["forward"][reduce], 1)
        self.assertEqual(comms.text(), "all_reduce(sum) tp 120B\n")
        self.assertIn("redistribute", comms.table())
        self.assertIn("Sequential", comms.generate_comm_debug_tracing_table(noise_level=2))

    def test_pictures_and_descriptions(self):
        self.assertIn("│ 0", picture(self.cut(torch.ones(5, 6), Shard(0), Shard(1))))
        self.assertIn("0.weight", describe(self.tp_mlp()))


class Experimental(Distributed):
    def test_local_map_runs_on_shards(self):
        a, b = torch.randn(4, 8), torch.randn(8, 3)
        product = local_map(torch.mm, out_placements=[Partial()], in_placements=([Shard(1)], [Shard(0)]))
        same(product(self.cut(a, Shard(1)), self.cut(b, Shard(0))), a @ b)
        with self.assertRaisesRegex(ValueError, "mismatched placements"):
            product(self.cut(a, Shard(0)), self.cut(b, Shard(0)))

    def test_plain_tensors_are_replicated_on_request(self):
        x = self.cut(torch.ones(4, 4), Shard(0))
        with implicit_replication():
            same(x + torch.ones(4, 4), torch.full((4, 4), 2.0))
        self.assertRaises(RuntimeError, lambda: x + torch.ones(4, 4))

    def test_an_op_without_a_rule_is_an_error_on_request(self):
        x = self.cut(torch.rand(4, 4), Shard(0))
        same(torch.linalg.lstsq(x, x).solution, torch.eye(4))
        with strict_rules(), self.assertRaisesRegex(NotImplementedError, "has no sharding rule"):
            torch.linalg.lstsq(x, x)

    def test_a_wrong_index_stays_with_its_rank_on_request(self):
        x, wrong = self.cut(torch.rand(4, 4), Replicate()), self.cut(torch.tensor([0, 1, 2, 9]), Shard(0))
        with self.assertRaisesRegex(IndexError, "out of range") as told:
            torch.nn.functional.embedding(wrong, x)
        self.assertNotIn("would go on", str(told.exception))
        with local_errors(), self.assertRaisesRegex(IndexError, "would go on"):
            torch.nn.functional.embedding(wrong, x)

    def test_an_op_of_ones_own_is_split_as_registered(self):
        @torch.library.custom_op("intarsia_test::times", mutates_args=())
        def times(x: torch.Tensor, k: int) -> torch.Tensor:
            self.assertNotIsInstance(x, DTensor)  # it gets shards
            return x * k

        times.register_fake(lambda x, k: torch.empty_like(x))

        @register_sharding(torch.ops.intarsia_test.times.default)
        def rows(x, k):
            return [([Shard(d)], [Shard(d), None]) for d in range(x.ndim)]

        out = times(self.cut(torch.arange(8.0), Shard(0)), 3)
        self.assertEqual(out.placements, (Shard(0),))
        same(out, torch.arange(8.0) * 3)


if __name__ == "__main__":
    unittest.main()
