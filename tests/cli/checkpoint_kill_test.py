#!/usr/bin/env python3
"""Ranks that are killed while they save: the newest complete checkpoint is there and loads, bit for bit, every time.

INTARSIA_KILLS says how often; INTARSIA_SEED at which moments."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import unittest

from support import CLI, PLAYER, environment, play, scratch

RANKS = 4
KILLS = int(os.environ.get("INTARSIA_KILLS", 5))
SEED = int(os.environ.get("INTARSIA_SEED", 17))


def pids(folder):
    """The processes of the ranks, as far as they have said theirs."""
    said = [folder / f"pid-{rank}" for rank in range(RANKS)]
    return [int(path.read_text()) for path in said if path.exists() and path.read_text()]


def in_runs(folder):
    runs = folder / "runs"
    return set(os.listdir(runs)) if runs.exists() else set()


def saves_begun(folder):
    return any(".saving-" in name for name in in_runs(folder))


def finished(folder):
    return {name for name in in_runs(folder) if ".saving-" not in name}


class AKilledSave(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(scratch())
        self.addCleanup(shutil.rmtree, self.folder)

    def wait_until(self, happened, job, log):
        """Nothing ends this job but we, so one that has ended, or does not get on, is a failure that tells what it said."""
        end = time.monotonic() + 300
        while not happened():
            said = "has ended" if job.poll() is not None else "does not get on" if time.monotonic() > end else ""
            if said:
                job.kill()
                self.fail(f"the job {said}, status {job.wait()}: {log.read_text()}")
            time.sleep(0.002)

    def kill_once(self, draw):
        for rank in range(RANKS):
            (self.folder / f"pid-{rank}").unlink(missing_ok=True)
        before = finished(self.folder)
        log = self.folder / "log"
        with open(log, "w") as out:
            job = subprocess.Popen([CLI, "run", "-n", str(RANKS), PLAYER, "--play", "saves"], stdout=out, stderr=out,
                                   env=environment(INTARSIA_TEST_FOLDER=self.folder))
        self.wait_until(lambda: len(pids(self.folder)) == RANKS, job, log)
        begun = time.monotonic()
        self.wait_until(lambda: saves_begun(self.folder), job, log)
        if draw.random() < 0.8:  # in a later save than the first, at a moment of it that may be any
            self.wait_until(lambda: finished(self.folder) - before, job, log)
        time.sleep(draw.uniform(0, min(2, time.monotonic() - begun)))
        ranks = pids(self.folder)
        victims = ranks if draw.random() < 0.3 else [draw.choice(ranks)]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        job.wait(timeout=120)

    def test_leaves_the_newest_complete_checkpoint(self):
        draw = random.Random(SEED)
        last = 0
        for kill in range(KILLS):
            with self.subTest(kill=kill):
                self.kill_once(draw)
                ended = play(draw.choice([1, 2, 3]), "check", INTARSIA_TEST_FOLDER=self.folder)
                self.assertEqual(ended.status, 0, ended)
                steps = {int(line.split()[-1]) for line in ended.lines}
                self.assertEqual(len(steps), 1, ended)
                self.assertGreaterEqual(steps.copy().pop(), last, ended)
                last = steps.pop()
        self.assertGreater(last, 0)


if __name__ == "__main__":
    unittest.main()
