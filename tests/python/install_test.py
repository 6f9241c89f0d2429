"""A wheel as `make package` writes it, installed into a fresh virtual environment without a compiler.

Building the library once more would take as long as all of it does, so the files come from the build tree.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

BUILD = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import pathlib, torch, intarsia
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
assert distribute_tensor is intarsia.distribute_tensor
with intarsia.simulate(4):
    x = distribute_tensor(torch.arange(5.0), init_device_mesh("cpu", (4,)), [Shard(0)])
    assert torch.equal((x + x).full_tensor(), torch.arange(5.0) * 2)
mapped = {pathlib.Path(line.split()[-1]) for line in open("/proc/self/maps") if ".so" in line}
libraries = [str(path) for path in mapped if path.name.startswith(("libintarsia.so", "_core."))]
print(*sorted(libraries))
"""
OTHER_TORCH = "import sys, types; sys.modules['torch'] = t = types.ModuleType('torch'); t.__version__ = '2.12.1'; import intarsia"
MOST_MEGABYTES = 40
TORCH = re.search(r'TORCH = "(.*)"', (BUILD / "python/intarsia/_built_for.py").read_text())[1]


def site_packages(folder):
    return folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())).resolve()
        venv.create(cls.folder / "venv", symlinks=True)
        cls.site = site_packages(cls.folder / "venv")
        import torch

        beside = pathlib.Path(torch.__file__).parents[1]
        for package in beside.iterdir():  # PyTorch and what it needs, as if installed here
            if not package.name.startswith(("intarsia", "__", "pip", "wheel")):
                (cls.site / package.name).symlink_to(package)
        tools = {"PATH": os.pathsep.join([os.path.dirname(os.environ.get("INTARSIA_CMAKE", "cmake")), os.environ["PATH"]])}
        done = subprocess.run([sys.executable, ROOT / "tools/package", BUILD, cls.folder / "dist"], capture_output=True, text=True,
                              env={**os.environ, **tools})
        assert done.returncode == 0, done.stdout + done.stderr
        (cls.wheel,) = (cls.folder / "dist").glob("*.whl")
        done = subprocess.run([sys.executable, "-m", "pip", "--python", cls.folder / "venv/bin/python", "install", "--no-index", "--no-deps",
                               "--disable-pip-version-check", cls.wheel], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def run_there(self, program, *arguments, **environment):
        """Runs a program of the virtual environment; nothing else is on the path, a compiler least of all."""
        done = subprocess.run([self.folder / "venv/bin" / program, *arguments], capture_output=True, text=True, cwd=self.folder, timeout=600,
                              env={"PATH": str(self.folder / "venv/bin"), "OMP_NUM_THREADS": "1", **environment})
        return done.returncode, done.stdout + done.stderr

    def test_the_package_is_whole_typed_and_small(self):
        sources = {path.name for path in (ROOT / "python/intarsia").glob("*.py*")}
        there = {path.name for path in (self.site / "intarsia").iterdir()}
        self.assertLessEqual(sources | {"py.typed", "_core.pyi", "_site", "bin", "include", "lib"}, there)
        self.assertLess(self.wheel.stat().st_size / 1e6, MOST_MEGABYTES)

    def test_a_program_runs_on_the_installed_library(self):
        (self.folder / "program.py").write_text(PROGRAM)
        code, output = self.run_there("python", "-m", "intarsia", "program.py")
        self.assertEqual(code, 0, output)
        libraries = output.splitlines()[-1].split()
        self.assertEqual(len(libraries), 2, output)
        for library in libraries:
            self.assertTrue(library.startswith(str(self.site)), libraries)

    def test_the_command_explains_and_names_its_cmake_package(self):
        code, output = self.run_there("intarsia", "explain", "mm", "[8, 4] S(0)", "[4, 6] R")
        self.assertEqual(code, 0, output)
        self.assertIn("[S(0)]", output)
        self.assertEqual(self.run_there("intarsia", "--cmake-dir"), (0, f"{self.site}/intarsia/lib/cmake/Intarsia\n"))

    def test_a_program_in_cpp_is_built_on_the_wheel(self):
        _, cmake_dir = self.run_there("intarsia", "--cmake-dir")
        shutil.copytree(ROOT / "examples/consumer", self.folder / "consumer")
        cmake = os.environ.get("INTARSIA_CMAKE", "cmake")
        for command in ([cmake, "-B", "consumer/build", "-S", "consumer", f"-DIntarsia_DIR={cmake_dir.strip()}", "-DCMAKE_BUILD_TYPE=Debug"],
                        [cmake, "--build", "consumer/build"], ["consumer/build/consumer"]):
            done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_another_torch_or_none_is_a_clear_error(self):
        code, output = self.run_there("python", "-c", OTHER_TORCH)
        self.assertEqual(code, 1)
        self.assertIn(f"was built for PyTorch {TORCH}, but PyTorch 2.12.1 is installed. Run: pip install torch=={TORCH}", output)
        with zipfile.ZipFile(self.wheel) as files:
            (metadata,) = (name for name in files.namelist() if name.endswith("/METADATA"))
            self.assertIn(f"Requires-Dist: torch=={TORCH.rpartition('.')[0]}.*\n", files.read(metadata).decode())
        (self.folder / "alone/intarsia").parent.mkdir()
        (self.folder / "alone/intarsia").symlink_to(self.site / "intarsia")
        code, output = self.run_there("python", "-S", "-c", "import intarsia", PYTHONPATH=str(self.folder / "alone"))
        self.assertEqual(code, 1)
        self.assertIn(f"intarsia needs PyTorch, which is not installed. Run: pip install torch=={TORCH}", output)


if __name__ == "__main__":
    unittest.main()
