"""The control loop of one machine (§6.2): measure, decide with the pure modules, and act through the runtime.

    agent ── usage of tasks ──► Guard.look ──► runtime.adjust   CPU ceilings, grants of memory, CPU of batch tasks
                                    │
                                    └─► Orders ──► agent: tasks to end (machine-short), tasks to evict

A part of the memory, the reserve, should stay free (`memory_reserve.py`). Memory is tight if less than twice the
reserve is free; the guard then throttles batch tasks. Memory is short if less than the reserve is free; the guard then
ends tasks. Memory is measured twice per second. All other values are measured with the usage of all tasks. When memory
gets tight, the agent measures this usage early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from borglet.messages import Removal, TaskKey
from borglet.pressure import memory_reserve
from borglet.pressure.cpu import CpuControl, CpuSettings
from borglet.pressure.readings import Readings
from borglet.pressure.victims import PressureTenant, Resource, Shortage, Victim, held, victims
from borglet.runtimes.base.runtime import Runtime
from borglet.runtimes.cgroups.limits import Grant

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GuardSettings:
    memory_interval_s: float = 0.5
    least_interval_s: float = 0.25  # between two rounds, when memory becomes tight
    tight_interval_s: float = 1.0  # between two rounds, while memory stays tight
    batch_when_tight: float = 0.1  # share of the machine's CPU for batch while memory is tight
    # For this time, memory and disk of an ending task count as free, although it still has them.
    ram_grace_s: float = 10.0
    disk_grace_s: float = 120.0
    busy_share: float = 0.95  # if the cores are less busy, no task starves, and threads are not counted
    cpu: CpuSettings = field(default_factory=CpuSettings)


@dataclass(frozen=True, slots=True)
class Orders:
    """The result of one round of the `Guard`. `end`: tasks that the Borglet must end now, because the machine lacks
    memory or disk. `removals`: tasks that the master should evict.
    """

    end: tuple[Victim, ...] = ()
    removals: tuple[Removal, ...] = ()


class Guard:
    """The control loop that keeps a machine from running out of memory, disk or CPU. `free_disk`: a function that
    removes unused packages; it is called if too little disk is free.
    """

    def __init__(
        self,
        runtime: Runtime,
        readings: Readings,
        *,
        settings: GuardSettings = GuardSettings(),
        free_disk: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._runtime, self._readings, self._settings = runtime, readings, settings
        self._free_disk = free_disk
        self._machine_milli = runtime.capacity()["cpu"]
        self._cpu = CpuControl(settings.cpu)
        # Ending tasks by resource, with the time until which their usage counts as free.
        self._leaving: dict[Resource, dict[TaskKey, float]] = {"ram": {}, "disk": {}}
        self._was_tight = False
        self._logged: set[Resource] = set()  # short resources for which no task may end, which is logged once

    async def look(self, tenants: Sequence[PressureTenant], now: float) -> Orders:
        """Check the pressure on the machine once, and return what the agent must do. `tenants`: each running task
        with its present usage. `now`: seconds of a clock that never runs backwards.
        """
        busy = self._readings.busy_share()
        tenants = await self._with_ready(tenants, busy)
        here = {tenant.key for tenant in tenants}
        ram, disk = self._leaving["ram"], self._leaving["disk"]
        self._leaving["ram"] = {key: until for key, until in ram.items() if key in here and until > now}
        self._leaving["disk"] = {key: until for key, until in disk.items() if until > now}
        end = [*self._relieve("ram", tenants, now), *await self._relieve_disk(tenants, now)]
        outside = int(busy * self._machine_milli) - sum(tenant.usage.cpu_milli for tenant in tenants)
        self._cpu.step(tenants, machine_milli=self._machine_milli, now=now, outside_milli=outside)
        await self._adjust(tenants, now)
        return Orders(tuple(end), tuple(self._cpu.wanted.values()))

    async def pause(self, most_s: float) -> None:
        """Wait until the next round: for `most_s` seconds, or less if memory becomes tight."""
        settings, loop = self._settings, asyncio.get_running_loop()
        until = loop.time() + most_s
        least_s = settings.tight_interval_s if self._was_tight else settings.least_interval_s
        await asyncio.sleep(min(most_s, least_s))
        while (left_s := until - loop.time()) > 0:
            if memory_reserve.is_tight(self._readings.memory(), 0):
                return
            await asyncio.sleep(min(left_s, settings.memory_interval_s))

    async def _with_ready(self, tenants: Sequence[PressureTenant], busy: float) -> list[PressureTenant]:
        """Return `tenants` with the number of threads of each batch task that run or wait for a core. The numbers are
        measured only if the machine is busy. `busy`: the used share of the cores' time, from 0 to 1.
        """
        batch = [tenant.key for tenant in tenants if not tenant.task.latency_sensitive]
        if busy < self._settings.busy_share or not batch:
            return list(tenants)
        ready = await self._runtime.ready(batch)
        return [PressureTenant(t.task, t.usage, ready.get(t.key, 0)) for t in tenants]

    def _shortage(self, resource: Resource, tenants: Sequence[PressureTenant]) -> Shortage | None:
        reading = self._readings.memory() if resource == "ram" else self._readings.disk()
        return memory_reserve.shortage_of(resource, reading, sum(held(tenant, resource) for tenant in tenants))

    async def _relieve_disk(self, tenants: Sequence[PressureTenant], now: float) -> list[Victim]:
        """If too little disk is free, remove unused packages. If this is not enough, return the tasks that must end;
        otherwise, return an empty list.
        """
        if self._leaving["disk"]:
            return []
        if self._free_disk is not None and self._shortage("disk", tenants) is not None:
            await self._free_disk()
        return self._relieve("disk", tenants, now)

    def _relieve(self, resource: Resource, tenants: Sequence[PressureTenant], now: float) -> list[Victim]:
        leaving = self._leaving[resource]
        shortage = self._shortage(resource, tenants)
        if shortage is None:
            self._logged.discard(resource)
            return []
        found = victims(shortage, tenants, leaving)
        grace_s = self._settings.ram_grace_s if resource == "ram" else self._settings.disk_grace_s
        for victim in found:
            leaving[victim.key] = now + grace_s
            log.warning("the Borglet ends task %s: %s", victim.key, victim.detail)
        if not found and not leaving and resource not in self._logged:
            self._logged.add(resource)
            log.warning(
                "%s; the Borglet ends no task, because all tasks are prod and within their limits", shortage.figures
            )
        return found

    async def _adjust(self, tenants: Sequence[PressureTenant], now: float) -> None:
        found = self._readings.memory()
        tight = memory_reserve.is_tight(found, sum(tenant.usage.ram_bytes for tenant in tenants))
        if tight != self._was_tight:
            log.info("memory is %s: %d MiB available", "tight" if tight else "plenty", found.available >> 20)
            self._was_tight = tight
        ram = memory_reserve.grants(found, tenants, self._leaving["ram"])
        keys = ram.keys() | self._cpu.ceilings.keys()
        grants = {key: Grant(self._cpu.ceilings.get(key, 0), ram.get(key, 0)) for key in keys}
        batch = max(100, int(self._machine_milli * self._settings.batch_when_tight)) if tight else 0
        await self._runtime.adjust(grants, batch_milli=batch, batch_idle=self._cpu.batch_idle(now))
