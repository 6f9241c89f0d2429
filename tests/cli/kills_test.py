#!/usr/bin/env python3
"""Ranks that are killed or stopped at random moments: the others end with an error that names the rank, in time, and nothing is left.
These ranks have no launcher to hold them back: one that notices late may name, beside that rank, one that has ended for the same reason.

INTARSIA_KILLS says how often, INTARSIA_SEED at which moments."""

import collections
import concurrent.futures
import os
import random
import re
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


class Job:
    """Ranks that reduce, gather and exchange tensors of all sizes, one of which is struck some time after they have met."""

    def __init__(self, engine, dice, **variables):
        self.way, self.after = dice.choice(WAYS), dice.random() * 0.4
        # Rank 0 serves the store: if it is stopped, those who give up cannot tell the others for whom they waited.
        self.victim = dice.randrange(1 if self.way == "SIGSTOP" else 0, RANKS)
        self.what = f"{self.way} to rank {self.victim} after {self.after:.3f} s over {engine}"
        port = free_port()
        self.ranks = [start_rank("work_on", RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, INTARSIA_ENGINE=engine,
                                 INTARSIA_TIMEOUT=TIMEOUT, INTARSIA_FLIGHT_LINES=1, **variables) for rank in range(RANKS)]

    def play(self):
        self.strike()
        return self, *self.finish()

    def strike(self):
        for rank in self.ranks:
            rank.stdout.readline()  # at work
        time.sleep(self.after)
        self.ranks[self.victim].send_signal(getattr(signal, self.way))
        self.struck = time.monotonic()

    def finish(self):
        others = [rank for number, rank in enumerate(self.ranks) if number != self.victim]
        results = finish_all(others)
        seconds = time.monotonic() - self.struck
        self.ranks[self.victim].kill()  # a stopped one goes, too
        finish_all([self.ranks[self.victim]])
        return results, seconds


class Kills(unittest.TestCase):
    def check(self, engine, **variables):
        dice = random.Random(f"{SEED} {engine}")
        worst = collections.Counter()
        dice_of = [random.Random(dice.random()) for _ in range(KILLS)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for job, results, seconds in pool.map(lambda own: Job(engine, own, **variables).play(), dice_of):
                worst[job.way] = max(worst[job.way], seconds)
                with self.subTest(job.what):
                    for status, _, err in results:
                        self.assertEqual(status, 3, err)
                        self.assertRegex(err, NAMED.format(job.victim, job.victim))
        print(f"{engine}: {KILLS} struck; the last of the others ended after at most",
              ", ".join(f"{seconds:.1f} s ({way})" for way, seconds in sorted(worst.items())))
        found = subprocess.run(["pgrep", "-f", f"{PLAYER} --play work_on"], capture_output=True, text=True).stdout
        self.assertEqual(found, "")
        self.assertEqual([name for name in os.listdir("/dev/shm") if "intarsia" in name], [])

    def test_are_named_over_shared_memory(self):
        self.check("shm")

    def test_are_named_over_gloo(self):
        self.check("gloo")

    def test_are_named_over_two_hosts_with_several_ranks(self):
        self.check("auto", INTARSIA_TEST_HOSTS=2)


if __name__ == "__main__":
    unittest.main()
