#!/usr/bin/env python3
"""Jobs over MPI, started by its own launcher. ctest runs it where an MPI was found."""

import collections
import concurrent.futures
import os
import pathlib
import random
import signal
import subprocess
import time
import unittest

from kills_test import AT_ONCE, KILLS, NAMED, RANKS, SEED, TIMEOUT, Strike, left_of, told_times
from mismatch_test import SIDES, told
from support import PLAYER, Ended, environment

MPIEXEC = os.environ["INTARSIA_MPIEXEC"]
INSIDE = os.environ["INTARSIA_INSIDE_MPI"]


def around(**variables):
    """With what MPI's launcher was told about this machine."""
    return environment(**{name: value for name, value in os.environ.items() if name.startswith(("OMPI_", "PRTE_"))} | variables)


def mpirun(*commands, **variables):
    """Each command is (ranks, program, arguments...) with variables of its own in front, as NAME=value."""
    line = [MPIEXEC]
    for ranks, *command in commands:
        line += [":"] * (len(line) > 1) + ["-n", str(ranks), "env", *command]
    return Ended(line, env=around(**variables))


def scene(ranks, name, **variables):
    return mpirun((ranks, PLAYER, "--play", name), **variables)


class AJob(unittest.TestCase):
    def test_is_carried_by_mpi_if_asked_and_if_nobody_says_otherwise(self):
        for variables in ({}, {"INTARSIA_ENGINE": "auto"}, {"INTARSIA_ENGINE": "mpi"}):
            ended = scene(3, "carrier", **variables)
            self.assertEqual(ended.lines, [f"rank {rank}: a job of 3 ranks over mpi, over mpi" for rank in range(3)], ended)
            self.assertEqual(ended.status, 0, ended)

    def test_may_use_other_engines(self):
        for engine in ("gloo", "shm"):
            ended = scene(2, "carrier", INTARSIA_ENGINE=engine)
            self.assertEqual(ended.lines, [f"rank {rank}: a job of 2 ranks over {engine}, over {engine}" for rank in range(2)], ended)

    def test_meets_without_an_address_where_hosts_are_unknown(self):
        """As over several hosts: nothing says where the ranks meet, so rank 0 tells it over MPI."""
        ended = mpirun((3, "-u", "OMPI_COMM_WORLD_LOCAL_SIZE", PLAYER, "--play", "sum"), INTARSIA_ENGINE="mpi")
        self.assertEqual([line.split(": ")[1] for line in ended.lines], ["the sum is 6"] * 3, ended)

    def test_may_be_left_and_joined_again(self):
        ended = scene(2, "twice", INTARSIA_ENGINE="mpi")
        self.assertEqual(ended.status, 0, ended)
        self.assertEqual(ended.lines, sorted(2 * [f"rank {rank} of 2, local {rank}: the sum is 3" for rank in range(2)]), ended)

    def test_of_ranks_that_ask_for_different_engines_is_an_error_on_every_rank(self):
        ended = mpirun((1, "INTARSIA_ENGINE=mpi", PLAYER, "--play", "sum"), (2, "INTARSIA_ENGINE=gloo", PLAYER, "--play", "sum"),
                       OMPI_MCA_orte_abort_on_non_zero_status=0)
        self.assertEqual(ended.err.count("[init] the ranks ask for different engines: gloo on ranks [1, 2], mpi on ranks [0]. "), 3, ended)


class AMismatchOverMpi(unittest.TestCase):
    def test_is_named_by_all_ranks(self):
        """MPI takes small messages at once, so a rank may be at its next collective when it learns of another."""
        texts = told(lambda **share: scene(3, "mismatches", INTARSIA_ENGINE="mpi", INTARSIA_TIMEOUT=60, **share), at_once=1)
        self.assertEqual(set(texts), {(name, rank) for name in [*SIDES, "mesh"] for rank in range(3)})
        for (name, rank), text in texts.items():
            with self.subTest(mismatch=name, rank=rank):
                both = rf'collective \d+ on axis "tp": rank {rank} is in .* of .* for .*, rank \d in .* of '
                self.assertRegex(text, r"ranks? \d.* did not (take part within 4 s|arrive)" if name == "mesh" else both)

    def test_that_a_rank_ends_with_is_told_too(self):
        ended = scene(3, "early_end", INTARSIA_ENGINE="mpi", INTARSIA_TIMEOUT=60)
        self.assertNotEqual(ended.status, 0)
        self.assertIn("rank 1 is gone (it left the line). See why it ended.", ended.err)


