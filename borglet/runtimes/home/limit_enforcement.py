"""Enforce the limits that the kernel cannot enforce: measure all tasks, and stop tasks that exceed a limit."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from borglet.messages import EndCause, TaskKey, Usage
from borglet.runtimes.cgroups.limits import format_overuse, overuse
from borglet.runtimes.home.runtime_home import RuntimeHome, SupervisedTask


class Enforcement:
    """Measures the tasks of one Borglet, and stops tasks that exceed a limit. `stop`: the method `stop` of the
    runtime.
    """

    def __init__(self, home: RuntimeHome, stop: Callable[..., Awaitable[None]]) -> None:
        self._home, self._stop = home, stop
        self._allocs_measured_at = -math.inf

    async def sample(self) -> dict[TaskKey, Usage]:
        await self._measure_disks()
        metered = {key: known.metered for key, known in self._home.tasks.items() if known.metered is not None}
        usages = self._home.meter.measure(metered)
        for key, usage in usages.items():
            await self._enforce(self._home.tasks[key], usage)
        return usages

    async def _measure_disks(self) -> None:
        now, interval_s = time.monotonic(), self._home.settings.disk_interval_s
        for known in list(self._home.tasks.values()):
            metered = known.metered
            if metered is None:
                continue
            begins = metered.disk_at is None or now - metered.disk_at >= interval_s
            if begins or not metered.disk.done:  # with many files, a walk continues with each sample
                metered.disk_at = now if metered.disk.done else metered.disk_at
                await asyncio.to_thread(metered.disk.step)
        if now - self._allocs_measured_at >= interval_s:
            self._allocs_measured_at = now
            await asyncio.to_thread(self._home.allocs.measure)

    async def _enforce(self, known: SupervisedTask, usage: Usage) -> None:
        task = known.kept.task
        limit = self._home.containers.ceiling_of(task)
        found = overuse(limit, task.max_processes, usage)
        if found is None or known.overused or known.supervisor is None:
            return
        if found.cause is EndCause.OUT_OF_MEMORY:
            # The sum counts a shared page once per process, so the exact value is measured before a kill.
            exact = self._home.meter.proportional_ram(known.supervisor.pid)
            if exact <= limit["ram"]:
                return
            detail = format_overuse("RAM", limit["ram"], exact)
        else:
            detail = found.detail
        known.overused = True
        notice_s = task.notice_s if found.cause is EndCause.OUT_OF_DISK else 0.0
        await self._stop(task.key, notice_s=notice_s, cause=found.cause, detail=detail)
