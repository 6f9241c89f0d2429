#!/usr/bin/env python3
"""The flight recorder: what ranks tell of their last collectives when one fails, when a signal asks, and in files."""

import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import unittest

from support import CLI, PLAYER, Ended, environment, finish_all, free_port, play, scratch, start_rank

PYTHON = pathlib.Path(os.environ.get("INTARSIA_TORCHRUN", "")).parent / "python"
ENGINES = ("shm", "gloo")


class Recorded(unittest.TestCase):
    def setUp(self):
        self.folder = scratch()
        self.addCleanup(shutil.rmtree, self.folder)

    def entries(self, rank):
        with open(self.folder / f"flight_{rank}", "rb") as file:
            return pickle.load(file)["entries"]

    def fr_trace(self, *arguments):
        """What PyTorch's analyzer says of the folder; skips where LibTorch came without it."""
        there = PYTHON.is_file() and subprocess.run(
            [PYTHON, "-c", "import torch.distributed.flight_recorder.fr_trace"], capture_output=True).returncode == 0
        if not there:
            self.skipTest("LibTorch came without torch.distributed.flight_recorder")
        return Ended([PYTHON, "-m", "torch.distributed.flight_recorder.fr_trace", self.folder, *arguments], env=environment())


class AFailure(Recorded):
    def kill_one(self, **variables):
        """What the ranks 0 and 2 write when rank 1 is killed in collective 5; without a launcher that would end them."""
        port = free_port()
        results = finish_all([start_rank("kill", RANK=rank, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **variables)
                              for rank in range(3)])
        return {rank: results[rank][2] for rank in (0, 2)}

    def test_makes_every_rank_tell_its_last_collectives(self):
        for engine in ENGINES:
            for rank, err in self.kill_one(INTARSIA_ENGINE=engine).items():
                self.assertRegex(err, rf"^\[flight recorder\] rank {rank}, the last 6 of 6 collectives:\n")
                self.assertRegex(err, rf'\n  6: collective 5 on axis "tp" \[0, 1, 2\] over {engine}: all_reduce\(sum\) of 1000 floats for aten::mm: failed after ')
                self.assertEqual(err.count("[flight recorder]"), 1)

    def test_is_told_in_as_many_lines_as_are_asked_for(self):
        for lines, told in ((0, 0), (2, 1)):
            for err in self.kill_one(INTARSIA_FLIGHT_LINES=lines).values():
                self.assertEqual(err.count(f"the last {lines} of"), told, err)

    def test_is_found_by_fr_trace_in_the_files(self):
        for engine in ENGINES:
            play(3, "one_mismatch", "--engine", engine, "--timeout", 30, INTARSIA_FLIGHT_FOLDER=self.folder)
            self.assertEqual(self.entries(1)[-1]["state"], "started")
            ended = self.fr_trace()
            self.assertEqual(ended.status, 0, ended)
            self.assertIn("Collective sequence number: 5 has errors", ended.out + ended.err)
            self.assertIn("Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_", ended.out + ended.err)


class ARunThatGoesWell(Recorded):
    def test_says_nothing_and_writes_files_where_asked(self):
        ended = play(3, "flights", INTARSIA_FLIGHT_FOLDER=self.folder)
        self.assertEqual((ended.status, ended.err), (0, ""), ended)
        self.assertEqual(sorted(os.listdir(self.folder)), [f"flight_{r}" for r in range(3)] + [f"timeline.{r}.json" for r in range(3)])
        names = [entry["profiling_name"] for entry in self.entries(0)]
        self.assertEqual(names, ["gloo:all_reduce", "gloo:all_gather_v", "gloo:all_to_all", "gloo:broadcast", "gloo:reduce_scatter",
                                 "gloo:all_gather", "gloo:all_reduce"])

    def test_is_found_without_a_mistake_by_fr_trace(self):
        for engine in ENGINES:
            play(3, "flights", "--engine", engine, INTARSIA_FLIGHT_FOLDER=self.folder)
            ended = self.fr_trace("-o", self.folder / "db")
            self.assertEqual(ended.status, 0, ended)
            self.assertNotRegex(ended.out + ended.err, "error|mismatch|Not all ranks")
            os.remove(self.folder / "db")

    def test_has_a_timeline_with_what_was_under_way_while_the_rank_computed(self):
        for engine in ENGINES:
            play(2, "flights", "--engine", engine, INTARSIA_FLIGHT_FOLDER=self.folder)
            events = json.loads((self.folder / "timeline.1.json").read_text())["traceEvents"]
            last = [event for event in events if event.get("id") == max(e.get("id", 0) for e in events)]
            begin, end = (next(e["ts"] for e in last if e["ph"] == phase) for phase in "be")
            self.assertGreaterEqual(end, begin)
            if engine == "shm":  # over gloo, another thread waits for the first half of a large sum
                waits = [e["ts"] - begin for e in events if e["ph"] == "X"]
                self.assertEqual([ts for ts in waits if 0 < ts < 150_000], [])  # it slept for 0.2 s, and then it waited, if at all
            self.assertEqual((last[0]["args"]["engine"], last[0]["args"]["state"], last[0]["pid"]), (engine, "done", 1))


class ASignal(Recorded):
    def start(self, scene, *options, **variables):
        process = subprocess.Popen([CLI, "run", "-n", "2", *options, PLAYER, "--play", scene], text=True,
                                   env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        for _ in range(2):
            self.assertRegex(process.stdout.readline(), r"^\[\d\] ready\n$")
        return process

    def test_makes_ranks_tell_while_they_compute_and_while_they_wait(self):
        """Rank 0 waits for rank 1, which computes; both go on afterwards."""
        for engine in ENGINES:
            process = self.start("one_waits", "--engine", engine, INTARSIA_FLIGHT_FOLDER=self.folder)
            process.send_signal(signal.SIGUSR1)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertRegex(err, r'\[0\]   2: collective 1 on axis "tp" .*: under way for ')
            self.assertRegex(err, r'\[(0,)?1\]   1: collective 0 on axis "tp" .*: done in ')  # lines that are equal are shown once
            self.assertEqual(len(self.entries(0)), 2)

    def test_is_left_alone_where_the_program_has_a_handler_or_says_so(self):
        process = self.start("one_waits", INTARSIA_FLIGHT_SIGNAL=0)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGUSR1, err)


if __name__ == "__main__":
    unittest.main()