class AFault(unittest.TestCase):
    def test_of_a_rank_that_is_killed_ends_the_job(self):
        ended = scene(3, "kill", INTARSIA_ENGINE="mpi", INTARSIA_TIMEOUT=60)
        self.assertNotEqual(ended.status, 0)
        self.assertLess(ended.seconds, 60)
        self.assertIn(f"signal {signal.SIGKILL.value}", ended.err + ended.out)

    def test_of_a_rank_that_stops_is_named_when_the_time_is_over(self):
        for name in ("stop", "stop_large"):
            ended = scene(3, name, INTARSIA_ENGINE="mpi", INTARSIA_TIMEOUT=3)
            self.assertNotEqual(ended.status, 0)
            self.assertRegex(ended.err, r'error: \[all_reduce\(sum\)\] failed on rank [02] along axis "tp" \(ranks \[0, 1, 2\], over mpi\) for aten::mm: '
                                        r"rank 1 did not take part within 3 s\. ")


class JobOverMpi:
    """mpirun watches the ranks: if one dies, it ends the others and says which one that was."""

    def __init__(self, dice):
        self.strike, self.victim = Strike(dice), dice.randrange(RANKS)
        self.what = f"{self.strike} to rank {self.victim} over mpi"

    def play(self):
        run = subprocess.Popen([MPIEXEC, "-n", str(RANKS), PLAYER, "--play", "work_on"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=around(INTARSIA_ENGINE="mpi", INTARSIA_TIMEOUT=TIMEOUT, INTARSIA_FLIGHT_LINES=1))
        for _ in range(RANKS):
            if not run.stdout.readline():  # each rank says when it is at work
                raise ChildProcessError(f"the job ended before it was struck: {run.communicate()[1]}")
        begun = self.strike.hit(self.rank_of(run.pid))
        out, err = run.communicate(timeout=120)
        return self, run.returncode, out + err, time.monotonic() - begun

    def rank_of(self, launcher):
        for _ in range(100):  # the kernel may leave children out of the list while one of them comes or goes
            for children in pathlib.Path(f"/proc/{launcher}/task").glob("*/children"):
                for pid in children.read_text().split():
                    variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    if b"OMPI_COMM_WORLD_RANK=%d" % self.victim in variables:
                        return int(pid)
            time.sleep(0.05)
        raise LookupError(f"rank {self.victim} below process {launcher}")


class RandomKills(unittest.TestCase):
    def test_end_the_job_and_are_named(self):
        dice = random.Random(f"{SEED} mpi")
        worst = collections.Counter()
        jobs = [JobOverMpi(dice) for _ in range(KILLS)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for job, status, text, seconds in pool.map(JobOverMpi.play, jobs):
                worst[job.strike.way] = max(worst[job.strike.way], seconds)
                with self.subTest(job.what):
                    self.assertNotEqual(status, 0, text)
                    self.assertRegex(text, rf"process rank {job.victim} .*exited on signal|" + NAMED.format(job.victim, job.victim))
        print(f"mpi: {KILLS} struck;", told_times(worst))
        self.assertEqual(left_of("work_on"), "")


class InsideAnMpiProgram(unittest.TestCase):
    def test_messages_of_both_never_meet(self):
        for level in ("single", "funneled", "serialized", "multiple"):
            ended = mpirun((4, INSIDE, level))
            self.assertEqual((ended.status, ended.err), (0, ""), ended)
            self.assertEqual(ended.out, "4 ranks over mpi, and MPI is still the program's own\n", ended)


if __name__ == "__main__":
    unittest.main()
