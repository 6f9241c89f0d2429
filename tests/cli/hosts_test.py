#!/usr/bin/env python3
"""Two hosts of two ranks each, apart in every way that namespaces offer: what runs on one host runs on both, a rank that dies and a link
that is cut are told on all, and strangers stay outside."""

import os
import pathlib
import shutil
import socket
import struct
import sys
import time
import unittest

import apart
from support import CLI, PLAYER, environment, scratch

EXAMPLES = pathlib.Path(PLAYER).parent.parent / "examples"
MEET = 29500


class Ended:
    def __init__(self, process):
        self.out, self.err = process.communicate(timeout=120)
        self.status = process.returncode

    def __str__(self):
        return f"status {self.status}\n--- stdout\n{self.out}--- stderr\n{self.err}"


class OnTwoHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.network = apart.Network()
        cls.hosts = [apart.Host(number, cls.network) for number in range(2)]
        cls.secrets = scratch()
        cls.secret = cls.secrets / "secret"

    @classmethod
    def tearDownClass(cls):
        for host in cls.hosts:
            host.end()
        cls.network.end()
        shutil.rmtree(cls.secrets)

    def start(self, *program, options=(), each=lambda host: (), secret=True, **variables):
        """`intarsia run` on both hosts, 2 ranks each."""
        known = ("--secret", self.secret) if secret else ()
        launchers = []
        for host in self.hosts:
            launchers.append(host.start(CLI, "run", "-n", 2, "--hosts", 2, "--host", host.number, "--meet", f"{self.hosts[0].address}:{MEET}",
                                        *known, *options, *each(host), *program, env=environment(**variables)))
            if secret and not self.secret.exists():
                apart.wait_for(self.secret.exists)  # host 0 makes it
        return launchers

    def alone(self, host, number, hosts=2, timeout=5, **variables):
        """The launcher of one host, of one rank that does nothing."""
        return host.start(CLI, "run", "-n", 1, "--hosts", hosts, "--host", number, "--meet", f"{self.hosts[0].address}:{MEET}",
                          "--timeout", timeout, "true", env=environment(**variables))

    def start_reducing(self, **rest):
        launchers = self.start(PLAYER, "--play", "reduce_slowly", **rest)
        for launcher in launchers:
            while "step 5 reached" not in (line := launcher.stdout.readline()):
                self.assertTrue(line, launcher.stderr.read() if not line else "")
        return launchers

    def finish(self, launchers):
        return [Ended(launcher) for launcher in launchers]

    def play(self, name, **rest):
        return self.finish(self.start(PLAYER, "--play", name, **rest))


class AJob(OnTwoHosts):
    def test_meets(self):
        for secret in (True, False):
            ends = self.play("sum", secret=secret)
            for host, ended in enumerate(ends):
                self.assertEqual(ended.status, 0, ended)
                self.assertEqual(sorted(ended.out.splitlines()),
                                 [f"[{2 * host + local}] rank {2 * host + local} of 4, local {local}: the sum is 10" for local in range(2)])
                self.assertEqual("lets in everyone" in ended.err, not secret and host == 0, ended)

    def test_shares_memory_inside_hosts_and_talks_over_gloo_between_them(self):
        for engine, inside, both in (("auto", "shm", "shm+gloo"), ("gloo", "gloo", "gloo")):
            ends = self.play("carriers", options=("--engine", engine))
            told = sorted(line[4:] for ended in ends for line in ended.out.splitlines())
            self.assertEqual(told, sorted(4 * [f"local {inside}", "host gloo", f"all {both}"]), ends[0])

    def test_cannot_be_of_shared_memory_alone(self):
        for ended in self.play("sum", options=("--engine", "shm")):
            self.assertEqual(ended.status, 3, ended)
            self.assertRegex(ended.err, r"\[make_group\] the ranks \[0, 1, 2, 3\] do not share memory: rank 2 is in another namespace of processes")

    def test_trains_an_mlp_and_a_llama(self):
        for engine, example in (("auto", "2_train_an_mlp"), ("gloo", "2_train_an_mlp"), ("auto", "4_llama")):
            ends = self.finish(self.start(EXAMPLES / example, options=("--engine", engine)))
            for ended in ends:
                self.assertEqual(ended.status, 0, ended)
            self.assertRegex(ends[0].out, "(?i)loss")

    def test_redistributes_and_reduces_as_ever(self):
        for engine in ("auto", "gloo"):
            ends = self.finish(self.start(PLAYER, "--gtest_filter=Redistribute*:Engine*:Axis*:Packed*", options=("--engine", engine)))
            for ended in ends:
                self.assertEqual(ended.status, 0, ended)
            self.assertRegex(ends[0].out, r"\[  PASSED  \] [1-9]\d* tests")


