#!/usr/bin/env python3
"""Ranks that run different collectives: no number comes of it, and every rank is told both sides."""

import re
import unittest

from support import play

# What the ranks 0 and 2 are in, and what rank 1 is in, and the number of that collective.
SIDES = {
    "skipped": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_gather of 2 floats for a direct call"),
    "doubled": (2, "all_gather of 2 floats for a direct call", "all_reduce(sum) of 4 floats for aten::mm"),
    "reordered": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_gather of 2 floats for a direct call"),
    "shape": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_reduce(sum) of 6 floats for aten::mm"),
    "large shape": (1, "all_reduce(sum) of 3000000 floats for aten::mm", "all_reduce(sum) of 3000001 floats for aten::mm"),
    "small and large": (1, "all_reduce(sum) of 3 floats for aten::mm", "all_reduce(sum) of 3000000 floats for aten::mm"),
    "dtype": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_reduce(sum) of 4 doubles for aten::mm"),
    "dtype of one size": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_reduce(sum) of 4 ints for aten::mm"),
    "op": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_reduce(max) of 4 floats for aten::mm"),
    "root": (1, "broadcast of 5 floats from rank 0 for a direct call", "broadcast of 5 floats from rank 1 for a direct call"),
    "kind": (1, "all_reduce(sum) of 6 floats for aten::mm", "all_to_all of 6 floats for a direct call"),
    "parts": (1, "all_to_all of 6 floats for a direct call", "all_to_all of 9 floats for a direct call"),
    "scattered parts": (1, "reduce_scatter(sum) of 6 floats for a direct call", "reduce_scatter(sum) of 6 floats for a direct call"),
    "cause": (1, "all_reduce(sum) of 4 floats for aten::mm", "all_reduce(sum) of 4 floats for aten::bmm"),
    "later": (1, "all_reduce(sum) of 8 floats for a direct call", "all_gather of 8 floats for a direct call"),
    "large later": (1, "all_reduce(sum) of 3000000 floats for a direct call", "all_gather of 8 floats for a direct call"),
    "layout": (1, "all_gather of 12 floats for redistribute of [6, 6]", "all_to_all of 12 floats for redistribute of [6, 6]"),
    "local rows": (1, "all_gather of 12 floats for full_tensor of [6, 6]", "all_gather of 18 floats for full_tensor of [9, 6]"),
    "local shape": (1, "all_reduce(sum) of 12 floats for full_tensor of [2, 6]", "all_reduce(sum) of 12 floats for full_tensor of [6, 2]"),
    "after a backward": (None, "all_gather of .* floats for redistribute of .6, 6.", "all_to_all of .* floats for redistribute of .6, 6."),
}


def check_sides(test, engine, lines):
    """`lines` have what all ranks were told."""
    for name, (number, most, one) in SIDES.items():
        for rank in range(3):
            with test.subTest(engine=engine, mismatch=name, rank=rank):
                line = next((line for line in lines if re.match(rf"(\[\d+\] )?{name}: rank {rank}: ", line)), "")
                mine, other = (one, most) if rank == 1 else (most, one)
                side = lambda text: text if ".*" in text else re.escape(text)
                others = "[02]" if rank == 1 else "1"
                test.assertRegex(line, rf'collective {number or ".*"} on axis "tp": rank {rank} is in {side(mine)}, '
                                       rf"rank {others} in {side(other)}")


class AMismatch(unittest.TestCase):
    def check(self, engine):
        ended = play(3, "mismatches", "--engine", engine, "--timeout", 40)
        self.assertEqual(ended.status, 0, ended)
        check_sides(self, engine, ended.lines)

    def test_is_named_by_all_ranks_over_shared_memory(self):
        self.check("shm")

    def test_is_named_by_all_ranks_over_gloo(self):
        self.check("gloo")


if __name__ == "__main__":
    unittest.main()
