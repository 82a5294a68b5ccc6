"""Readings of the machine: memory, the disk under the home, and how busy its cores are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from borglet.pressure.memory import AvailableMemory


class Readings(Protocol):
    def memory(self) -> AvailableMemory: ...

    def disk(self) -> AvailableMemory: ...

    def busy_share(self) -> float:
        """The share of all cores' time that was used since the last call, 0 to 1."""


@dataclass
class MachineReadings:
    """`capacity`: what was promised to the cell, by resource."""

    home: Path
    capacity: dict[str, int]
    proc: Path = Path("/proc")
    _idle: int = 0
    _total: int = 0

    def memory(self) -> AvailableMemory:
        """MemAvailable includes what the kernel can take back without harm, above all page cache."""
        fields = {}
        for line in (self.proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                fields[name] = int(value.split()[0]) * 1024
        given = self.capacity.get("ram", 0)
        return AvailableMemory(fields["MemTotal"], fields["MemAvailable"], given, self._stalled())

    def _stalled(self) -> float:
        """Return the pressure from the kernel's figures `full avg10=1.50 …`, in %. Zero without such figures."""
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
        """Return the reading of the disk. Promised amounts do not matter, because other content of the disk reduces
        the available space.
        """
        found = os.statvfs(self.home)
        return AvailableMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def busy_share(self) -> float:
        ticks = [int(text) for text in (self.proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        elapsed, idled = total - self._total, idle - self._idle
        self._total, self._idle = total, idle
        return 1 - idled / elapsed if elapsed > 0 else 0.0
