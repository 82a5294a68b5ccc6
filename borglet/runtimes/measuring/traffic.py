"""Rates of a task's reads and writes, on disks and over its own network, from counters of the kernel.

Disks: `io.stat` of its group where there is version 2, else `/proc/<pid>/io` of its processes. Version 1 knows
nothing about writes to the page cache, which most writes are. The traffic of a process after the last look before its
end is lost.
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
    """Bytes a second. Network: 0 where the task shares the machine's."""

    read: int = 0
    written: int = 0
    received: int = 0
    sent: int = 0


@dataclass(slots=True)
class Traffic:
    """Traffic of one running task between two looks."""

    _known: dict[int, tuple[int, int]] | None = None  # by pid; 0 for the group; None before the first look
    _network: tuple[int, int] | None = None
    last: Rates = field(default=Rates())

    @classmethod
    def of_new(cls) -> Traffic:
        """Return the counters of a task that has just started, all of which belong to it."""
        return cls({}, (0, 0))

    def look(self, groups: Mapping[str, str], pids: Collection[int], elapsed_s: float) -> Rates:
        """Return the rates since the last look, `elapsed_s` ago; none the first time."""
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
    """Bytes read and written over all devices: `8:0 rbytes=1 wbytes=2 rios=3 …` a line."""
    read = written = 0
    for field_ in text.split():
        name, _, value = field_.partition("=")
        if name == "rbytes":
            read += int(value)
        elif name == "wbytes":
            written += int(value)
    return read, written


def _of_process(pid: int) -> tuple[int, int] | None:
    """Return the counters of a process; None if it is gone or not readable."""
    fields = dict(line.split(b": ") for line in proctable.read_file(f"/proc/{pid}/io").splitlines())
    return (int(fields[b"read_bytes"]), int(fields[b"write_bytes"])) if fields else None


def _network(pids: Collection[int]) -> tuple[int, int] | None:
    """Bytes received and sent since its network began; None where it is the machine's."""
    own = os.readlink("/proc/self/ns/net")
    for pid in sorted(pids)[:MAX_PROCESSES]:
        try:
            if os.readlink(f"/proc/{pid}/ns/net") == own:
                return None
            with open(f"/proc/{pid}/net/dev", "rb") as file:
                return net_dev(file.read().decode("ascii"))
        except OSError:  # gone, or not ours to look at
            continue
    return None


def net_dev(text: str) -> tuple[int, int]:
    """Bytes received and sent over all interfaces but the loopback."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, figures = line.partition(":")
        columns = figures.split()
        if name.strip() != "lo" and len(columns) > 8:
            received += int(columns[0])
            sent += int(columns[8])
    return received, sent
