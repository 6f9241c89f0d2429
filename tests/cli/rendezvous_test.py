#!/usr/bin/env python3
"""How the ranks of a job find each other, under every launcher, and what they say if they do not."""

import os
import pathlib
import shutil
import socket
import unittest

from support import PLAYER, Ended, environment, finish_all, free_port, play, scratch, start_rank


def sums(ranks):
    return [f"rank {rank} of {ranks}, local {rank}: the sum is {ranks * (ranks + 1) // 2}" for rank in range(ranks)]


class Launchers(unittest.TestCase):
    def check(self, variables_of, ranks=2, scene="sum", expected=None):
        results = finish_all([start_rank(scene, INTARSIA_TIMEOUT=60, **variables_of(rank)) for rank in range(ranks)])
        for rank, (status, out, err) in enumerate(results):
            self.assertEqual((status, out), (0, (expected or sums(ranks))[rank] + "\n"), err)

    def test_the_launcher_of_intarsia(self):
        ended = play(4, "sum")
        self.assertEqual(ended.lines, [f"[{rank}] {line}" for rank, line in enumerate(sums(4))], ended)
        self.assertEqual(ended.err, "")

    def test_torchrun(self):
        torchrun = os.environ.get("INTARSIA_TORCHRUN", "")
        if not pathlib.Path(torchrun).is_file():
            self.skipTest("LibTorch came without torchrun")
        ended = Ended([torchrun, "--nproc-per-node", "2", "--no-python", "--", PLAYER, "--play", "sum"], env=environment())
        self.assertEqual(ended.lines, sums(2), ended)

    def test_variables_set_by_hand(self):
        port = free_port()
        self.check(lambda rank: dict(RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, MASTER_ADDR="localhost",
                                     MASTER_PORT=port), ranks=3)

    def test_mpirun_on_one_host_needs_no_more(self):
        self.check(lambda rank: dict(OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_RANK=rank,
                                     OMPI_COMM_WORLD_LOCAL_SIZE=2, PMIX_NAMESPACE=f"prterun-{os.getpid()}@1"))

    def test_srun_on_one_host_needs_no_more(self):
        self.check(lambda rank: dict(SLURM_PROCID=rank, SLURM_NTASKS=2, SLURM_LOCALID=rank, SLURM_NNODES=1,
                                     SLURM_JOB_ID=os.getpid(), SLURM_STEP_ID=0))

    def test_a_file_that_all_see(self):
        folder = scratch()
        self.addCleanup(shutil.rmtree, folder)
        self.check(lambda rank: dict(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, INTARSIA_INTERFACE="lo",
                                     INTARSIA_RENDEZVOUS=f"file://{folder}/meet"))
        self.assertEqual(list(folder.iterdir()), [], "the file is removed at the end")

    def test_without_a_launcher_there_is_one_rank_and_no_socket(self):
        strace = shutil.which("strace")
        command = [PLAYER, "--play", "sum"]
        if strace:
            command = [strace, "-f", "-qq", "-e", "trace=socket", *command]
        ended = Ended(command, env=environment())
        self.assertEqual(ended.out, "rank 0 of 1, local 0: the sum is 1\n", ended)
        self.assertEqual(ended.err, "")

    def test_the_server_of_the_store_stays_until_all_are_done(self):
        port = free_port()
        results = finish_all([start_rank("without_rank_zero", RANK=rank, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1",
                                         MASTER_PORT=port, INTARSIA_TIMEOUT=60) for rank in range(3)])
        self.assertEqual([(status, out) for status, out, _ in results],
                         [(0, ""), (0, "the others count 2\n"), (0, "the others count 2\n")], results)

    def test_a_process_may_leave_and_join_again(self):
        self.assertEqual(play(2, "twice").lines, sorted(2 * [f"[{r}] {line}" for r, line in enumerate(sums(2))]))
        port = free_port()
        self.check(lambda rank: dict(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1",
                                     MASTER_PORT=port), scene="twice", expected=[f"{line}\n{line}" for line in sums(2)])


class Embedded(unittest.TestCase):
    """In a program that has made its connections itself, as one in Python has."""

    def test_a_store_is_enough(self):
        ended = play(2, "over_a_store", INTARSIA_INTERFACE="lo")
        self.assertEqual(ended.lines, ["[0] rank 0 of 2: DeviceMesh(cpu, x=2) sums to 3",
                                       "[1] rank 1 of 2: DeviceMesh(cpu, x=2) sums to 3"], ended)

    def test_a_group_becomes_the_world_and_makes_sub_groups(self):
        ended = play(3, "over_a_group")
        self.assertEqual(ended.lines, [
            "[0] rank 0 of 3: DeviceMesh(cpu, pair=2; ranks [2 0]) sums to 4",
            "[0] rank 0 of 3: DeviceMesh(cpu, x=3) sums to 6",
            "[1] rank 1 of 3: DeviceMesh(cpu, x=3) sums to 6",
            "[2] rank 2 of 3: DeviceMesh(cpu, pair=2; ranks [2 0]) sums to 4",
            "[2] rank 2 of 3: DeviceMesh(cpu, x=3) sums to 6",
        ], ended)


class Missing(unittest.TestCase):
    def test_ranks_that_do_not_arrive_are_named_by_those_who_did(self):
        port = free_port()
        results = finish_all([start_rank("sum", RANK=rank, WORLD_SIZE=4, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                         INTARSIA_TIMEOUT=2) for rank in (0, 2)])
        self.assertEqual(results[0][0], 3)
        self.assertIn("[init] rank 0 waited 2 s for 4 ranks: ranks 1, 3 did not arrive.", results[0][2])
        self.assertEqual(results[1][0], 3)  # it may find the store gone, if rank 0 gave up first

    def test_without_rank_0_there_is_no_store(self):
        port = free_port()
        [(status, _, err)] = finish_all([start_rank("sum", RANK=1, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                                                    MASTER_PORT=port, INTARSIA_TIMEOUT=1)])
        self.assertEqual(status, 3)
        self.assertIn(f"[init] rank 1 waited 1 s for the store at tcp://127.0.0.1:{port}, which rank 0 serves: "
                      "Connection refused.", err)

    def test_a_file_names_them_too(self):
        folder = scratch()
        self.addCleanup(shutil.rmtree, folder)
        [(status, _, err)] = finish_all([start_rank("sum", RANK=1, WORLD_SIZE=3, INTARSIA_TIMEOUT=1,
                                                    INTARSIA_RENDEZVOUS=f"file://{folder}/meet")])
        self.assertEqual(status, 3)
        self.assertIn("[init] rank 1 waited 1 s for 3 ranks: ranks 0, 2 did not arrive.", err)

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            [(status, _, err)] = finish_all([start_rank("sum", RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                                                        MASTER_PORT=port, INTARSIA_TIMEOUT=1)])
        self.assertEqual(status, 3)
        self.assertIn(f"[init] cannot serve a store at 127.0.0.1:{port}: Address already in use.", err)

    def test_mpirun_over_several_hosts_says_what_to_set(self):
        [(status, _, err)] = finish_all([start_rank("sum", OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=4,
                                                    OMPI_COMM_WORLD_LOCAL_SIZE=2)])
        self.assertEqual(status, 3)
        self.assertIn("[init] mpirun started 4 ranks, but nothing says where they meet: MASTER_ADDR is not set.", err)


if __name__ == "__main__":
    unittest.main()
