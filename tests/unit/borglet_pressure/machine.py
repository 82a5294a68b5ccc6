"""Builders for tests of memory, disk and CPU pressure: machine readings that a test sets, and tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from borglet.messages import Slack, TaskKey, Usage
from borglet.pressure.memory_reserve import GIB, AvailableMemory
from borglet.pressure.victims import PressureTenant
from borglet.runtimes.cgroups.limits import Grant
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from tests.real.runtimes.machine import MIB, a_task, key


def tenant(index: int, *, ready: int = 0, usage: Usage = Usage(), **changes: Any) -> PressureTenant:
    return PressureTenant(a_task("x", key=key(index), **changes), usage, ready)


def server(index: int, used: int = 0, *, limit: int = 1000, ram: int = 0, **changes: Any) -> PressureTenant:
    return tenant(
        index, usage=Usage(cpu_milli=used, ram_bytes=ram * MIB), limit={"cpu": limit, "ram": 100 * MIB}, **changes
    )


def batch(
    index: int, used: int = 0, *, ram: int = 0, ready: int = 0, priority: int = 110, **changes: Any
) -> PressureTenant:
    fields: dict[str, Any] = {"latency_sensitive": False, "prod": False, "limit": {"cpu": 500, "ram": 100 * MIB}}
    return tenant(
        index, ready=ready, usage=Usage(cpu_milli=used, ram_bytes=ram * MIB), priority=priority, **(fields | changes)
    )


SLACK = Slack(ram=True)


PLENTY, EMPTY = AvailableMemory(8 * GIB, 4 * GIB), AvailableMemory(100 * GIB, 50 * GIB)


@dataclass
class Drawn:
    """Readings of a machine that a test sets: memory, disk space, and the busy share of CPU."""

    ram: AvailableMemory = PLENTY
    files: AvailableMemory = EMPTY
    busy: float = 0.5

    def memory(self) -> AvailableMemory:
        return self.ram

    def disk(self) -> AvailableMemory:
        return self.files

    def busy_share(self) -> float:
        return self.busy


@dataclass
class Recorder(SimulatedRuntime):
    """A simulated runtime that records the grants it was given."""

    threads: dict[TaskKey, int] = field(default_factory=dict)
    grants: Mapping[TaskKey, Grant] = field(default_factory=dict)
    batch_milli: int = 0
    batch_idle: bool = True

    def __post_init__(self) -> None:
        super().__init__(Simulation(lambda: 0.0), {"cpu": 4000, "ram": 8 * GIB})

    async def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True) -> None:
        self.grants, self.batch_milli, self.batch_idle = dict(grants), batch_milli, batch_idle

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        return {key: self.threads.get(key, 0) for key in keys}
