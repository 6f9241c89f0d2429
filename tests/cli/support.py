"""Starts the programs under test: the command `intarsia` and the process tests, which can play scenes."""

import os
import pathlib
import re
import subprocess
import tempfile
import time

CLI = os.environ["INTARSIA_CLI"]
PLAYER = os.environ["INTARSIA_PROCESS_TESTS"]

# Variables of launchers that may be around this test, and ours.
LAUNCHERS = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|TORCHELASTIC_|OMPI_|PMIX_|PMI_|SLURM_|INTARSIA_|GLOO_)")


def environment(**variables):
    clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
    return clean | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}


class Ended:
    """How a program ended, what it wrote, and how long it took."""

    def __init__(self, command, **options):
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
        self.seconds = time.monotonic() - start
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.lines = sorted(self.out.splitlines())

    def __str__(self):
        return f"status {self.status} after {self.seconds:.1f} s\n--- stdout\n{self.out}--- stderr\n{self.err}"


def run(*arguments, env=None, **options):
    """intarsia run arguments..."""
    return Ended([CLI, "run", *map(str, arguments)], env=env or environment(), **options)


def play(ranks, name, *arguments, **variables):
    """A scene under the launcher."""
    return run("-n", ranks, *arguments, PLAYER, "--play", name, env=environment(**variables))


def start_rank(name, **variables):
    """One rank of a scene, started by hand."""
    return subprocess.Popen([PLAYER, "--play", name], env=environment(**variables), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish_all(ranks):
    """[(status, stdout, stderr)] of ranks that were started by hand."""
    results = []
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        results.append((rank.returncode, out, err))
    return results


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scratch():
    return pathlib.Path(tempfile.mkdtemp(prefix="intarsia-test-"))
