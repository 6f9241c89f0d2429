"""Every name that programs use of PyTorch's distributed tensors, under the drop-in: it exists, with PyTorch's signature."""

import importlib
import inspect
import unittest

import torch.distributed.tensor  # before installing: these are PyTorch's own
import torch.distributed.tensor.debug
import torch.distributed.tensor.experimental
import torch.distributed.tensor.parallel.fsdp
import torch.distributed.tensor.parallel.input_reshard  # noqa: F401  its name is what the test reads

import intarsia

TENSOR = "torch.distributed.tensor"
OURS = {
    TENSOR: "DTensor distribute_module distribute_tensor empty full ones rand randn zeros",
    f"{TENSOR}.debug": "CommDebugMode visualize_sharding",
    f"{TENSOR}.experimental": "implicit_replication local_map register_sharding",
    f"{TENSOR}.parallel": "ColwiseParallel PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel "
    "SequenceParallel loss_parallel parallelize_module",
    f"{TENSOR}.parallel.api": "parallelize_module",
    f"{TENSOR}.parallel.style": "ColwiseParallel PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput "
    "RowwiseParallel SequenceParallel",
    f"{TENSOR}._api": "DTensor distribute_tensor",
    f"{TENSOR}._random": "manual_seed",
    f"{TENSOR}._utils": "ExplicitRedistributionContext compute_local_shape_and_global_offset",
    "torch.distributed._tensor": "DTensor distribute_module distribute_tensor ones zeros",
    "torch.distributed._local_tensor": "LocalIntNode LocalTensor LocalTensorMode enabled_local_tensor_mode local_tensor_mode "
    "maybe_disable_local_tensor_mode maybe_run_for_local_tensor rank_map tensor_map",
    "torch.distributed.checkpoint": "save load async_save",
    "torch.distributed.fsdp": "FSDPModule UnshardHandle fully_shard register_fsdp_forward_method",
    "torch.distributed._composable.replicate": "replicate",
}
PYTORCHS = {
    "torch.distributed.device_mesh": "DeviceMesh init_device_mesh",
    "torch.distributed.fsdp": "CPUOffloadPolicy FullyShardedDataParallel MixedPrecisionPolicy OffloadPolicy ShardingStrategy",
    TENSOR: "DeviceMesh Partial Placement Replicate Shard init_device_mesh",
    f"{TENSOR}._dtensor_spec": "DTensorSpec TensorMeta",
    f"{TENSOR}.experimental": "context_parallel",
    f"{TENSOR}.parallel": "ParallelStyle",
    f"{TENSOR}.parallel.fsdp": "DTensorExtensions",
    f"{TENSOR}.parallel.input_reshard": "input_reshard",
    f"{TENSOR}.placement_types": "Partial Placement Replicate Shard _MaskPartial _StridedShard",
}
METHODS = {
    "DTensor": "from_local to_local full_tensor redistribute device_mesh placements __create_chunk_list__",
    "ColwiseParallel": "_apply _prepare_input_fn _partition_linear_fn _partition_embedding_fn _prepare_output_fn",
    "RowwiseParallel": "_apply _prepare_input_fn _partition_linear_fn _partition_embedding_fn _prepare_output_fn",
    "SequenceParallel": "_apply _replicate_module_fn _prepare_input_fn _prepare_output_fn",
    "PrepareModuleInput": "_apply _prepare_input_arg _prepare_input_fn _prepare_input_kwarg_fn",
    "PrepareModuleOutput": "_apply _prepare_out_fn",
    "CommDebugMode": "get_comm_counts get_total_counts get_parameter_info get_sharding_info generate_json_dump "
    "generate_comm_debug_tracing_table log_comm_debug_tracing_table_to_file",
    "FSDPModule": "unshard reshard reset_iter_state set_is_last_backward set_requires_gradient_sync set_requires_all_reduce "
    "set_reshard_after_forward set_reshard_after_backward set_modules_to_forward_prefetch set_modules_to_backward_prefetch "
    "set_gradient_divide_factor set_reduce_scatter_unused_params set_force_sum_reduction_for_comms set_unshard_in_backward "
    "set_separate_reduce_scatter_group set_reduce_scatter_max_input_buffers",
    "LocalTensorMode": "rank_map tensor_map disable enable_ disable_",
}


def names(table):
    return [(path, name) for path, text in table.items() for name in text.split()]


def get(path, name):
    return getattr(importlib.import_module(path), name)


def arguments(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


THEIRS = {key: get(*key) for key in names(OURS)}


class Names(unittest.TestCase):
    def setUp(self):
        intarsia.install()
        self.addCleanup(intarsia.uninstall)

    def test_names_are_ours_with_pytorchs_signatures(self):
        for key in names(OURS):
            with self.subTest(key):
                ours, theirs = get(*key), THEIRS[key]
                self.assertIsNot(ours, theirs)
                if key[1] != "DTensor":  # PyTorch's takes anything, and looks inside
                    self.assertEqual(arguments(ours), arguments(theirs))

    def test_methods_have_pytorchs_signatures(self):
        theirs = {name: value for (_, name), value in THEIRS.items()}
        for path, cls in names(OURS):
            for method in METHODS.get(cls, "").split():
                with self.subTest(cls, method=method):
                    ours, other = getattr(get(path, cls), method), getattr(theirs[cls], method)
                    if callable(other) and method != "__create_chunk_list__":
                        self.assertEqual(arguments(ours), arguments(other))

    def test_what_we_do_not_replace_is_pytorchs(self):
        for key in names(PYTORCHS):
            with self.subTest(key):
                self.assertIsNotNone(get(*key))
        self.assertTrue(callable(get("torch.distributed.fsdp", "fully_shard").state))

    def test_uninstalling_gives_pytorchs_names_back(self):
        intarsia.uninstall()
        for key in names(OURS):
            self.assertIs(get(*key), THEIRS[key], key)


if __name__ == "__main__":
    unittest.main()
