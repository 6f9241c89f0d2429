#!/usr/bin/env python3
"""The job of docs/a_training_job.md: a rank is killed, all start again, and the losses are those of a job that nobody disturbed."""

import os
import re
import shutil
import unittest

from support import CLI, Ended, environment, run, scratch

JOB = os.environ["INTARSIA_TRAINING_JOB"]
STEPS = 12


def losses(ended):
    """{step: the losses that were printed of it}, to the last digit."""
    found = {}
    for step, loss in re.findall(r"step (\d+): loss (\S+)", ended.out):
        found.setdefault(int(step), set()).add(loss)
    return found


class ATrainingJob(unittest.TestCase):
    def setUp(self):
        self.folder = scratch()
        self.addCleanup(shutil.rmtree, self.folder)

    def train(self, name, ranks, *options, restarts=0):
        return run("-n", ranks, "--max-restarts", restarts, JOB, "--folder", self.folder / name, *options)

    def test_goes_on_after_a_rank_was_killed(self):
        for ranks, options in ((2, ["--data", "replicate"]), (4, ["--tp", 2])):
            with self.subTest(ranks=ranks):
                calm = self.train(f"calm-{ranks}", ranks, *options)
                self.assertEqual((calm.status, sorted(losses(calm))), (0, list(range(STEPS))), calm)
                killed = self.train(f"killed-{ranks}", ranks, *options, "--fail-at", 7, restarts=1)
                self.assertEqual(killed.status, 0, killed)
                self.assertIn(f"[run] rank {ranks - 1} was killed by signal 9 (SIGKILL); the others were stopped.\n", killed.err)
                self.assertIn("[run] restart 1 of 1.\n", killed.err)
                self.assertRegex(killed.out, rf"goes on from step 4 on {ranks} ranks\n")
                self.assertEqual(losses(killed), losses(calm))

    def test_ends_with_the_status_of_the_rank_if_it_may_not_start_again(self):
        ended = self.train("once", 2, "--fail-at", 1)
        self.assertEqual(ended.status, 128 + 9, ended)

    def test_is_exported_when_it_is_done(self):
        self.assertEqual(self.train("runs", 2, "--steps", 4).status, 0)
        path, folder = self.folder / "runs/step-4", self.folder / "hf"
        ended = Ended([CLI, "checkpoint", "export", path, folder, "--item", "model"], env=environment())
        self.assertEqual(ended.status, 0, ended)
        self.assertRegex(ended.out, r": 23 tensors, .* Left out: 42 tensors of optimizers, 3 of other items, \d+ numbers and texts\.\n$")
        shown = Ended([CLI, "checkpoint", "show", folder], env=environment()).out
        self.assertRegex(shown, r"\nlayers\.0\.attention\.wq\.weight +F32 \[32, 32\]  plain\n")


if __name__ == "__main__":
    unittest.main()
