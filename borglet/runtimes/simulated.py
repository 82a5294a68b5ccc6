"""The `simulated` runtime: tasks have no processes, and their usage is computed. One process can simulate thousands of
machines.

The seed and the key of a task determine its average usage, as a share of its limit. The means are those of Google's
trace of 2019. Free, batch, mid and production tasks use 0.15, 0.34, 0.61 and 0.42 of their CPU limit, and 0.12, 0.36,
0.48 and 0.63 of their RAM limit. Each sample varies around the task's average. Disk usage has the same share as RAM,
and does not vary.

If the environment of a task has the variable `SIM_DURATION_S`, the task ends with status 0 after this number of
seconds.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from borglet.messages import (
    AllocReport,
    EndCause,
    Exit,
    LogChunk,
    LogRequest,
    RunAlloc,
    RunTask,
    SecretRef,
    SecretValue,
    ShellClaims,
    TaskKey,
    Usage,
)
from borglet.runtimes.base.runtime import NO_TREES, Presence, StartFailed
from borglet.runtimes.cgroups.limits import Grant
from borglet.runtimes.supervisor.ptys import Pty, ShellRefused

BATCH_PRIORITY = 100  # tasks with a lower priority have the kind `free`
MID_PRIORITY = 116  # tasks from this priority on have the kind `mid`, the upper part of the batch band in the trace
_CPU_MEANS = {"free": 0.15, "batch": 0.34, "mid": 0.61, "prod": 0.42}
_RAM_MEANS = {"free": 0.12, "batch": 0.36, "mid": 0.48, "prod": 0.63}
_CONCENTRATION = 4.0  # of the beta distribution of averages, which is as wide as in the trace
_WOBBLE = 0.2  # a sample lies within this share around the average
_SIGTERM = 15


@dataclass(frozen=True, slots=True)
class Simulation:
    """The clock and the settings that all simulated machines of a process share."""

    clock: Callable[[], float]
    seed: int = 0
    start_delay_s: float = 0.05


@dataclass(slots=True)
class _Simulated:
    task: RunTask
    run: int
    started_at: float
    ratios: tuple[float, float]  # averages: CPU, RAM
    noise: int
    exit: Exit | None = None
    timer: asyncio.TimerHandle | None = None

    def presence(self) -> Presence:
        return Presence(self.task, self.run, self.started_at, self.exit)


class SimulatedRuntime:
    """The runtime of one simulated machine. Its tasks end when the Borglet process ends, as if the machine had
    restarted.
    """

    name = "simulated"
    api_url = ""

    def __init__(self, simulation: Simulation, capacity: dict[str, int]) -> None:
        self._simulation, self._capacity = simulation, capacity
        self._tasks: dict[TaskKey, _Simulated] = {}
        self._ended: asyncio.Queue[Presence] = asyncio.Queue()
        self._allocs: dict[TaskKey, str] = {}
        self._samples = 0

    def attributes(self) -> dict[str, str]:
        return {
            "runtime": self.name,
            "isolation.memory": "none",
            "isolation.cpu": "none",
            "isolation.processes": "none",
            "isolation.disk": "none",
            "secrets": "memory",
            "configs": "memory",
        }

    def capacity(self) -> dict[str, int]:
        return dict(self._capacity)

    async def start(
        self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES, secrets: Sequence[SecretValue] = ()
    ) -> None:
        known = self._tasks.get(task.key)
        if known is not None and known.exit is None:
            return
        duration_s = _duration(task)
        ratios, noise = usage_ratios(task, seed=self._simulation.seed)
        started = _Simulated(task, run, self._simulation.clock(), ratios, noise)
        self._tasks[task.key] = started
        await asyncio.sleep(self._simulation.start_delay_s)
        if duration_s is not None and started.exit is None:
            self._end_after(started, duration_s, Exit(EndCause.EXITED, 0.0, status=0))

    async def stop(self, key: TaskKey, *, notice_s: float, cause: EndCause, detail: str = "") -> None:
        """End the simulated task immediately, as if its processes had exited after SIGTERM."""
        known = self._tasks.get(key)
        if known is not None and known.exit is None:
            self._end_after(known, 0.0, Exit(cause, 0.0, signal=_SIGTERM, detail=detail, notice="full"))

    async def resize(self, task: RunTask) -> None:
        known = self._tasks.get(task.key)
        if known is not None and known.exit is None:
            known.task = task
            known.ratios, known.noise = usage_ratios(task, seed=self._simulation.seed)

    async def identify(self, key: TaskKey, token: str) -> None:
        """Do nothing: simulated tasks use no identity."""

    async def renew_secrets(self, key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool = False) -> None:
        """Do nothing: simulated tasks use no secrets."""

    def secrets_of(self, key: TaskKey) -> list[SecretRef]:
        return []

    async def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True) -> None:
        """Do nothing: simulated tasks do not disturb each other."""

    async def remove(self, key: TaskKey) -> None:
        known = self._tasks.get(key)
        if known is None:
            return
        if known.exit is None:
            raise ValueError(f"task {key} still runs; stop it and wait for its end before removing it")
        del self._tasks[key]

    async def hold_allocs(self, allocs: Sequence[RunAlloc], dropped: Collection[TaskKey]) -> None:
        for alloc in allocs:
            self._allocs[alloc.key] = alloc.name
        in_use = {known.task.alloc for known in self._tasks.values()}
        for key in set(dropped) - in_use:
            self._allocs.pop(key, None)

    def allocs(self) -> list[AllocReport]:
        return [AllocReport(key, name) for key, name in sorted(self._allocs.items())]

    def addresses(self) -> dict[TaskKey, str]:
        return {}

    async def presences(self) -> list[Presence]:
        return [known.presence() for known in self._tasks.values()]

    async def next_end(self) -> Presence:
        return await self._ended.get()

    async def sample(self) -> dict[TaskKey, Usage]:
        self._samples += 1
        return {key: _usage(known, self._samples) for key, known in self._tasks.items() if known.exit is None}

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        return {}

    async def read_log(self, request: LogRequest) -> LogChunk:
        return LogChunk(request.request_id, 0, 0, "", error="a simulated task writes no log")

    async def open_shell(self, claims: ShellClaims) -> Pty:
        raise ShellRefused(
            "a simulated task has no processes, so it cannot open a shell; choose a task on a real machine"
        )

    async def close(self) -> None:
        for known in self._tasks.values():
            if known.timer is not None:
                known.timer.cancel()

    def _end_after(self, known: _Simulated, delay_s: float, exit_: Exit) -> None:
        if known.timer is not None:
            known.timer.cancel()
        known.timer = asyncio.get_running_loop().call_later(delay_s, self._end, known, exit_)

    def _end(self, known: _Simulated, exit_: Exit) -> None:
        if known.exit is not None:
            return
        known.exit = msgspec.structs.replace(exit_, at=self._simulation.clock())
        self._ended.put_nowait(known.presence())


def kind(task: RunTask) -> str:
    """Return the kind of a task, which follows from its priority: free, batch, mid or prod, as in Google's published
    cluster trace.
    """
    if task.prod:
        return "prod"
    if task.priority >= MID_PRIORITY:
        return "mid"
    return "batch" if task.priority >= BATCH_PRIORITY else "free"


def usage_ratios(task: RunTask, *, seed: int) -> tuple[tuple[float, float], int]:
    """Return the average usage of a task (CPU and RAM, as shares of its limit), and a number from which the difference
    of each sample from this average is computed.
    """
    noise = zlib.crc32(f"{seed}/{task.key}".encode())
    rng = random.Random(noise)
    cpu, ram = (_draw(rng, means[kind(task)]) for means in (_CPU_MEANS, _RAM_MEANS))
    return (cpu, ram), noise


def _draw(rng: random.Random, mean: float) -> float:
    return rng.betavariate(_CONCENTRATION * mean, _CONCENTRATION * (1 - mean))


def _usage(known: _Simulated, sample: int) -> Usage:
    limit, (cpu, ram) = known.task.limit, known.ratios
    spread = (((known.noise + sample) * 2654435761) >> 8) & 0xFFFF
    wobble = 1 - _WOBBLE + 2 * _WOBBLE * spread / 0xFFFF
    return Usage(
        cpu_milli=round(limit.get("cpu", 0) * cpu * wobble),
        ram_bytes=round(limit.get("ram", 0) * min(1.0, ram * wobble)),
        disk_bytes=round(limit.get("disk", 0) * ram),
        processes=1,
    )


def _duration(task: RunTask) -> float | None:
    """Return the duration from the variable `SIM_DURATION_S` of the task in seconds, or None if the task does not have
    this variable. Raises `StartFailed` if the value is not valid.
    """
    text = task.env.get("SIM_DURATION_S")
    if text is None:
        return None
    try:
        duration_s = float(text)
    except ValueError:
        duration_s = -1.0
    if not 0 <= duration_s < 1e9:
        raise StartFailed(f"env.SIM_DURATION_S: {text!r} is not a number of seconds; give 0 or more")
    return duration_s
