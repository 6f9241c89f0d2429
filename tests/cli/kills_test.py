#!/usr/bin/env python3
"""Ranks that are killed or stopped at random moments: the others end with an error that names the rank, in time, and nothing is left.
These ranks have no launcher to hold them back: one that notices late may name, beside that rank, one that has ended for the same reason.

INTARSIA_KILLS says how often, INTARSIA_SEED at which moments."""

import collections
import concurrent.futures
import os
import random
import signal
import subprocess
import time
import unittest

from support import PLAYER, finish_all, free_port, start_rank

RANKS = 3
KILLS = int(os.environ.get("INTARSIA_KILLS", 6))  # per engine; the nightly run has more
SEED = int(os.environ.get("INTARSIA_SEED", 20261117))
TIMEOUT = 4
AT_ONCE = 3  # jobs; they mostly wait
WAYS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
GONE, LATE = r"ranks? (\d, )*{}(, \d)* (is|are) gone", r"ranks? (\d, )*{}(, \d)* did not (take part within|arrive)"
NAMED = f"{GONE}|{LATE}"


class Strike:
    """What happens to a process, and how long after all are at work."""

    def __init__(self, dice):
        self.way, self.after = dice.choice(WAYS), dice.random() * 0.4

    def __str__(self):
        return f"{self.way} after {self.after:.3f} s"

    def hit(self, pid):
        """Returns when it was struck."""
        time.sleep(self.after)
        os.kill(pid, getattr(signal, self.way))
        return time.monotonic()


def left_of(scene):
    """Ranks of the scene that still run."""
    return subprocess.run(["pgrep", "-f", f"{PLAYER} --play {scene}"], capture_output=True, text=True).stdout


def told_times(worst):
    return "the last of the others ended after at most " + ", ".join(f"{seconds:.1f} s ({way})" for way, seconds in sorted(worst.items()))


class Job:
    """Ranks at work, one of which is struck some time after they have met."""

    def __init__(self, engine, dice, scene, **variables):
        self.strike = Strike(dice)
        # Rank 0 serves the store: if it is stopped, those who give up cannot tell the others for whom they waited.
        self.victim = dice.randrange(1 if self.strike.way == "SIGSTOP" else 0, RANKS)
        self.what = f"{self.strike} to rank {self.victim} over {engine}"
        port = free_port()
        self.ranks = [start_rank(scene, RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, INTARSIA_ENGINE=engine,
                                 INTARSIA_TIMEOUT=TIMEOUT, INTARSIA_FLIGHT_LINES=1, **variables) for rank in range(RANKS)]

    def play(self):
        for rank in self.ranks:
            rank.stdout.readline()  # at work
        struck = self.strike.hit(self.ranks[self.victim].pid)
        results = finish_all(rank for number, rank in enumerate(self.ranks) if number != self.victim)
        seconds = time.monotonic() - struck
        self.ranks[self.victim].kill()  # a stopped one goes, too
        finish_all([self.ranks[self.victim]])
        return self, results, seconds


class Kills(unittest.TestCase):
    def check(self, engine, scene="work_on", **variables):
        """work_on reduces, gathers and exchanges tensors of all sizes."""
        dice = random.Random(f"{SEED} {engine}")
        worst = collections.Counter()
        dice_of = [random.Random(dice.random()) for _ in range(KILLS)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for job, results, seconds in pool.map(lambda own: Job(engine, own, scene, **variables).play(), dice_of):
                worst[job.strike.way] = max(worst[job.strike.way], seconds)
                with self.subTest(job.what):
                    for status, _, err in results:
                        self.assertEqual(status, 3, err)
                        self.assertRegex(err, NAMED.format(job.victim, job.victim))
        print(f"{engine}, {scene}: {KILLS} struck;", told_times(worst))
        self.assertEqual(left_of(scene), "")
        self.assertEqual([name for name in os.listdir("/dev/shm") if "intarsia" in name], [])

    def test_are_named_over_shared_memory(self):
        self.check("shm")

    def test_are_named_over_gloo(self):
        self.check("gloo")

    def test_are_named_while_gloo_connects(self):
        self.check("gloo", "connect_on")

    def test_are_named_over_two_hosts_with_several_ranks(self):
        self.check("auto", INTARSIA_TEST_HOSTS=2)


if __name__ == "__main__":
    unittest.main()
