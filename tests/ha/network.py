"""Hosts as Linux namespaces on one network, with faults of the network.

Each host has namespaces of its own for network, processes, mounts and host name. A bridge in one more namespace joins
them. No namespace has a name in the file system: the kernel removes a host with everything in it when its first process
ends, and this process ends with the test, also if the test is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SUBNET = "10.77.0"
_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount", "--mount-proc")
_ENTER = ("-n", "-u", "-i", "-p", "-m")
_CLONE_NEWNET = 0x40000000
_START_S = 10.0


class Namespaces:
    """The namespaces of one host, and the first process in them. `pid`: its process id outside of the host."""

    def __init__(self, name: str) -> None:
        # A process that ignores SIGCHLD leaves no zombies, so that it can be the first process of a host.
        first = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
        self._first: psutil.Process | None = None
        self._outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child", *first],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # at its end, it complains that its child was killed
            start_new_session=True,
        )
        try:
            self.pid = _only_child(self._outer.pid, "sleep")
            self._first = psutil.Process(self.pid)
            self.run("hostname", name)
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` in the namespaces."""
        return ["nsenter", "--target", str(self.pid), *_ENTER, "--", *argv]

    def run(self, *argv: str) -> str:
        """Run a command in the namespaces, and return its output. Raises `CalledProcessError` if it fails."""
        return subprocess.check_output(self.command(*argv), text=True, timeout=60.0, stderr=subprocess.STDOUT)

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes of the host, without its first process."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in psutil.process_iter():
            try:
                if process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    yield process
            except (FileNotFoundError, PermissionError):  # it has ended, or it is a process of the system
                continue

    def close(self) -> None:
        """Kill all processes of the host, and wait until they have ended. The kernel then removes its namespaces."""
        if self._first is None:
            self._outer.kill()
        else:
            self._first.kill()  # `unshare` ends when all processes of the host have ended
        self._outer.wait()


def _only_child(parent: int, name: str) -> int:
    """Return the process id of the child of a process once the child runs the program `name`."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return int(pid)
        time.sleep(0.005)
    raise RuntimeError(f"process {parent} has not started {name} within {_START_S:g} s")


@dataclass(frozen=True)
class Host:
    """A host on the network. `address`: its IPv4 address."""

    name: str
    address: str
    inside: Namespaces
    switch: Namespaces
    _delaying: list[subprocess.Popen[bytes]] = field(default_factory=list, compare=False)

    def cut_off(self) -> None:
        """Drop all packets from and to this host. The host does not notice: its network card stays up."""
        self._drop("drop")

    def lose(self, percent: int) -> None:
        """Drop this share of the packets, chosen at random, from and to this host."""
        self._drop(f"numgen random mod 100 < {percent} drop")

    def slow(self, kilobits_per_s: int) -> None:
        """Limit the link of this host to a rate, in each direction."""
        limit = ("root", "tbf", "rate", f"{kilobits_per_s}kbit", "burst", "32kb", "latency", "400ms")
        self.inside.run("tc", "qdisc", "replace", "dev", "eth0", *limit)
        self.switch.run("tc", "qdisc", "replace", "dev", self.name, *limit)

    def delay(self, seconds: float) -> None:
        """Delay all packets from and to this host for a constant time, in each direction: instead of the host's link, a
        process (`tests.ha.delaying`) carries its frames to the bridge.
        """
        near, far = f"{self.name}-near", f"{self.name}-far"
        self.switch.run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        self.switch.run("ip", "link", "set", near, "up")
        self.switch.run("ip", "link", "set", far, "master", "bridge", "up")
        program = (sys.executable, "-S", "-E", str(Path(__file__).with_name("delaying.py")))
        process = subprocess.Popen(
            self.switch.command(*program, self.name, near, str(seconds)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._delaying.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the process that delays the packets of {self.name} has ended")
        self.switch.run("ip", "link", "set", self.name, "nomaster")

    def heal(self) -> None:
        """End all faults of the network of this host."""
        self.switch.run("nft", f"flush chain bridge faults {self.name}")
        while self._delaying:
            process = self._delaying.pop()
            self.switch.run("ip", "link", "set", self.name, "master", "bridge")
            for child in psutil.Process(process.pid).children():  # `nsenter` ends with its child
                child.kill()
            process.wait()
            self.switch.run("ip", "link", "del", f"{self.name}-near")
        for namespaces, device in ((self.inside, "eth0"), (self.switch, self.name)):
            if " tbf " in namespaces.run("tc", "qdisc", "show", "dev", device):
                namespaces.run("tc", "qdisc", "del", "dev", device, "root")

    def _drop(self, what: str) -> None:
        chain = f"bridge faults {self.name}"
        rules = "; ".join(f'add rule {chain} {way} "{self.name}" {what}' for way in ("iifname", "oifname"))
        self.switch.run("nft", f"flush chain {chain}; {rules}")


class Network:
    """A bridge in a namespace of its own, and the hosts that it joins."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self.switch = self._namespaces("switch")
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        self.switch.run("nft", "add table bridge faults")

    def add(self, name: str, number: int) -> Host:
        """Add a host with the address 10.77.0.`number`. `name`: at most 15 characters."""
        inside, address = self._namespaces(name), f"{SUBNET}.{number}"
        peer = ("peer", "name", "eth0", "netns", str(inside.pid))
        # The switch has a process namespace of its own, so the link is created from outside, by the pid of the host.
        enter = ("nsenter", "--target", str(self.switch.pid), "-n")
        _run(*enter, "ip", "link", "add", name, "type", "veth", *peer)
        self.switch.run("ip", "link", "set", name, "master", "bridge", "up")
        self.switch.run("nft", f"add chain bridge faults {name} {{ type filter hook forward priority 0; }}")
        inside.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        inside.run("ip", "link", "set", "eth0", "up")
        return Host(name, address, inside, self.switch)

    def _namespaces(self, name: str) -> Namespaces:
        made = Namespaces(name)
        self._cleanup.callback(made.close)
        return made


@contextmanager
def network() -> Iterator[Network]:
    """Yield a network without hosts. At the end, remove it with all hosts and their processes."""
    if os.geteuid() != 0:
        raise PermissionError("network namespaces need root; run `make ha-test` as root")
    with ExitStack() as cleanup:
        yield Network(cleanup)


def enter(host: Host) -> None:
    """Move this thread, and the threads that it starts later, to the network of a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{host.inside.pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network of {host.name}")


def send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to processes. Ended processes are skipped."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=60.0, capture_output=True)
