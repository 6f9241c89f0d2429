#!/usr/bin/env python3
"""Which engine carries a job, and what the ranks are told where it cannot."""

import os
import resource
import signal
import subprocess
import unittest

from support import CLI, PLAYER, Ended, environment, finish_all, free_port, play, start_rank


def limited():
    """No file, not even one in memory, may be larger than this."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))


def sum_without_room(engine):
    return Ended([CLI, "run", "-n", "2", "--engine", engine, PLAYER, "--play", "sum"], env=environment(), preexec_fn=limited)


def leftovers():
    return [name for name in os.listdir("/dev/shm") if "intarsia" in name]


class AnEngine(unittest.TestCase):
    def test_is_chosen_by_name(self):
        for engine in ("auto", "shm", "gloo"):
            ended = play(3, "sum", "--engine", engine)
            self.assertEqual(ended.status, 0, ended)
            self.assertEqual(ended.lines, [f"[{rank}] rank {rank} of 3, local {rank}: the sum is 6" for rank in range(3)])

    def test_that_not_all_ranks_ask_for_is_an_error_on_every_rank(self):
        port = free_port()
        ranks = [start_rank("sum", RANK=rank, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                            INTARSIA_ENGINE="shm" if rank == 1 else "gloo") for rank in range(3)]
        for status, _, err in finish_all(ranks):
            self.assertEqual(status, 3)
            self.assertIn("[init] the ranks ask for different engines: gloo on ranks [0, 2], shm on ranks [1]. ", err)

    def test_without_room_for_its_memory_is_an_error_on_every_rank(self):
        ended = sum_without_room("shm")
        self.assertEqual(ended.status, 3, ended)
        for rank in range(2):
            self.assertRegex(ended.err, rf"\[{rank}\] error: .*\[make_group\] the ranks \[0, 1\] do not share memory: rank 0 found "
                                        r"no room for \d+ bytes of shared memory: File too large. Use the engine auto or gloo.")

    def test_is_gloo_where_there_is_no_room_and_nobody_asked_for_shared_memory(self):
        ended = sum_without_room("auto")
        self.assertEqual(ended.status, 0, ended)
        self.assertIn("the sum is 3", ended.out)

    def test_leaves_nothing_behind_whoever_is_killed(self):
        before = leftovers()
        for scene in ("sum", "kill", "kill_large"):
            play(3, scene, "--engine", "shm")
        self.assertEqual(leftovers(), before)


class RanksInOtherNamespaces(unittest.TestCase):
    """A rank that sees other processes than the rest, as in a container of its own."""

    def setUp(self):
        self.apart = ["unshare", "--pid", "--fork", "--kill-child"]
        tried = subprocess.run([*self.apart, "true"], capture_output=True, text=True)
        if tried.returncode:
            self.skipTest(f"namespaces are not allowed here: {tried.stderr.strip()}")

    def start(self, engine):
        port = free_port()
        ranks = []
        for rank in range(2):
            env = environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, INTARSIA_ENGINE=engine)
            command = [*(self.apart if rank else []), PLAYER, "--play", "sum"]
            ranks.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return finish_all(ranks)

    def test_talk_over_gloo(self):
        for status, out, err in self.start("auto"):
            self.assertEqual(status, 0, err)
            self.assertIn("the sum is 3", out)

    def test_are_told_why_they_cannot_share_memory(self):
        for status, _, err in self.start("shm"):
            self.assertEqual(status, 3)
            self.assertIn("rank 1 is in another namespace of processes", err)


if __name__ == "__main__":
    unittest.main()
