#!/usr/bin/env python3
"""intarsia run --max-restarts: all ranks start again when one fails, so many times."""

import shutil
import signal
import subprocess
import unittest

from support import CLI, environment, finish_all, free_port, run, scratch

COUNT = "TORCHELASTIC_RESTART_COUNT"


def script(text):
    return ["sh", "-c", text]


class ARestart(unittest.TestCase):
    def test_starts_all_ranks_again_and_tells_them_how_often(self):
        ended = run("-n", 2, "--max-restarts", 3, *script(f"echo $RANK ${COUNT} of $TORCHELASTIC_MAX_RESTARTS; [ ${COUNT} = 2 ] || exit $((RANK * 5))"))
        self.assertEqual(ended.status, 0, ended)
        self.assertEqual(ended.lines, sorted(f"[{rank}] {rank} {count} of 3" for count in range(3) for rank in range(2)), ended)
        self.assertEqual(ended.err, "".join(f"[run] rank 1 ended with status 5; the others were stopped.\n[run] restart {i} of 3.\n" for i in (1, 2)), ended)

    def test_ends_with_the_last_status_when_none_is_left(self):
        ended = run("-n", 1, "--max-restarts", 1, *script(f"exit $((3 + {COUNT}))"))
        self.assertEqual((ended.status, ended.err), (4, "[run] rank 0 ended with status 3.\n[run] restart 1 of 1.\n"
                                                        "[run] rank 0 ended with status 4.\n[run] no restart is left of 1.\n"), ended)

    def test_is_not_made_unless_asked_for(self):
        ended = run("-n", 1, *script("exit 3"))
        self.assertEqual((ended.status, ended.err), (3, "[run] rank 0 ended with status 3.\n"), ended)
        self.assertEqual(run("-n", 1, "--max-restarts", -1, "true").status, 2)

    def test_is_not_made_when_somebody_stops_the_run(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            job = subprocess.Popen([CLI, "run", "-n", "1", "--max-restarts", "5", *script("echo here; exec sleep 60")], env=environment(),
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(job.stdout.readline(), "[0] here\n")
            job.send_signal(number)
            out, err = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 128 + number)
            self.assertNotIn("restart", err)

    def test_writes_on_to_the_logs(self):
        folder = scratch()
        self.addCleanup(shutil.rmtree, folder)
        run("-n", 1, "--log-dir", folder, "--max-restarts", 1, *script(f"echo ${COUNT}; exit 1"))
        self.assertEqual((folder / "0.log").read_text(), "0\n1\n")

    def test_is_made_by_all_hosts(self):
        port = free_port()
        text = script(f"echo $RANK ${COUNT}; [ $RANK = 1 ] && [ ${COUNT} = 0 ] && kill -9 $$; [ ${COUNT} = 0 ] && sleep 60; exit 0")
        hosts = [subprocess.Popen([CLI, "run", "-n", "1", "--hosts", "2", "--host", str(host), "--meet", f"127.0.0.1:{port}", "--grace", "1",
                                   "--max-restarts", "2", *text], env=environment(INTARSIA_SECRET="x"), text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for host in range(2)]
        for host, (status, out, err) in enumerate(finish_all(hosts)):
            self.assertEqual((status, out), (0, f"[{host}] {host} 0\n[{host}] {host} 1\n"), err)
            self.assertIn("was killed by signal 9 (SIGKILL)", err)
            self.assertIn("[run] restart 1 of 2.\n", err)


if __name__ == "__main__":
    unittest.main()
