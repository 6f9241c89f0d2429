#!/usr/bin/env python3
"""Ranks that run different collectives: no number comes of it, and every rank is told both sides."""

import concurrent.futures
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
    "layout": (1, "all_gather of 12 floats for redistribute of [6, 6] from S(0) to R", "all_to_all of 12 floats for redistribute of [6, 6] from S(0) to S(1)"),
    "local rows": (1, "all_gather of 12 floats for full_tensor of [6, 6] from S(0) to R", "all_gather of 18 floats for full_tensor of [9, 6] from S(0) to R"),
    "local shape": (1, "all_reduce(sum) of 12 floats for full_tensor of [2, 6] from P(sum) to R", "all_reduce(sum) of 12 floats for full_tensor of [6, 2] from P(sum) to R"),
    "skipped in between": (2, "all_reduce(sum) of 2 floats for aten::mm", "all_reduce(sum) of 3 floats for aten::mm"),
    "doubled gather": (2, "all_reduce(sum) of 4 floats for aten::mm", "all_gather of 2 floats for a direct call"),
    "reordered gathers": (1, "all_gather of 2 floats for a direct call", "all_gather of 3 floats for a direct call"),
    "halves": (1, "all_reduce(sum) of 4 halfs for aten::mm", "all_reduce(sum) of 4 bfloat16s for aten::mm"),
    "bools": (1, "all_reduce(sum) of 4 bools for aten::mm", "all_reduce(sum) of 4 bytes for aten::mm"),
    "product": (1, "all_reduce(product) of 4 floats for aten::mm", "all_reduce(min) of 4 floats for aten::mm"),
    "dtype of a gather": (1, "all_gather of 4 floats for a direct call", "all_gather of 4 ints for a direct call"),
    "parts of a gather": (1, "all_gather of .* floats? for a direct call", "all_gather of .* floats? for a direct call"),
    "op of a scatter": (1, "reduce_scatter(sum) of 6 floats for a direct call", "reduce_scatter(max) of 6 floats for a direct call"),
    "dtype of a scatter": (1, "reduce_scatter(sum) of 6 floats for a direct call", "reduce_scatter(sum) of 6 doubles for a direct call"),
    "dtype of an exchange": (1, "all_to_all of 6 floats for a direct call", "all_to_all of 6 ints for a direct call"),
    "size of a broadcast": (1, "broadcast of 5 floats from rank 0 for a direct call", "broadcast of 6 floats from rank 0 for a direct call"),
    "dtype of a broadcast": (1, "broadcast of 5 floats from rank 0 for a direct call", "broadcast of 5 ints from rank 0 for a direct call"),
    "batch in forward": (1, "all_reduce(sum) of 18 floats for redistribute of [3, 6] from P(sum) to R", "all_reduce(sum) of 24 floats for redistribute of [4, 6] from P(sum) to R"),
    "dtype in forward": (1, "all_reduce(sum) of 18 floats for redistribute of [3, 6] from P(sum) to R", "all_reduce(sum) of 18 doubles for redistribute of [3, 6] from P(sum) to R"),
    "layout in forward": (1, "all_reduce(sum) of 36 floats for redistribute of [6, 6] from P(sum) to R", "reduce_scatter(sum) of 36 floats for redistribute of [6, 6] from P(sum) to S(0)"),
    "cut in forward": (1, "reduce_scatter(sum) of 36 floats for redistribute of [6, 6] from P(sum) to S(0)", "reduce_scatter(sum) of 36 floats for redistribute of [6, 6] from P(sum) to S(1)"),
    "skipped in forward": (1, "all_reduce(sum) of 18 floats for redistribute of [3, 6] from P(sum) to R", "all_gather of 2 floats for a direct call"),
    "doubled in forward": (2, "all_gather of 2 floats for a direct call", "all_reduce(sum) of 18 floats for redistribute of [3, 6] from P(sum) to R"),
    "skipped backward": (None, "all_.*|.*", "all_gather of .* floats for .*"),
    "doubled backward": (None, "all_gather of .* floats for a direct call", ".*"),
    "dtype of a replica": (None, "all_gather of 144 floats for replicate SequentialImpl", "all_gather of 144 doubles for replicate SequentialImpl"),
    "skipped sharded backward": (None, ".*", "all_gather of .* floats for a direct call"),
    "doubled sharded pass": (None, "all_gather of .* floats for a direct call", ".*"),
    "clipped in the optimizer": (None, ".*", "all_gather of .* floats for full_tensor of .*"),
    "skipped in the optimizer": (None, "all_gather of .* floats for full_tensor of .*", "all_reduce.sum. of .* float for full_tensor.*"),
    "threads": (None, "all_reduce.sum. of .* floats for a direct call", "all_reduce.max. of .* floats for a direct call"),
    "after a backward": (None, "all_gather of .* floats for redistribute of .6, 6. from S.0. to R", "all_to_all of .* floats for redistribute of .6, 6. from S.0. to S.1."),
}