class AFault(OnTwoHosts):
    def test_of_a_rank_is_told_on_both_hosts(self):
        for engine in ("auto", "gloo"):
            ends = self.play("kill", options=("--engine", engine))
            self.assertEqual([ended.status for ended in ends], [137, 137], ends[1])
            self.assertIn("[run] rank 1 was killed by signal 9 (SIGKILL); the others were stopped.", ends[0].err)
            self.assertIn("[run] rank 1 on host 0 was killed by signal 9 (SIGKILL); the ranks of this host were stopped.", ends[1].err)
            for rank in (0, 2, 3):
                self.assertRegex(ends[rank // 2].err, rf"\[{rank}\] error: .*rank 1 is gone")
            for host in self.hosts:
                self.assertEqual(host.processes(), [])

    def test_of_the_link_ends_all_ranks_in_time_and_names_those_behind_it(self):
        for engine in ("auto", "gloo"):
            launchers = self.start_reducing(options=("--engine", engine, "--timeout", 6, "--grace", 2))
            self.network.cut(self.hosts[1])
            cut = time.monotonic()
            ends = self.finish(launchers)
            self.network.mend(self.hosts[1])
            self.assertLess(time.monotonic() - cut, 40)
            for rank in range(4):
                others = "ranks 2, 3" if rank < 2 else "ranks 0, 1"
                if engine == "auto":  # the first rank of each host takes part
                    others = f"rank {2 if rank < 2 else 0}"
                self.assertRegex(ends[rank // 2].err, rf"\[{rank}\] error: .*{others} did not take part within 6 s")

    def test_of_a_launcher_ends_the_other(self):
        launchers = self.start_reducing()
        self.hosts[0].run("sh", "-c", "kill -KILL $(cat /proc/[0-9]*/stat | awk '$2 == \"(intarsia)\" { print $1 }')")
        self.finish(launchers[:1])
        [ended] = self.finish(launchers[1:])
        self.assertNotEqual(ended.status, 0)
        self.assertRegex(ended.err, r"\[run\] (the launcher of host 0 no longer answers|rank \d on host)|\[run\] rank \d ended with status 3")
        apart.wait_for(lambda: not self.hosts[0].processes() and not self.hosts[1].processes())


class ALauncher(OnTwoHosts):
    def test_that_was_given_other_numbers_says_so(self):
        ends = self.finish(self.start("true", options=("--timeout", 8), each=lambda host: ("-n", 3) if host.number else ()))
        self.assertIn(2, [ended.status for ended in ends], ends[1])
        told = "was started for 2 hosts with {} ranks each, the others for 2 hosts with {} ranks each"
        self.assertTrue(told.format(3, 2) in ends[1].err or told.format(2, 3) in ends[0].err, ends)

    def test_that_is_there_twice_says_so(self):
        ends = self.finish([self.alone(self.hosts[number > 0], number, hosts=3, timeout=8, INTARSIA_SECRET="s") for number in (0, 1, 1)])
        self.assertTrue(any("[run] there are two hosts 1." in ended.err for ended in ends), [str(ended) for ended in ends])

    def test_that_is_missing_is_named(self):
        [ended] = self.finish([self.alone(self.hosts[0], 0, timeout=1, INTARSIA_SECRET="s")])
        self.assertEqual(ended.status, 2, ended)
        self.assertIn("[run] host 0 waited 1 s: host 1 did not arrive.", ended.err)


class AStranger(OnTwoHosts):
    """Someone on the network who does not know the secret."""

    def test_with_another_secret_or_none_is_refused(self):
        for mine, told, shown in (("other", "has another one", "another secret"), ("", "asks for the secret of the job", "no secret")):
            host = self.alone(self.hosts[0], 0, timeout=10, INTARSIA_SECRET="right")
            [stranger] = self.finish([self.alone(self.hosts[1], 1, timeout=10, INTARSIA_SECRET=mine)])
            self.assertIn(told, stranger.err)
            self.assertNotEqual(stranger.status, 0)
            [ended] = self.finish([host])
            self.assertRegex(ended.err, rf"host 1 did not arrive. Start `intarsia run` there too. Turned away: (::ffff:)?{self.hosts[1].address} with "
                                        rf"{shown}. Give all the same secret.")

    def test_cannot_write_into_the_store_while_a_job_runs(self):
        launchers = self.start_reducing()
        script = ("import socket, struct\n"
                  f"s = socket.create_connection(('{self.hosts[0].address}', {MEET}), 5)\n"
                  "s.sendall(bytes([9]) + struct.pack('<I', 0x3C85F7CE) + bytes([0]) + struct.pack('<Q', 6) + b'failed' + struct.pack('<Q', 1) + b'9')\n"
                  "s.sendall(b'x' * 64)\n"  # a proof that is none
                  "s.settimeout(20)\n"
                  "got = b''\n"
                  "try:\n"
                  "    while True:\n"
                  "        more = s.recv(100)\n"
                  "        if not more: break\n"
                  "        got += more\n"
                  "except ConnectionError:\n"
                  "    pass\n"
                  "print(len(got), got[:16].decode())\n")
        [stranger] = self.finish([self.hosts[1].start(sys.executable, "-c", script, env=environment())])
        self.assertEqual(stranger.out, "48 intarsia-1 front\n", stranger)  # a question, and no answer to what it said
        for ended in self.finish(launchers):
            self.assertEqual(ended.status, 0, ended)

    def test_finds_the_store_on_loopback_only(self):
        """But for the front, and what the ranks listen on for each other."""
        launchers = self.start_reducing()
        own, loopback = (struct.unpack("<I", socket.inet_aton(a))[0] for a in (self.hosts[0].address, "127.0.0.1"))
        listeners = self.hosts[0].listeners()
        self.assertIn((own, MEET), listeners)
        self.assertEqual({address for address, _ in listeners} - {own, loopback}, set())
        self.finish(launchers)


if __name__ == "__main__":
    reason = apart.why_not() if apart.MARK not in os.environ else ""
    if reason:
        print(f"Two hosts were NOT tried: {reason}.")
        sys.exit(0)
    apart.go_apart()
    unittest.main()
