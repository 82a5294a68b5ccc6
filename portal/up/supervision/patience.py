"""How long a process may take: longer while it works, and never without bound.

A process that is slow because the machine is busy uses CPU, or writes to its log or its pulse file. One that hangs does
none of these. One that spins uses CPU and gets nowhere, so working buys only so much more time. `ProcessPatience` is
pure; the supervisor passes in the time and what `work_of` reads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Of one core, over a window. Idle threads that wake up now and then use less.
LEAST_SHARE = 0.05
# A process that works may take so many times as long as one that does not, and at least so many seconds.
MORE_TIMES, AT_LEAST_S = 10.0, 600.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Work:
    """What a process has done so far: CPU seconds of its session, bytes of its log, when it touched its pulse file."""

    cpu_s: float = 0.0
    log_bytes: int = 0
    pulse_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PatienceVerdict:
    """`over`: patience has ended. `told`: what the process has done, as a clause."""

    over: bool
    told: str


class ProcessPatience:
    """Of one wait, which begins at `now` (monotonic seconds). `limit_s` is for a process that does nothing."""

    def __init__(self, limit_s: float, *, now: float, work: Work, count_log: bool = True) -> None:
        self.limit_s, self.began, self._count_log = limit_s, now, count_log
        self.longest_s = max(MORE_TIMES * limit_s, AT_LEAST_S)
        self._first = self._last = work
        self._window = now

    def is_due(self, now: float) -> bool:
        """Whether it is time to ask for a verdict."""
        return now - self._window >= self.limit_s

    def verdict(self, now: float, work: Work) -> PatienceVerdict:
        """On the window that ends now; the next one begins. Time runs from the beginning of the wait."""
        took_s, cpu_s = now - self._window, work.cpu_s - self._last.cpu_s
        signs = [
            cpu_s >= LEAST_SHARE * took_s,
            self._count_log and work.log_bytes != self._last.log_bytes,
            work.pulse_at > self._last.pulse_at,
        ]
        self._window, self._last = now, work
        all_s, all_cpu_s = now - self.began, max(0.0, work.cpu_s - self._first.cpu_s)
        told = f"it has used {all_cpu_s:.0f} s of CPU in {all_s:.0f} s"
        return PatienceVerdict(not any(signs) or all_s >= self.longest_s, told)


def work_of(pid: int, log: Path, pulse: Path | None) -> Work:
    """What the process `pid`, which leads a session, has done. Zeros for what can't be read."""
    return Work(_cpu_s(pid), _size(log), _touched(pulse) if pulse is not None else 0.0)


def _cpu_s(session: int) -> float:
    """CPU time of all processes of a session, and of those of their children that have ended."""
    ticks = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
