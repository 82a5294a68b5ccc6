"""Time limits for a process. A process that shows signs of work gets more time, up to a limit.

A process that is slow because the machine is busy uses CPU, or writes to its log or its pulse file. A process that
hangs does none of these. A process in an endless loop uses CPU without progress, so the extra time has a limit.
`ProcessPatience` is pure: the supervisor passes the time and the result of `work_of` as arguments.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# The share of one core, over a window, that counts as work. Idle threads that wake up sometimes use less.
LEAST_SHARE = 0.05
# A process that works may take `MORE_TIMES` as long as one that does not, and at least `AT_LEAST_S`.
MORE_TIMES, AT_LEAST_S = 10.0, 600.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a process so far: CPU seconds of its session, bytes of its log, and the last change of its heartbeat
    file.
    """

    cpu_s: float = 0.0
    log_bytes: int = 0
    pulse_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PatienceVerdict:
    """The result of a check. `over`: whether the time limit has passed. `progress`: a text with the CPU use so far."""

    over: bool
    progress: str


class ProcessPatience:
    """The time limit of a wait for a process, for example until it is ready. `now`: the start of the wait, in monotonic
    seconds. The wait ends after `limit_s` seconds without any sign of work, and after `longest_s` seconds in any case.
    """

    def __init__(self, limit_s: float, *, now: float, work: Work, count_log: bool = True) -> None:
        self.limit_s, self.began, self._count_log = limit_s, now, count_log
        self.longest_s = max(MORE_TIMES * limit_s, AT_LEAST_S)
        self._first = self._last = work
        self._window = now

    def is_due(self, now: float) -> bool:
        """Return whether the next check of the process is due: whether at least `limit_s` seconds have passed since the
        last one.
        """
        return now - self._window >= self.limit_s

    def verdict(self, now: float, work: Work) -> PatienceVerdict:
        """Return whether to stop waiting for the process. This is the case if the process has shown no sign of work
        since the last call, or if `longest_s` seconds have passed since the wait began. `work`: what the process has
        done so far.
        """
        took_s, cpu_s = now - self._window, work.cpu_s - self._last.cpu_s
        signs = [
            cpu_s >= LEAST_SHARE * took_s,
            self._count_log and work.log_bytes != self._last.log_bytes,
            work.pulse_at > self._last.pulse_at,
        ]
        self._window, self._last = now, work
        all_s, all_cpu_s = now - self.began, max(0.0, work.cpu_s - self._first.cpu_s)
        progress = f"it has used {all_cpu_s:.0f} s of CPU in {all_s:.0f} s"
        return PatienceVerdict(not any(signs) or all_s >= self.longest_s, progress)


def work_of(pid: int, log: Path, pulse: Path | None) -> Work:
    """Return what the process `pid` has done so far: the CPU seconds of the session that it leads, the bytes of its
    log, and the last change of its heartbeat file `pulse`. A value that cannot be read is 0.
    """
    return Work(_cpu_s(pid), _status(log).st_size, _status(pulse).st_mtime)


def _cpu_s(session: int) -> float:
    """Return the CPU seconds of all processes of a session, and of their children that have ended."""
    ticks = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


def _status(path: Path | None) -> os.stat_result:
    """Return the status of the file `path`. If the file cannot be read or `path` is None, all values are 0."""
    try:
        return os.stat(path or "")
    except OSError:
        return os.stat_result([0] * 10)
