"""Programs that know only torch.distributed.tensor, run on Intarsia."""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

CHILD = """
    import sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def work(rank, path):
        dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
        x = distribute_tensor(torch.arange(5.0), init_device_mesh("cpu", (2,)), [Shard(0)])
        assert type(x) is torch.Tensor and isinstance(x, DTensor)
        assert torch.equal((x + x).full_tensor(), torch.arange(5.0) * 2)
        print("rank", rank, type(DTensor).__module__, flush=True)
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.start_processes(work, (sys.argv[1],), 2, start_method=sys.argv[2])
"""

THREADS = """
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.testing._internal.common_utils import run_tests
    from torch.testing._internal.distributed._tensor.common_dtensor import (
        DTensorOpTestBase, DTensorTestBase, create_local_tensor_test_class, with_comms)

    class Threaded(DTensorOpTestBase):
        def test_ranks_are_threads(self):
            mesh = self.build_device_mesh()
            x = DTensor.from_local(torch.full((2,), 10.0 ** self.rank), mesh, [Partial()])
            assert type(x) is torch.Tensor
            with CommDebugMode() as comms:
                self.assertEqual(x.full_tensor(), torch.full((2,), 1111.0))
            self.assertEqual(comms.get_total_counts(), 1)
            self.assertEqual(torch.rand_like(x).shape, x.shape)  # threads share a generator
            with self.assertRaisesRegex(RuntimeError, "pending reduction is not supported"):
                torch.nn.functional.dropout(x)
            grid = init_device_mesh("cpu", (2, 2))
            self.assertEqual(distribute_tensor(torch.arange(7.0), grid, [Shard(0), Shard(0)]).full_tensor(), torch.arange(7.0))

    class Alone(DTensorTestBase):
        @with_comms
        def test_all_ranks(self):
            x = distribute_tensor(torch.arange(7.0), self.build_device_mesh(), [Shard(0)])
            assert type(x) is torch.Tensor
            self.assertEqual((x * 2).full_tensor(), torch.arange(7.0) * 2)
            self.assertEqual(x.redistribute(placements=[Replicate()]).to_local(), torch.arange(7.0))

    AloneWithLocalTensor = create_local_tensor_test_class(Alone)
    del Alone

    if __name__ == "__main__":
        run_tests()
"""

INSTALLED = """
    import torch
    import torch.distributed.tensor as theirs
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel
    before = (DTensor, distribute_tensor, ColwiseParallel)
    import intarsia
    intarsia.install()
    assert DTensor is theirs.DTensor is intarsia.DTensor and distribute_tensor is intarsia.distribute_tensor
    assert ColwiseParallel is intarsia.parallel.ColwiseParallel
    import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp
    assert fsdp.DTensor is before[0]
    intarsia.uninstall()
    assert (DTensor, distribute_tensor, ColwiseParallel) == before and theirs.DTensor is before[0]
    assert fsdp.DTensor is before[0] and not intarsia.installed()
    print("fine")
"""


def run(*command, env=None):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=800, env=env)
    return done.returncode, done.stdout + done.stderr


class DropIn(unittest.TestCase):
    def script(self, text, name="program.py"):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = os.path.join(folder, name)
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        return path

    def test_spawned_and_forked_children_run_on_intarsia(self):
        path = self.script(CHILD)
        for method in ("spawn", "fork", "forkserver"):
            code, output = run("-m", "intarsia", path, f"{path}.{method}", method)
            self.assertEqual((code, output.count("intarsia")), (0, 2), output)

    def test_a_module_runs_by_name(self):
        path = self.script("import sys, torch.distributed.tensor as t; print(type(t.DTensor).__module__, sys.argv[1:])")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(path), os.environ.get("PYTHONPATH", "")])}
        code, output = run("-m", "intarsia", "-m", "program", "a", env=env)
        self.assertEqual((code, output), (0, "intarsia._tensor ['a']\n"))

    def test_a_package_whose_name_begins_with_torch_gets_intarsia_while_it_is_imported(self):
        path = self.script("import torchlike")
        os.makedirs(os.path.join(os.path.dirname(path), "torchlike"))
        with open(os.path.join(os.path.dirname(path), "torchlike", "__init__.py"), "w") as file:
            file.write("from torch.distributed.tensor import DTensor\nprint(type(DTensor).__module__, flush=True)\n")
        text = "import subprocess, sys; from intarsia.__main__ import _pass_on; _pass_on(); sys.exit(subprocess.call([sys.executable, sys.argv[1]]))"
        self.assertEqual(run("-c", text, path), (0, "intarsia._tensor\n"))

    def test_workers_of_torchrun_run_on_intarsia(self):
        path = self.script(
            """
            import torch, torch.distributed as dist
            from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
            x = distribute_tensor(torch.arange(5.0), init_device_mesh("cpu", (2,)), [Shard(0)])
            assert torch.equal(x.full_tensor(), torch.arange(5.0)) and type(x) is torch.Tensor
            print(f"on {type(DTensor).__module__}")
            dist.destroy_process_group()
            """
        )
        code, output = run("-m", "intarsia", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path)
        self.assertEqual((code, output.count("on intarsia")), (0, 2), output)

    def test_installing_reaches_names_that_were_imported_and_can_be_undone(self):
        self.assertEqual(run(self.script(INSTALLED)), (0, "fine\n"))

    def test_pytorchs_test_harness_runs_threads_and_local_tensors(self):
        path = self.script(THREADS)
        with open(os.path.join(os.path.dirname(path), "expecttest.py"), "w") as file:  # the harness asks for no more of it
            file.write("from unittest import TestCase\n")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(path), os.environ.get("PYTHONPATH", "")])}
        env.pop("CI", None)  # under CI the harness writes reports with a package that nobody else needs
        code, output = run("-m", "intarsia", path, env=env)
        self.assertEqual(code, 0, output)
        self.assertIn("Ran 2 tests", output)


class Import(unittest.TestCase):
    def test_another_torch_is_a_clear_error(self):
        for version, text in (("2.12.0", "was built for PyTorch 2[.]1[0-9][.][0-9], but PyTorch 2.12.0"), (None, "not installed")):
            fake = f"import types; torch = types.ModuleType('torch'); torch.__version__ = '{version}'"
            hide = "import sys; sys.modules['torch'] = None" if version is None else f"{fake}; import sys; sys.modules['torch'] = torch"
            code, output = run("-c", f"{hide}\nimport intarsia")
            self.assertEqual(code, 1)
            self.assertRegex(output, text)

    def test_every_name_that_is_offered_exists(self):
        import intarsia

        for name in intarsia.__all__:
            self.assertIsNotNone(getattr(intarsia, name), name)


if __name__ == "__main__":
    unittest.main()
