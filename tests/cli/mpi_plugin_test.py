#!/usr/bin/env python3
"""A plugin for MPI that is not there, or does not fit: every rank is told so, and none waits. Needs no MPI."""

import os
import unittest

from support import PLAYER, environment, play, run

ODD = os.environ["INTARSIA_ODD_PLUGIN_PATH"]


class APlugin(unittest.TestCase):
    def check(self, path, way, *texts):
        ended = play(2, "sum", "--engine", "mpi", INTARSIA_MPI_PLUGIN=path, INTARSIA_ODD_PLUGIN=way, INTARSIA_TIMEOUT=60)
        self.assertEqual(ended.status, 3, ended)
        self.assertLess(ended.seconds, 30)
        for rank in range(2):
            marks = (f"[{rank}] error: ", "[0,1] error: ")  # the launcher shows a line once that both write
            said = next((line for line in ended.err.splitlines() if line.startswith(marks)), "")
            for text in texts:
                self.assertIn(text, said, ended)

    def test_that_is_not_there_is_an_error_on_every_rank(self):
        self.check("/nowhere/libintarsia_mpi.so", "", '[init] the engine "mpi" needs the plugin /nowhere/libintarsia_mpi.so, which cannot be '
                   "loaded: ", "No such file or directory", "INTARSIA_MPI_PLUGIN")

    def test_that_is_another_library_is_an_error_on_every_rank(self):
        self.check("libm.so.6", "", "[init] libm.so.6 is no plugin for MPI: it has no intarsia_mpi_plugin.")

    def test_of_another_version_is_an_error_on_every_rank(self):
        self.check(ODD, "version", f"[init] the plugin {ODD} is of version 2, but this library needs version 1.")

    def test_for_another_mpi_than_the_one_that_is_loaded_is_an_error_on_every_rank(self):
        self.check(ODD, "other", f"[init] the plugin {ODD} was built for MPICH 4.0.2, but the MPI in this process is Open MPI v4.1.4. Two MPIs "
                   "cannot be used together")

    def test_for_another_mpi_than_that_of_the_launcher_is_an_error_on_every_rank(self):
        ended = play(2, "sum", "--engine", "mpi", INTARSIA_MPI_PLUGIN=ODD)
        self.assertEqual(ended.status, 3, ended)
        self.assertRegex(ended.err, r"\[[01]\] error: \[init\] this is rank [01] of 2 of the job, but rank 0 of 1 of MPI \(the plugin was built "
                                    r"for MPICH 4.0.2\)\. Start the program with the mpirun of that MPI, or use another engine\.")

    def test_whose_mpi_cannot_start_is_an_error_on_every_rank(self):
        self.check(ODD, "broken", "[init] MPICH Version: 4.0.2 cannot be used: no network")

    def test_is_not_looked_for_by_other_engines(self):
        for engine in ("auto", "shm", "gloo"):
            ended = play(2, "sum", "--engine", engine, INTARSIA_MPI_PLUGIN="/nowhere/libintarsia_mpi.so")
            self.assertEqual(ended.status, 0, ended)

    def test_is_not_taken_where_mpirun_is_not_there(self):
        """Variables alone do not make an MPI job, as in a job that a script of mpirun has started by other means."""
        ended = run("-n", 2, PLAYER, "--play", "carrier", env=environment(OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=0))
        self.assertEqual(ended.status, 0, ended)
        self.assertIn("over shm", ended.out)


if __name__ == "__main__":
    unittest.main()
