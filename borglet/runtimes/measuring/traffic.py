"""Measure how many bytes per second a task reads from disks, writes to disks, and receives and sends over its own
network.

The disk traffic is read from the file `io.stat` of the task's control group (version 2). Without such a group, it is
read from `/proc/<pid>/io` of each process of the task. Then the traffic between the last measurement and the end of a
process is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.supervisor import proctable

# The most processes of one task whose counters are read one by one.
MAX_PROCESSES = 64


class Rates(NamedTuple):
    """The rates of a task in bytes per second. `received` and `sent` are 0 if the task uses the machine's network."""

    read: int = 0
    written: int = 0
    received: int = 0
    sent: int = 0


@dataclass(slots=True)
class Traffic:
    """Computes the disk and network rates of one running task from the counters of its last two measurements."""

    _known: dict[int, tuple[int, int]] | None = None  # read and written by pid, 0 for the group; None at first
    _network: tuple[int, int] | None = None
    last: Rates = field(default=Rates())

    @classmethod
    def of_new(cls) -> Traffic:
        """Return an object for a new task. The counters of a new task start at 0."""
        return cls({}, (0, 0))

    def look(self, groups: Mapping[str, str], pids: Collection[int], elapsed_s: float) -> Rates:
        """Measure, and return the rates since the last call. `elapsed_s`: seconds since that call. For a task that an
        earlier Borglet started, the first call returns zeros.
        """
        now = _of_group(groups)
        if now is None:
            now = {pid: io for pid in sorted(pids)[:MAX_PROCESSES] if (io := _of_process(pid)) is not None}
        network = _network(pids)
        if self._known is not None:
            known = self._known
            read, written = (
                sum(max(0, io[kind] - known.get(pid, (0, 0))[kind]) for pid, io in now.items()) for kind in (0, 1)
            )
            received = sent = 0
            if network is not None and self._network is not None:
                received, sent = (max(0, a - b) for a, b in zip(network, self._network, strict=True))
            self.last = Rates(*(round(n / elapsed_s) for n in (read, written, received, sent)))
        self._known, self._network = now, network
        return self.last


def _of_group(groups: Mapping[str, str]) -> dict[int, tuple[int, int]] | None:
    directory = groups.get("unified")
    if directory is None:
        return None
    try:
        text = cgroupfs.read_text(directory, "io.stat")
    except OSError:
        return None
    return {0: io_stat(text)}


def io_stat(text: str) -> tuple[int, int]:
    """Return how many bytes were read and written on all devices. `text`: lines such as `8:0 rbytes=1 wbytes=2 rios=3
    …`.
    """
    read = written = 0
    for field_ in text.split():
        name, _, value = field_.partition("=")
        if name == "rbytes":
            read += int(value)
        elif name == "wbytes":
            written += int(value)
    return read, written


def _of_process(pid: int) -> tuple[int, int] | None:
    """Return how many bytes a process has read and written. Return None if the process has ended, or if this user may
    not read its counters.
    """
    fields = dict(line.split(b": ") for line in proctable.read_file(f"/proc/{pid}/io").splitlines())
    return (int(fields[b"read_bytes"]), int(fields[b"write_bytes"])) if fields else None


def _network(pids: Collection[int]) -> tuple[int, int] | None:
    """Return how many bytes the task's own network has received and sent. Return None if the task uses the machine's
    network.
    """
    own = os.readlink("/proc/self/ns/net")
    for pid in sorted(pids)[:MAX_PROCESSES]:
        try:
            if os.readlink(f"/proc/{pid}/ns/net") == own:
                return None
            with open(f"/proc/{pid}/net/dev", "rb") as file:
                return net_dev(file.read().decode("ascii"))
        except OSError:  # the process has ended, or is not readable
            continue
    return None


def net_dev(text: str) -> tuple[int, int]:
    """Return how many bytes all network interfaces except loopback have received and sent. `text`: the content of
    /proc/<pid>/net/dev.
    """
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, figures = line.partition(":")
        columns = figures.split()
        if name.strip() != "lo" and len(columns) > 8:
            received += int(columns[0])
            sent += int(columns[8])
    return received, sent
