"""What a wheel holds, laid out in a fresh folder and used from outside of the checkout.

The files are those of the install component `python`, which is what `pip install .` packs. Building it once more would
take as long as the whole library does, so this takes it from the build tree.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent
PROGRAM = """
import pathlib, torch, intarsia
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
assert distribute_tensor is intarsia.distribute_tensor
with intarsia.simulate(4):
    x = distribute_tensor(torch.arange(5.0), init_device_mesh("cpu", (4,)), [Shard(0)])
    assert torch.equal((x + x).full_tensor(), torch.arange(5.0) * 2)
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "intarsia" in line and ".so" in line}
print(*sorted(libraries))
"""
OTHER_TORCH = "import sys, types; sys.modules['torch'] = t = types.ModuleType('torch'); t.__version__ = '2.12.1'; import intarsia"


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cmake = os.environ.get("INTARSIA_CMAKE", "cmake")
        command = [cmake, "--install", str(BUILD), "--component", "python", "--prefix", str(cls.folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def python(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=600)
        return done.returncode, done.stdout + done.stderr

    def test_the_package_is_whole_and_typed(self):
        sources = {path.name for path in (pathlib.Path(__file__).parents[2] / "python/intarsia").glob("*.py*")}
        there = {path.name for path in (self.folder / "intarsia").iterdir()}
        self.assertLessEqual(sources | {"py.typed", "_core.pyi", "_site"}, there)

    def test_a_program_runs_on_the_installed_library(self):
        (self.folder / "program.py").write_text(PROGRAM)
        code, output = self.python("-m", "intarsia", "program.py")
        self.assertEqual(code, 0, output)
        libraries = output.split()[-2:]
        for library in libraries:
            self.assertTrue(library.startswith(str(self.folder.resolve())), libraries)

    def test_another_torch_or_none_is_a_clear_error(self):
        code, output = self.python("-c", OTHER_TORCH)
        self.assertEqual(code, 1)
        self.assertIn("was built for PyTorch 2.13.0, but PyTorch 2.12.1 is installed. Run: pip install torch==2.13.0", output)
        code, output = self.python("-S", "-c", "import intarsia")  # no site-packages: there is no torch
        self.assertEqual(code, 1)
        self.assertIn("intarsia needs PyTorch, which is not installed. Run: pip install torch==2.13.0", output)


if __name__ == "__main__":
    unittest.main()
