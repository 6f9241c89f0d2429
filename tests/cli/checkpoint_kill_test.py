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
    """The processes of the ranks, once all have said theirs."""
    found = {}
    while len(found) < RANKS:
        for rank in range(RANKS):
            path = folder / f"pid-{rank}"
            if path.exists() and path.read_text():
                found[rank] = int(path.read_text())
        time.sleep(0.005)
    return found


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

    def kill_once(self, draw):
        for rank in range(RANKS):
            (self.folder / f"pid-{rank}").unlink(missing_ok=True)
        job = subprocess.Popen([CLI, "run", "-n", str(RANKS), PLAYER, "--play", "saves"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=environment(INTARSIA_TEST_FOLDER=self.folder))
        before = finished(self.folder)
        ranks = pids(self.folder)
        begun = time.monotonic()
        while not saves_begun(self.folder):
            time.sleep(0.002)
        if draw.random() < 0.8:  # in a later save than the first, at a moment of it that may be any
            while not finished(self.folder) - before:
                time.sleep(0.002)
        time.sleep(draw.uniform(0, min(2, time.monotonic() - begun)))
        victims = list(ranks.values()) if draw.random() < 0.3 else [draw.choice(list(ranks.values()))]
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
