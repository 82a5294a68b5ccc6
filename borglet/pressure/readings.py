"""Measure a machine: its memory, the disk that contains the Borglet's home folder, and the use of its cores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from borglet.pressure.memory_reserve import AvailableMemory


class Readings(Protocol):
    def memory(self) -> AvailableMemory: ...

    def disk(self) -> AvailableMemory: ...

    def busy_share(self) -> float:
        """Return which share of the time of all cores was used since the last call, from 0 to 1."""


@dataclass
class MachineReadings:
    """Reads the available memory, the free disk and the CPU use of a real machine. `capacity`: resources that the
    machine offers to the cell.
    """

    home: Path
    capacity: dict[str, int]
    proc: Path = Path("/proc")
    _idle: int = 0
    _total: int = 0

    def memory(self) -> AvailableMemory:
        """Return the total and the available memory. The available memory includes the page cache, which the kernel can
        free.
        """
        fields = {}
        for line in (self.proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                fields[name] = int(value.split()[0]) * 1024
        given = self.capacity.get("ram", 0)
        return AvailableMemory(fields["MemTotal"], fields["MemAvailable"], given, self._stalled())

    def _stalled(self) -> float:
        """Return the share of the last ten seconds in which all processes waited for memory, 0 to 1. The kernel
        reports it in %, in the line `full avg10=1.50 …`.
        """
        try:
            lines = (self.proc / "pressure" / "memory").read_text().splitlines()
        except OSError:
            return 0.0
        for line in lines:
            kind, _, figures = line.partition(" ")
            if kind == "full":
                return float(figures.partition("avg10=")[2].split()[0]) / 100
        return 0.0

    def disk(self) -> AvailableMemory:
        """Return the size and the free space of the disk that contains the Borglet's home folder. The size includes the
        part of the disk that is not offered to tasks.
        """
        found = os.statvfs(self.home)
        return AvailableMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def busy_share(self) -> float:
        ticks = [int(text) for text in (self.proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        elapsed, idled = total - self._total, idle - self._idle
        self._total, self._idle = total, idle
        return 1 - idled / elapsed if elapsed > 0 else 0.0