SHARES = 4  # they mostly wait, so several jobs at once


def told(play_share, at_once=SHARES):
    """What each rank is told about each mismatch, {(name, rank): text}, where play_share plays those of a share."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(play_share, INTARSIA_SHARE=share, INTARSIA_SHARES=SHARES, INTARSIA_FLIGHT_LINES=0) for share in range(SHARES)]
    texts = {}
    for job in jobs:
        ended = job.result()
        assert ended.status == 0, ended
        for line in ended.out.splitlines():
            name, rank, text = re.match(r"(?:\[\d\] )?(.*?): rank (\d): (.*)", line).groups()
            texts[name, int(rank)] = text
    return texts


def check_told(test, texts):
    test.assertGreaterEqual(len(texts), 3 * 40)
    test.assertEqual({name for name, _ in texts}, {*SIDES, "mesh"})
    for (name, rank), text in texts.items():
        with test.subTest(mismatch=name, rank=rank):
            if name == "mesh":
                check_lines(test, rank, text)
            else:
                check_sides(test, *SIDES[name], rank, text)
            if (name, rank) in (("skipped backward", 0), ("doubled backward", 1)):  # this one is in a backward pass that others have not
                test.assertIn("run the training loop in join", text)


def check_sides(test, number, most, one, rank, text):
    side = lambda text: text if ".*" in text else re.escape(text)

    def told_by(ranks, mine, others, other):
        # A rank whose note comes late is known by the header of its message alone, which does not say why.
        header = rf"{side(other.split(' for ')[0])} \(its collective \d+\)"
        return rf"rank {ranks} is in {side(mine)}, rank {others} in ({side(other)}|{header})"

    # In its own words, or in those of a rank that shares its memory and was faster.
    own, shared = told_by("[02]", most, "1", one), told_by("1", one, "[02]", most)
    test.assertRegex(text, rf'collective {number or ".*"} on axis "tp": ({own}|{shared})')


def check_lines(test, rank, text):
    """Ranks in different lines: each says for whom it waited, and where that one was seen, or that a line could not be made in time."""
    late, axis = ("1", "turned") if rank != 1 else ("[02]", "tp")
    if re.search(rf"\[make_group\] rank {rank} waited 4 s for 3 ranks: ranks? \d.* did not arrive", text):
        return
    test.assertRegex(text, rf'rank(s 0,)? {late} did not take part within 4 s; .*rank {late} was last seen waiting in all_reduce\(sum\) of 4 floats '
                           rf'for a direct call on axis "{axis}"')


class AMismatch(unittest.TestCase):
    def check(self, engine, **variables):
        check_told(self, told(lambda **share: play(3, "mismatches", "--engine", engine, "--timeout", 60, **share, **variables)))

    def test_is_named_by_all_ranks_over_shared_memory(self):
        self.check("shm")

    def test_is_named_by_all_ranks_over_gloo(self):
        self.check("gloo")

    def test_is_named_by_all_ranks_over_a_transport_of_messages(self):
        self.check("sockets")

    def test_is_named_by_all_ranks_of_two_hosts(self):
        self.check("auto", INTARSIA_TEST_HOSTS=2)


if __name__ == "__main__":
    unittest.main()
