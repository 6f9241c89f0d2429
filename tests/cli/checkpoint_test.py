#!/usr/bin/env python3
"""intarsia checkpoint: what it says of checkpoints, whole and damaged."""

import json
import os
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

    def test_every_damaged_file_is_named(self):
        for rank in range(2):
            file = self.path / f"rank-{rank}-of-2.safetensors"
            file.write_bytes(file.read_bytes()[:-1] if rank else b"{" + file.read_bytes()[1:])
        bad = checkpoint("verify", self.path)
        self.assertEqual(bad.status, 1)
        for rank in range(2):
            self.assertIn(f"rank-{rank}-of-2.safetensors", bad.err)

    def test_is_converted(self):
        ended = checkpoint("convert", self.path, self.runs / "step-3", "--files", 3)
        self.assertEqual(ended.status, 0, ended)
        self.assertIn("3 files, 3 ranks", checkpoint("list", self.runs).out)
        ended = play(2, "check", INTARSIA_TEST_FOLDER=self.folder)
        self.assertEqual((ended.status, ended.lines), (0, ["[0] step 1", "[1] step 1"]), ended)

    def test_is_converted_onto_another_only_if_told(self):
        self.assertEqual(checkpoint("convert", self.path, self.runs / "step-3").status, 0)
        ended = checkpoint("convert", self.path, self.runs / "step-3", "--files", 2)
        self.assertEqual((ended.status, ended.err), (1, f"[intarsia checkpoint] [checkpoint::convert] there is a checkpoint at {self.runs / 'step-3'} already. "
                                                        "Name another place, or set replace (--replace).\n"), ended)
        self.assertEqual(checkpoint("convert", self.path, self.runs / "step-3", "--files", 2, "--replace").status, 0)
        self.assertIn("2 files", checkpoint("show", self.runs / "step-3").out + checkpoint("list", self.runs).out)
        self.assertEqual(checkpoint("convert", self.path, self.runs, "--replace").status, 1)  # a folder of checkpoints is none
        self.assertIn("step-1", checkpoint("list", self.runs).out)

    def exported(self, *options):
        folder = self.folder / "hf"
        return folder, checkpoint("export", self.path, folder, *options)

    def test_is_exported_as_hugging_face_lays_it_out(self):
        folder, ended = self.exported("--rename", "row=line", "--rename", "r=x")
        self.assertEqual((ended.status, ended.out), (0, f"{folder}: 2 tensors, 1.6 MB, 1 file(s). Left out: 0 tensors of optimizers, 0 of other items, 1 numbers and texts.\n"), ended)
        self.assertEqual(os.listdir(folder), ["model.safetensors"])
        with open(folder / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            begin = file.tell() + header["lines"]["data_offsets"][0]
            file.seek(begin + 8 * 777)
            self.assertEqual(int.from_bytes(file.read(8), "little"), 2 * 777)
        self.assertEqual(sorted(header), ["__metadata__", "bias", "lines"])
        self.assertEqual(header["lines"]["shape"], [200, 1003])
        _, again = self.exported()
        self.assertEqual((again.status, again.err), (1, f"[intarsia checkpoint] [checkpoint::export_checkpoint] {folder} is there already. Name another place, or set replace (--replace).\n"))
        _, again = self.exported("--replace", "--file-bytes", 1000)
        self.assertEqual(again.status, 0, again)
        self.assertEqual(sorted(os.listdir(folder)), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"])

    def test_has_no_item_of_another_name_to_export(self):
        _, ended = self.exported("--item", "model")
        self.assertEqual((ended.status, ended.err), (1, '[intarsia checkpoint] [checkpoint::export_checkpoint] the checkpoint has no tensor to export under "model". '
                                                        "intarsia checkpoint show lists what it has.\n"), ended)

    def test_is_not_exported_if_it_is_damaged(self):
        file = self.path / "rank-1-of-2.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        folder, ended = self.exported()
        self.assertEqual((ended.status, folder.exists()), (1, False), ended)
        self.assertIn("does not fit: the file is damaged", ended.err)

    def test_of_hugging_face_is_verified_as_far_as_it_goes(self):
        folder, _ = self.exported("--file-bytes", 1000)
        second = folder / "model-00002-of-00002.safetensors"
        whole = second.read_bytes()
        cases = [  # what happens to the file, the status, and what is said
            (whole, 3, "is well formed. Its values cannot be checked"),
            (whole[:-1] + bytes([whole[-1] ^ 1]), 3, "not checked: values, names, shapes with the same number of elements"),
            (whole[:-1], 1, f"{second} is no safetensors file: "),
            (whole.replace(b'"I64"', b'"I32"'), 1, f"{second} is no safetensors file: "),
            (None, 1, f"could not open {second}: No such file or directory\n"),
        ]
        for data, status, text in cases:
            second.unlink() if data is None else second.write_bytes(data)
            ended = checkpoint("verify", folder)
            self.assertEqual(ended.status, status, ended)
            self.assertIn(text, ended.out if status == 3 else ended.err)

    def test_mistakes_are_told(self):
        self.assertEqual(checkpoint().status, 2)
        self.assertEqual(checkpoint("convert", self.path).status, 2)
        for options in (["--files", "none"], ["--files", "0"], ["--files"], ["--rename", "x"], ["--replac"]):
            ended = checkpoint("convert", self.path, self.folder / "x", *options)
            self.assertEqual((ended.status, (self.folder / "x").exists()), (2, False), ended)
        ended = checkpoint("show", self.folder)
        self.assertEqual((ended.status, ended.err), (1, f"[intarsia checkpoint] {self.folder} is no complete checkpoint: it has no index.json\n"), ended)


if __name__ == "__main__":
    unittest.main()
