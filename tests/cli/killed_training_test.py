#!/usr/bin/env python3
"""A rank that is killed while a model is trained: the others end with an error that names it, wherever they are."""

import itertools
import os
import signal
import unittest

from support import finish_all, free_port, start_rank

RANKS = 3
PLACES = ("forward", "backward", "optimizer")
KILLS = int(os.environ.get("INTARSIA_KILLS", 12))  # the nightly run has more


class ARankKilledInTraining(unittest.TestCase):
    def check(self, scene, engine, place, step):
        port = free_port()
        ranks = [start_rank(scene, RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, INTARSIA_TIMEOUT=60,
                            INTARSIA_ENGINE=engine, INTARSIA_STRIKE=place, INTARSIA_STRIKE_STEP=step) for rank in range(RANKS)]
        results = finish_all(ranks)
        self.assertEqual(results[1][0], -signal.SIGKILL)
        for rank in (0, 2):
            self.assertEqual(results[rank][0], 3, results[rank])
            self.assertIn("rank 1 is gone", results[rank][2])

    def test_is_named_by_the_others(self):
        scenes = ("replicated_training", "sharded_training")
        ways = itertools.cycle(itertools.product(("shm", "gloo"), scenes, PLACES))
        for kill, (engine, scene, place) in zip(range(KILLS), ways):
            with self.subTest(scene, engine=engine, place=place, kill=kill):
                self.check(scene, engine, place, step=kill % 5)


if __name__ == "__main__":
    unittest.main()
