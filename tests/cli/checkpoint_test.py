#!/usr/bin/env python3
"""intarsia checkpoint: what it says of checkpoints, whole and damaged."""

import shutil
import unittest

from support import CLI, Ended, environment, play, scratch


def checkpoint(*words):
    return Ended([CLI, "checkpoint", *map(str, words)], env=environment())


class ACheckpoint(unittest.TestCase):
    def setUp(self):
        self.folder = scratch()
        self.addCleanup(shutil.rmtree, self.folder)
        self.runs = self.folder / "runs"
        ended = play(2, "save_once", INTARSIA_TEST_FOLDER=self.folder)
        self.assertEqual(ended.status, 0, ended)
        self.path = self.runs / "step-1"

    def test_is_listed(self):
        self.assertRegex(checkpoint("list", self.runs).out, r"^step-1 +1.6 MB +2 tensors, 2 files, 2 ranks\n$")
        self.assertIn("There is no complete checkpoint in", checkpoint("list", self.folder / "none").out)

    def test_is_shown(self):
        out = checkpoint("show", self.path).out
        self.assertIn("rows  I64 [200, 1003]  [S(0)] on DeviceMesh(cpu, 2)", out)
        self.assertIn("|AAAAAAAAAAAAAA*BBBBBBBBBBBBBB|", out)
        self.assertIn("A[0:100, 0:1003] B[100:200, 0:1003]", out)
        self.assertIn("step = 1\n", out)
        self.assertRegex(out, r"B  rank-1-of-2.safetensors  \d+.\d kB  by rank 1, header [0-9a-f]{16}")

    def test_is_verified(self):
        good = checkpoint("verify", self.path)
        self.assertEqual((good.status, good.out), (0, f"{self.path} is as it was written.\n"), good)
        file = self.path / "rank-1-of-2.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        bad = checkpoint("verify", self.path)
        self.assertEqual(bad.status, 1)
        self.assertRegex(bad.err, r'^tensor "(rows|bias)": the checksum of bytes \d+ to \d+ of .*rank-1-of-2.safetensors does not fit: the file is damaged\n$')

    def test_is_converted(self):
        ended = checkpoint("convert", self.path, self.runs / "step-3", "--files", 3)
        self.assertEqual(ended.status, 0, ended)
        self.assertIn("3 files, 3 ranks", checkpoint("list", self.runs).out)
        ended = play(2, "check", INTARSIA_TEST_FOLDER=self.folder)
        self.assertEqual((ended.status, ended.lines), (0, ["[0] step 1", "[1] step 1"]), ended)

    def test_mistakes_are_told(self):
        self.assertEqual(checkpoint().status, 2)
        self.assertEqual(checkpoint("convert", self.path).status, 2)
        self.assertEqual(checkpoint("convert", self.path, self.folder / "x", "--files", "none").status, 2)
        ended = checkpoint("show", self.folder)
        self.assertEqual((ended.status, ended.err), (1, f"[intarsia checkpoint] {self.folder} is no complete checkpoint: it has no index.json\n"), ended)


if __name__ == "__main__":
    unittest.main()
