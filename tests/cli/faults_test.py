#!/usr/bin/env python3
"""A rank that dies or hangs inside a collective: the others say so in time, and nothing hangs."""

import signal
import subprocess
import unittest

from support import PLAYER, finish_all, free_port, play, start_rank

GONE = (r'error: \[all_reduce\(sum\)\] failed on rank {rank} along axis "tp" \(ranks \[0, 1, 2\], over [\w+]+\) for aten::mm: '
        r"{gone}")
LATE = (r'error: \[all_reduce\(sum\)\] failed on rank {rank} along axis "tp" \(ranks \[0, 1, 2\], over [\w+]+\) for aten::mm: '
        r"rank 1 did not take part within 3 s\. ")


def start_by_hand(scene, ranks=3, timeout=60, **variables):
    """Ranks without a launcher that would end them: what they do is their own."""
    port = free_port()
    return [start_rank(scene, RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                       INTARSIA_TIMEOUT=timeout, **variables) for rank in range(ranks)]


class AKilledRank(unittest.TestCase):
    engine = "shm"
    hosts: dict = {}
    gone = r"rank 1 is gone \(.*\)\. See why it ended\."

    def check(self, scene, pattern=GONE, **variables):
        ranks = start_by_hand(scene, INTARSIA_ENGINE=self.engine, **self.hosts, **variables)
        results = finish_all(ranks)
        self.assertEqual(results[1][0], -signal.SIGKILL)
        for rank in (0, 2):
            self.assertEqual(results[rank][0], 3, results[rank])
            self.assertRegex(results[rank][2], pattern.format(rank=rank, gone=self.gone))

    def test_ends_a_small_reduction_of_the_others_with_an_error(self):
        self.check("kill")

    def test_ends_a_large_reduction_of_the_others_with_an_error(self):
        self.check("kill_large")

    def test_is_named_by_those_who_see_another_leave_because_of_it(self):
        self.check("kill_unseen")

    def test_ends_the_wait_for_what_is_under_way(self):
        self.check("kill_then_wait", r'error: \[all_gather\] failed on rank {rank} along axis "tp" '
                                     r"\(ranks \[0, 1, 2\], over [\w+]+\) for a direct call: {gone}")

    def test_ends_the_run_and_is_named(self):
        for scene in ("kill", "kill_large"):
            ended = play(3, scene, "--engine", self.engine, **self.hosts)
            self.assertEqual(ended.status, 128 + 9, ended)
            self.assertIn("[run] rank 1 was killed by signal 9 (SIGKILL); the others were stopped.\n", ended.err)
            for rank in (0, 2):
                self.assertRegex(ended.err, rf"\[{rank}\] " + GONE.format(rank=rank, gone=self.gone))

    def test_that_ends_with_a_status_is_named_with_it(self):
        ended = play(3, "exit", "--engine", self.engine)
        self.assertEqual(ended.status, 7, ended)
        self.assertIn("[run] rank 1 ended with status 7; the others were stopped.\n", ended.err)

    def test_that_aborts_is_named_too(self):
        ended = play(3, "uncaught", "--engine", self.engine)
        self.assertEqual(ended.status, 128 + 6, ended)


class AKilledRankOverGloo(AKilledRank):
    engine = "gloo"

    def test_ends_the_collectives_of_the_backend_too(self):
        self.check("kill", r"error: \[all_reduce\(sum\)\] failed on rank {rank} along axis", INTARSIA_DIRECT=0)


class AKilledRankOverSockets(AKilledRank):
    engine = "sockets"


class AKilledRankOfAHost(AKilledRank):
    """Ranks 0 and 1 share memory, and rank 2 is on another host, as far as the engine knows. It waits for rank 0 only, who serves the store and
    may be gone, too, when it looks."""
    engine = "auto"
    gone = r"(rank 1 is|ranks 0, 1 are) gone \(.*\)\. See why (it|they) ended\."
    hosts = {"INTARSIA_TEST_HOSTS": 2}


class AStuckRank(unittest.TestCase):
    engine = "shm"
    hosts: dict = {}

    def test_makes_the_others_fail_when_the_time_is_over(self):
        for scene in ("stop", "stop_large"):
            ended = play(3, scene, "--timeout", 3, "--grace", 2, "--engine", self.engine, **self.hosts)
            self.assertEqual(ended.status, 3, ended)
            self.assertLess(ended.seconds, 30)
            for rank in (0, 2):
                self.assertRegex(ended.err, rf"\[{rank}\] " + LATE.format(rank=rank))

    def test_that_runs_other_code_is_waited_for_no_longer_than_that(self):
        ended = play(3, "other_code", "--timeout", 2, "--grace", 2, "--engine", self.engine, **self.hosts)
        self.assertEqual(ended.status, 3, ended)
        self.assertIn("[make_group] rank 0 waited 2 s for 3 ranks: rank 1 did not arrive.", ended.err)


class AStuckRankOverGloo(AStuckRank):
    engine = "gloo"


class AStuckRankOverSockets(AStuckRank):
    engine = "sockets"


class AStuckRankOfAHost(AStuckRank):
    engine = "auto"
    hosts = {"INTARSIA_TEST_HOSTS": 2}


class WhatOneRankCallsAlone(unittest.TestCase):
    """The error names the call, as the program wrote it, and that all ranks must make it."""

    def check(self, scene, kind, axis, call, advice=None):
        ended = play(2, scene, "--timeout", 60, INTARSIA_FLIGHT_LINES=0)
        self.assertEqual(ended.status, 3, ended)
        self.assertIn(f'[0] error: [{kind}] failed on rank 0 along axis "{axis}" (ranks [0, 1], over shm) for {call}: rank 1 is gone (it left the '
                      f"line). See why it ended. All ranks must {advice or f'call {call}'}.\n", ended.err)

    def test_item(self):
        self.check("item_alone", "all_reduce(sum)", "tp", "item()")

    def test_a_norm(self):
        what = "the value of aten::norm"
        self.check("norm_alone", "all_reduce(sum)", "tp", what, f"read {what}, as by item(): it is reduced when it is first read")

    def test_a_barrier(self):
        self.check("barrier_alone", "barrier", "world", "barrier()")

    def test_a_save(self):
        self.check("save_alone", "all_gather", "0", "checkpoint::save")


class AfterAFault(unittest.TestCase):
    def test_no_process_is_left(self):
        play(3, "kill")
        found = subprocess.run(["pgrep", "-f", f"{PLAYER} --play kill"], capture_output=True, text=True).stdout
        self.assertEqual(found, "")


if __name__ == "__main__":
    unittest.main()
