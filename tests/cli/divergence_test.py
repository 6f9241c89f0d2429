#!/usr/bin/env python3
"""Ranks that run equal collectives on different tensors, or after different calls: no wrong number comes of it, and every rank is told."""

import concurrent.futures
import re
import unittest

from support import play

SHARES = 3  # they mostly wait, so several jobs at once

# The first call in which ranks 0 and 2 differ from rank 1, and what rank 1 called.
FIRST = {
    "a call left out": ("full_tensor of what call 1 made", "full_tensor of what call 2 made"),
    "a call too much": ("full_tensor of what call 2 made", "full_tensor of what call 1 made"),
    "another order": ("full_tensor of what call 1 made", "full_tensor of what call 2 made"),
    "a redistribution left out": ("redistribute of what call 1 made", "redistribute of what call 2 made"),
    "one of a loop": ("full_tensor of what call 5 made", "from_local"),
    "an op left out": ("aten::mul.Scalar of what call 1 made", "full_tensor of what call 1 made"),
    "an op too much": ("full_tensor of what call 5 made", "aten::mul.Scalar of what call 5 made"),
    "another op": ("aten::relu of what call 1 made", "aten::exp of what call 1 made"),
    "another branch": ("aten::add.Tensor of what call 2 made", "aten::mul.Tensor of what call 2 made"),
    "another operand": ("aten::add.Tensor of what call 2 made", "aten::add.Tensor of what call 1 made"),
    "operands the other way round": ("aten::sub.Tensor of what call 2 made", "aten::sub.Tensor of what call 1 made"),
    "another reduction": ("aten::sum.dim_IntList of what call 1 made", "aten::mean.dim of what call 1 made"),
    "another row": ("aten::select.int of what call 1 made", "aten::select.int of what call 1 made"),
    "another shape that reduces alike": ("from_local", "from_local"),
    "a write left out": ("aten::mul_.Scalar of what call 1 made", "full_tensor of what call 1 made"),
    "a write too much": ("full_tensor of what call 5 made", "aten::mul_.Scalar of what call 5 made"),
    "a write to a view left out": ("aten::select.int of what call 1 made", "full_tensor of what call 1 made"),
    "a step left out": ("distribute_tensor", "full_tensor of what call 4 made"),
    "a step of a list left out": ("a write of what call 1 made", "full_tensor of what call 1 made"),
    "a gradient added up": ("full_tensor of what call 14 made", "distribute_tensor"),
    "another loss": ("full_tensor of what call 8 made", "distribute_tensor"),
    "the number of another tensor": ("aten::sum of what call 1 made", "aten::sum of what call 2 made"),
    "a pending value": None,  # the collectives are for different ops
    "another number": ("aten::mul.Scalar of what call 1 made", "aten::mul.Scalar of what call 1 made"),
    "one of two numbers left out": ("aten::mul.Scalar of what call 1 made", "aten::mul.Scalar of what call 1 made"),
    "another number in place": ("aten::add_.Tensor of what call 2 made", "aten::add_.Tensor of what call 2 made"),
    "another plain number": ("aten::add.Tensor of what call 1 made", "aten::add.Tensor of what call 1 made"),
    "another parameter of fully_shard": ("full_tensor of what call 5 made", "full_tensor of what call 6 made"),
    # One rank waits in a collective before its next call, or has made the same calls on other tensors.
    "a number that one rank alone reads": None,
    "a norm that one rank alone reads": None,
    "a norm that one rank reads earlier": None,
    "the norm of another tensor": None,
    "one of two norms left out": None,
    "one of two norms for another": None,
    "norms in another order": None,
    "gradients clipped twice": None,
}
HARMLESS = {
    "an op whose result is dropped": ("full_tensor of what call 1 made", "aten::exp of what call 2 made"),
    "a view that is dropped": ("full_tensor of what call 1 made", "aten::select.int of what call 2 made"),
}


def told(engine, **variables):
    """{(name, rank): text}"""
    def share(number):
        return play(3, "divergences", "--engine", engine, "--timeout", 60, INTARSIA_SHARE=number, INTARSIA_SHARES=SHARES,
                    INTARSIA_FLIGHT_LINES=0, **variables)

    texts = {}
    with concurrent.futures.ThreadPoolExecutor(SHARES) as pool:
        for ended in pool.map(share, range(SHARES)):
            assert ended.status == 0, ended
            for line in ended.out.splitlines():
                name, rank, text = re.match(r"\[\d\] (.*?): rank (\d): (.*)", line).groups()
                texts[name, int(rank)] = text
    return texts


class ADivergence(unittest.TestCase):
    def check(self, expected, texts):
        self.assertEqual({name for name, _ in texts}, set(expected))
        for (name, rank), text in texts.items():
            with self.subTest(divergence=name, rank=rank):
                sides = r'collective \d+ on axis "tp": rank \d is in (.*), rank \d in (.*?)(, of another tensor or after other calls)?\. All ranks'
                mine, others, alike = re.search(sides, text).groups()
                self.assertEqual(mine == others, alike is not None, text)
                if expected[name]:
                    self.check_calls(*expected[name], text)

    def check_calls(self, most, one, text):
        found = re.search(r"The first call in which they differ is \d+ on the mesh: rank (\d) called (.*), \[.*\]; rank \d called (.*), \[.*\]\.", text)
        self.assertTrue(found, text)
        rank, mine, others = found.groups()
        self.assertEqual((mine, others), (one, most) if rank == "1" else (most, one), text)

    def test_is_named_over_shared_memory(self):
        self.check(FIRST, told("shm"))

    def test_is_named_over_gloo(self):
        self.check(FIRST, told("gloo"))

    def test_is_named_also_if_it_is_harmless_where_all_calls_are_compared(self):
        self.check(FIRST | HARMLESS, told("shm", INTARSIA_CHECK="calls"))


class WhatRanksMayDoForThemselves(unittest.TestCase):
    def check(self, **variables):
        ended = play(3, "allowed_differences", "--timeout", 30, **variables)
        self.assertEqual(ended.status, 0, ended)
        self.assertEqual(len({line[4:] for line in ended.lines}), 1, ended)

    def test_is_no_divergence(self):
        self.check()

    def test_is_none_either_where_all_calls_are_compared(self):
        self.check(INTARSIA_CHECK="calls")

    def test_a_check_that_does_not_exist_is_named(self):
        ended = play(2, "allowed_differences", INTARSIA_CHECK="all")
        self.assertEqual(ended.status, 3, ended)
        self.assertIn('[INTARSIA_CHECK] "all" is no check. Set it to calls, to 0 for none, or unset it.', ended.err)


if __name__ == "__main__":
    unittest.main()
