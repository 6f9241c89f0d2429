#!/usr/bin/env python3
"""intarsia run: what it starts, shows, passes on and leaves behind."""

import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from support import CLI, Ended, environment, play, run, scratch


def processes_with(mark):
    """Pids of live processes that have `mark` in their environment or command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in text:
            found.append(int(entry.name))
    return found


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# A job in the background of a shell ignores Ctrl-C, and so would every program that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Help(unittest.TestCase):
    def test_help_and_version_are_answers(self):
        self.assertIn("usage: intarsia <command>", Ended([CLI, "--help"]).out)
        self.assertRegex(Ended([CLI, "--version"]).out, r"^intarsia \d+\.\d+\.\d+\n$")
        self.assertIn("--log-dir DIR", run("--help").out)

    def test_mistakes_are_told_and_give_status_2(self):
        cases = [
            (["run", "true"], "[run] the number of ranks is missing. Write intarsia run -n 4 program.\n"),
            (["run", "-n", "2"], "[run] the program is missing. Write intarsia run -n 4 program.\n"),
            (["run", "-n", "two", "true"], '[run] -n is "two". Give a number from 1 to 4096.\n'),
            (["run", "--port=0", "-n", "2", "true"], '[run] --port is "0". Give a number from 1 to 65535.\n'),
            (["run", "--np", "2", "true"], "[run] there is no option --np. See intarsia run --help.\n"),
            (["run", "-n"], "[run] -n needs a value.\n"),
        ]
        for arguments, text in cases:
            ended = Ended([CLI, *arguments])
            self.assertEqual((ended.status, ended.err), (2, text), arguments)
        self.assertEqual(Ended([CLI, "explode"]).status, 2)


class Ranks(unittest.TestCase):
    def test_each_rank_finds_the_variables_of_torchrun(self):
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS".split()
        env = environment()
        del env["OMP_NUM_THREADS"]
        ended = run("-n", 2, "sh", "-c", "echo " + " ".join("$" + name for name in names), env=env)
        self.assertEqual(ended.lines, ["[0] 0 0 2 2 127.0.0.1 1", "[1] 1 1 2 2 127.0.0.1 1"])
        env["OMP_NUM_THREADS"] = "3"
        self.assertEqual(run("-n", 1, "sh", "-c", "echo $OMP_NUM_THREADS", env=env).out, "[0] 3\n")

    def test_a_program_that_forgets_init_fails_on_every_rank(self):
        ended = play(2, "forget_to_join")
        self.assertEqual(ended.status, 3, ended)
        self.assertNotIn("a mesh of", ended.out)
        for rank in range(2):
            self.assertIn(f"[{rank}] error: [world_size] intarsia run started this process as rank {rank} of 2, but it has not joined", ended.err)

    def test_random_numbers_of_local_tensors_may_come_first(self):
        ended = play(2, "draw_first")
        self.assertEqual((ended.status, sorted(ended.lines)), (0, ["[0] 4 rows", "[1] 4 rows"]), ended)

    def test_a_command_that_a_rank_starts_is_no_rank(self):
        ended = run("-n", 2, CLI, "explain", "mm", "[8,8] S(1)", "[8,8] S(0)", "--mesh", "2:tp")
        self.assertEqual(ended.status, 0, ended)

    def test_options_reach_the_ranks(self):
        ended = run("-n", 1, "--timeout", 7, "sh", "-c", "echo $INTARSIA_TIMEOUT")
        self.assertEqual(ended.out, "[0] 7\n", ended)

    def test_options_after_the_program_are_its_own(self):
        self.assertEqual(run("-n", 1, "echo", "-n", "--help").out, "[0] --help\n")
        self.assertEqual(run("-n", 1, "--", "echo", "x").out, "[0] x\n")

    def test_the_store_listens_on_loopback_only(self):
        ended = run("-n", 1, "sh", "-c", "grep -i \":$(printf %04X $MASTER_PORT) .* 0A \" /proc/net/tcp /proc/net/tcp6")
        self.assertRegex(ended.out, r"^\[0\] /proc/net/tcp: +\d+: 0100007F:\S+ [^\n]*\n$", ended)

    def test_input_goes_to_rank_0(self):
        ended = run("-n", 2, "sh", "-c", "echo $RANK got $(cat)", input="hello\n")
        self.assertEqual(ended.lines, ["[0] 0 got hello", "[1] 1 got"])

    def test_a_program_that_cannot_start_says_so(self):
        ended = run("-n", 1, "no-such-program")
        self.assertEqual(ended.status, 127)
        self.assertEqual(ended.err, "[0] [run] cannot start no-such-program: No such file or directory.\n"
                                    "[run] rank 0 ended with status 127.\n")


class Output(unittest.TestCase):
    def test_lines_carry_their_rank_on_both_streams(self):
        ended = run("-n", 2, "sh", "-c", "echo out; echo err >&2")
        self.assertEqual(ended.lines, ["[0] out", "[1] out"])
        self.assertIn(ended.err, ["[0,1] err\n", "[0] err\n[1] err\n", "[1] err\n[0] err\n"])

    def test_lines_that_ranks_write_alike_to_stderr_are_shown_once(self):
        # The lines are held for a moment only, so a busy machine may need several attempts.
        script = "echo before $RANK >&2; for i in 1 2; do echo same $i >&2; done"
        ended = (run("-n", 3, "sh", "-c", script) for _ in range(20))
        folded = "[0-2] same 1\n[0-2] same 2\n"
        self.assertTrue(any(one.err.count("same") == 2 and folded in one.err and "[1] before 1\n" in one.err for one in ended))

    def test_an_unfinished_last_line_is_shown(self):
        self.assertEqual(run("-n", 2, "printf", "a\\nb").lines, ["[0] a", "[0] b", "[1] a", "[1] b"])

    def test_lines_never_mix(self):
        word = "x" * 5000
        ended = run("-n", 4, "sh", "-c", f"for i in $(seq 200); do printf '%s' {word}; echo $RANK; done")
        self.assertEqual(len(ended.lines), 800)
        for line in ended.lines:
            self.assertRegex(line, r"^\[(\d)\] x{5000}\1$")

    def test_a_line_is_shown_as_soon_as_it_ends(self):
        process = subprocess.Popen([CLI, "run", "-n", "1", "sh", "-c", "echo now; sleep 30"], env=environment(),
                                   stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "[0] now\n")
        process.terminate()
        process.wait(20)
        process.stdout.close()

    def test_without_prefix_output_is_passed_on_as_it_is(self):
        self.assertEqual(run("-n", 1, "--no-prefix", "printf", "a\\nb").out, "a\nb")

    def test_logs_hold_what_each_rank_wrote(self):
        folder = scratch()
        self.addCleanup(shutil.rmtree, folder)
        ended = run("-n", 2, "--log-dir", folder / "logs", "sh", "-c", "echo I am $RANK")
        self.assertEqual(ended.lines, ["[0] I am 0", "[1] I am 1"])
        self.assertEqual((folder / "logs" / "0.log").read_text(), "I am 0\n")
        self.assertEqual((folder / "logs" / "1.log").read_text(), "I am 1\n")


class Ends(unittest.TestCase):
    def test_success_of_all_is_success(self):
        self.assertEqual(run("-n", 3, "true").status, 0)

    def test_the_status_of_a_failed_rank_is_ours(self):
        ended = run("-n", 3, "sh", "-c", "[ $RANK = 2 ] && exit 5; sleep 60")
        self.assertEqual(ended.status, 5)
        self.assertEqual(ended.err, "[run] rank 2 ended with status 5; the others were stopped.\n")
        self.assertLess(ended.seconds, 20)

    def test_a_killed_rank_is_named_with_its_signal(self):
        ended = run("-n", 3, "sh", "-c", "[ $RANK = 1 ] && kill -9 $$; sleep 60")
        self.assertEqual(ended.status, 128 + 9)
        self.assertEqual(ended.err, "[run] rank 1 was killed by signal 9 (SIGKILL); the others were stopped.\n")

    def test_a_rank_that_does_not_listen_is_killed_after_the_grace(self):
        script = "trap '' TERM; [ $RANK = 0 ] && exit 1; sleep 60 & wait; sleep 60"
        ended = run("-n", 2, "--grace", 0.5, "sh", "-c", script)
        self.assertEqual(ended.status, 1)
        self.assertLess(ended.seconds, 20)

    def test_a_stopped_rank_is_stopped_for_good(self):
        ended = run("-n", 2, "--grace", 5, "sh", "-c", "[ $RANK = 0 ] && kill -STOP $$; sleep 0.3; exit 1")
        self.assertEqual(ended.status, 1)
        self.assertLess(ended.seconds, 20)

    def test_what_a_rank_started_ends_with_it(self):
        ended = run("-n", 1, "sh", "-c", "sleep 4242 & echo started")
        self.assertEqual(ended.status, 0)
        self.assertLess(ended.seconds, 20)
        self.assertTrue(wait_until(lambda: not processes_with("\0004242\0")))


class Signals(unittest.TestCase):
    def start(self, script, *options):
        self.mark = f"INTARSIA_TEST_MARK={os.getpid()}-{self.id()}"
        env = environment() | dict([self.mark.split("=", 1)])
        process = subprocess.Popen([CLI, "run", "-n", "2", *options, "sh", "-c", script], env=env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2):
            self.assertRegex(process.stdout.readline(), r"^\[\d\] ready\n$")
        return process

    def test_signals_reach_every_rank(self):
        for number, name in [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"), (signal.SIGHUP, "HUP")]:
            process = self.start(f"trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.05; done")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual(sorted(out.splitlines()), [f"[0] got {name}", f"[1] got {name}"], err)
            self.assertEqual(process.returncode, 0)

    def test_ranks_that_die_of_the_signal_make_it_our_end(self):
        process = self.start("echo ready; sleep 60")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + 15)
        self.assertEqual(err, "[run] stopped by signal 15 (SIGTERM).\n")

    def test_if_the_launcher_is_killed_the_ranks_die_too(self):
        process = self.start("echo ready; exec sleep 60")
        process.kill()
        process.communicate(timeout=60)
        self.assertTrue(wait_until(lambda: not processes_with(self.mark)), processes_with(self.mark))


if __name__ == "__main__":
    unittest.main()
