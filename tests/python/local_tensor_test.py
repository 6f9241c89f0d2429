"""LocalTensor and LocalTensorMode by PyTorch's names, in the way its own programs use them."""

import copy
import io
import pickle
import unittest
import warnings

import torch
import torch.distributed as dist

import intarsia

intarsia.install()

from torch.distributed._local_tensor import (  # noqa: E402
    LocalIntNode,
    LocalRunnerMode,
    LocalTensor,
    LocalTensorMode,
    enabled_local_tensor_mode,
    local_tensor_mode,
    maybe_disable_local_tensor_mode,
    maybe_run_for_local_tensor,
    rank_map,
    tensor_map,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402


class Local(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        self.addCleanup(dist.destroy_process_group)

    def test_values_have_their_names(self):
        x = LocalTensor({0: torch.ones(2), 1: torch.zeros(2)})
        self.assertIsInstance(x, LocalTensor)
        self.assertEqual((x._ranks, x._local_tensor_1.tolist()), ({0, 1}, [0, 0]))
        names, spec = x.__tensor_flatten__()
        again = LocalTensor.__tensor_unflatten__({name: getattr(x, name) for name in names}, spec, x.size(), x.stride())
        self.assertTrue(torch.equal(again._local_tensors[0], torch.ones(2)))
        for name in ("_ranks", "_local_tensors", "_local_tensor_1", "reconcile", "__tensor_flatten__"):
            self.assertFalse(hasattr(torch.ones(2), name), name)
        self.assertFalse(hasattr(x, "_local_tensor_3"))

    def test_copies_and_files_keep_every_value(self):
        x = LocalTensor({rank: torch.full((rank + 1,), float(rank)) for rank in range(4)})
        file = io.BytesIO()
        torch.save({"x": x}, file)
        file.seek(0)
        for again in (copy.deepcopy(x), torch.load(file, weights_only=True)["x"], pickle.loads(pickle.dumps(x))):
            self.assertEqual([v.tolist() for v in again._local_tensors.values()], [v.tolist() for v in x._local_tensors.values()])
            again._local_tensors[3].fill_(9)
        self.assertEqual(x._local_tensor_3.tolist(), [3, 3, 3, 3])

    def test_what_is_the_same_on_all_ranks_has_their_names_in_the_mode(self):
        with LocalTensorMode(4):
            whole = distribute_tensor(torch.arange(6.0), init_device_mesh("cpu", (4,)), [Shard(0)]).full_tensor()
            self.assertEqual((whole._ranks, whole._local_tensor_2.tolist()), ({0, 1, 2, 3}, [0, 1, 2, 3, 4, 5]))
            self.assertEqual(whole.reconcile().tolist(), [0, 1, 2, 3, 4, 5])
        self.assertFalse(hasattr(whole, "_local_tensors"))

    def test_what_can_not_be_one_tensor_is_an_error(self):
        for values, error, text in (
            ({}, ValueError, "cannot be empty"),
            ({0: torch.ones(1), 1: torch.ones(1, dtype=torch.int)}, AssertionError, "same dtype"),
            ({0: torch.ones(1, requires_grad=True)}, AssertionError, "require grad"),
            ({1: torch.ones(1)}, NotImplementedError, "from 0"),
        ):
            with self.assertRaisesRegex(error, text):
                LocalTensor(values)

    def test_functions_that_take_turns_are_an_error(self):
        with self.assertRaisesRegex(NotImplementedError, "lockstep.*call send before recv"):
            LocalRunnerMode(2, 2, print)

    def test_the_innermost_mode_is_known(self):
        self.assertIsNone(local_tensor_mode())
        with LocalTensorMode(4) as mode:
            self.assertIs(enabled_local_tensor_mode(), mode)
            with maybe_disable_local_tensor_mode():
                self.assertIsNone(enabled_local_tensor_mode())
                self.assertIs(local_tensor_mode(), mode)
        self.assertIsNone(local_tensor_mode())

    def test_a_mode_that_pauses_inside_of_a_function_goes_on_and_leaves_nothing_behind(self):
        def pause(x):
            with local_tensor_mode().disable():
                return x

        with LocalTensorMode(4):
            x = rank_map(lambda rank: torch.tensor([rank]))
            torch.overrides.handle_torch_function(pause, (x,), x)
            self.assertEqual(str(x.item()), "0|1|2|3")
        self.assertEqual(torch._C._len_torch_function_stack(), 0)

    def test_numbers_per_rank_are_pytorchs(self):
        with LocalTensorMode(4):
            mesh = init_device_mesh("cpu", (2, 2))
            coordinate = mesh.get_coordinate()[1]
            self.assertIsInstance(coordinate.node, LocalIntNode)
            self.assertEqual(coordinate.node._local_ints, {0: 0, 1: 1, 2: 0, 3: 1})
            made = torch.SymInt(LocalIntNode({0: 5, 1: 6, 2: 7, 3: 8}))
            self.assertEqual((torch.ones(1) * (made + coordinate))._local_tensors[3].item(), 9)
            self.assertEqual(LocalIntNode({0: 5, 1: 5}).maybe_as_int(), 5)

    def test_pending_sums_and_collectives_count_every_rank(self):
        with LocalTensorMode(4):
            mesh = init_device_mesh("cpu", (4,))
            local = torch.ones(2) * (mesh.get_local_rank() + 1)
            self.assertEqual(DTensor.from_local(local, mesh, [Partial()]).full_tensor().tolist(), [10, 10])
            dist.all_reduce(local)
            self.assertEqual(local.reconcile().tolist(), [10, 10])
            self.assertEqual(local.numpy().tolist(), [10, 10])

    def test_collectives_count_every_rank_without_the_mode_too(self):
        def values():
            return LocalTensor({rank: torch.tensor([10.0**rank]) for rank in range(4)})

        x, parts = values(), [torch.zeros_like(values()) for _ in range(4)]
        dist.all_reduce(x)
        dist.all_gather(parts, values())
        self.assertEqual([value.item() for value in x._local_tensors.values()], [1111.0] * 4)
        self.assertEqual([part._local_tensors[3].item() for part in parts], [1, 10, 100, 1000])
        dist.broadcast(x, src=2)
        summed = torch.distributed._functional_collectives.all_reduce(values(), "sum", dist.group.WORLD)
        self.assertEqual([value.item() for value in summed.wait()._local_tensors.values()], [1111.0] * 4)

    def test_values_are_read_while_the_mode_pauses(self):
        with LocalTensorMode(4):
            whole = torch.ones(2)
            with maybe_disable_local_tensor_mode():
                self.assertEqual((whole._ranks, whole._local_tensors[3].tolist()), ({0, 1, 2, 3}, [1, 1]))

    def test_questions_with_an_answer_for_all_cases_may_be_asked_of_numbers_per_rank(self):
        from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

        with LocalTensorMode(4):
            rank = init_device_mesh("cpu", (4,)).get_rank()
            torch.ones(1) * rank
            self.assertEqual((guard_or_false(rank < 2), guard_or_true(rank < 2), guard_or_false(rank < 4)), (False, True, True))
            self.assertEqual((guard_or_false(rank == 1), guard_or_true(rank == 1)), (False, False))  # one answer, as PyTorch's

    def test_maps_run_once_per_rank(self):
        with LocalTensorMode(4) as mode:
            x = mode.rank_map(lambda rank: torch.full((2,), rank))
            y = tensor_map(rank_map(lambda rank: torch.tensor([rank])), lambda rank, value: value * 10 + rank)
            start = maybe_run_for_local_tensor(lambda value: int(value.sum()))(x)
        self.assertEqual([value.tolist() for value in y._local_tensors.values()], [[0], [11], [22], [33]])
        self.assertEqual(start.node._local_ints, {0: 0, 1: 2, 2: 4, 3: 6})
        self.assertEqual(str(x.tolist()), "[0|1|2|3, 0|1|2|3]")

    def test_distributed_tensors_in_the_mode(self):
        with LocalTensorMode(4):
            mesh = init_device_mesh("cpu", (4,))
            x = torch.arange(12.0).view(6, 2)
            cut = distribute_tensor(x, mesh, [Shard(0)])
            self.assertEqual([v.shape[0] for v in cut.to_local()._local_tensors.values()], [2, 2, 2, 0])
            whole = (cut @ cut.t()).redistribute(placements=[Replicate()]).to_local()
            self.assertTrue(torch.equal(whole.reconcile(), x @ x.t()))


if __name__ == "__main__":
    unittest.main()
