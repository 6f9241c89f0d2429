"""Hosts that are apart, made of namespaces of this machine: each has a network, processes, mounts, names and shared memory of its own,
and all are joined by a network that can be slowed down and cut.

Needs root, or the right to make user namespaces; `why_not()` says what is missing."""

import os
import shutil
import subprocess
import sys
import time

MARK = "INTARSIA_TEST_APART"  # set inside
os.environ["PATH"] += ":/usr/sbin:/sbin"  # where ip is, which not everyone has in the path
TOOLS = ("unshare", "nsenter", "ip", "mount")


def wrapper():
    """What puts a program into namespaces of its own, where it may make more."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


def why_not():
    """Why there can be no hosts here; empty if there can."""
    for tool in TOOLS:
        if not shutil.which(tool):
            return f"there is no `{tool}` (Debian: util-linux, iproute2)"
    script = "ip link add try0 type veth peer name try1 && unshare --net --uts --ipc --pid --fork true && mount -t tmpfs none /dev/shm"
    tried = subprocess.run([*wrapper(), "sh", "-c", script], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"namespaces are not allowed: {tried.stderr.strip() or tried.returncode}"


def go_apart():
    """Starts this program again in namespaces of its own, where nothing that it makes outlives it."""
    if MARK not in os.environ:
        command = wrapper()
        os.execvpe(command[0], [*command, sys.executable, *sys.argv], os.environ | {MARK: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Host:
    """One host: its first process keeps the namespaces, and all ends with it."""

    def __init__(self, number, network):
        self.number, self.address, self.device = number, f"10.77.0.{number + 1}", f"eth{number}"
        names = "127.0.0.1 localhost\\n10.77.0.1 host0\\n10.77.0.2 host1\\n"
        script = (f"mount -t tmpfs tmpfs /dev/shm && hostname host{number} && printf '{names}' > /dev/shm/names && "
                  "mount --bind /dev/shm/names /etc/hosts && echo ready && exec sleep 1000000")
        self.keeper = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child",
                                        "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert self.keeper.stdout.readline() == "ready\n"
        with open(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children") as children:
            self.first = children.read().split()[0]
        network.join(self)
        for words in (f"addr add {self.address}/24 dev {self.device}", f"link set {self.device} up", "link set lo up"):
            self.run("ip", *words.split())

    def command(self, *words):
        return ["nsenter", "--target", self.first, "--net", "--uts", "--ipc", "--pid", "--mount", "--", *map(str, words)]

    def run(self, *words):
        subprocess.run(self.command(*words), check=True, capture_output=True, text=True)

    def start(self, *words, env):
        return subprocess.Popen(self.command(*words), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def listeners(self):
        """Addresses at which someone listens, as ss tells them."""
        done = subprocess.run(self.command("cat", "/proc/net/tcp"), capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        return {tuple(int(part, 16) for part in row[1].split(":")) for row in rows if row[3] == "0A"}

    def processes(self):
        """Command lines of what runs here, but for the first process."""
        done = subprocess.run(self.command("sh", "-c", "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"),
                              capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if line.strip() and "sleep 1000000" not in line and "/proc/[0-9]*" not in line]

    def end(self):
        self.keeper.kill()
        self.keeper.wait()
        self.keeper.stdout.close()


class Network:
    """A switch with a cable to each host."""

    def __init__(self):
        assert MARK in os.environ, "go_apart() first: this machine's own network is left alone"
        subprocess.run(["ip", "link", "add", "switch", "type", "bridge"], check=True, capture_output=True)
        subprocess.run(["ip", "link", "set", "switch", "up"], check=True)
        self.plugs = []

    def join(self, host):
        plug = f"plug{host.number}"
        self.plugs.append(plug)
        subprocess.run(["ip", "link", "add", plug, "type", "veth", "peer", "name", host.device], check=True)
        subprocess.run(["ip", "link", "set", host.device, "netns", host.first], check=True)
        subprocess.run(["ip", "link", "set", plug, "master", "switch", "up"], check=True)

    def cut(self, host):
        """Packets are lost without a word, as if a cable farther away had been pulled."""
        subprocess.run(["ip", "link", "set", f"plug{host.number}", "nomaster"], check=True)

    def mend(self, host):
        subprocess.run(["ip", "link", "set", f"plug{host.number}", "master", "switch"], check=True)

    def end(self):
        for plug in self.plugs:  # they may go with their hosts by themselves, some time
            subprocess.run(["ip", "link", "delete", plug], capture_output=True)
        subprocess.run(["ip", "link", "delete", "switch"], check=True)


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
