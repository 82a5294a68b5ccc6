"""Choose the tasks that must end when a machine runs out of memory or disk (§6.2). Pure.

Tasks over their own limit come first, whatever their priority. Then come non-prod tasks, from the lowest priority up,
the largest first. Prod tasks within their limits never end. The master evicts in the same order
(`scheduling.core.reclamation.shortage`), but only every few seconds, which can be too late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from borglet.messages import RunTask, TaskKey, Usage
from borglet.runtimes.cgroups.cgroupfs import mebibytes

# A task that uses less is not ended, because its end would free too little.
LEAST_BYTES = 2**20

Resource = Literal["ram", "disk"]


@dataclass(frozen=True, slots=True)
class PressureTenant:
    """A running task and its usage, for the control loop. `ready`: the number of the task's threads that run or wait
    for a core.
    """

    task: RunTask
    usage: Usage
    ready: int = 0

    @property
    def key(self) -> TaskKey:
        return self.task.key


@dataclass(frozen=True, slots=True)
class Shortage:
    """A shortage of memory or disk on a machine. `excess_bytes`: the bytes to free. `figures`: the measured values as a
    text.
    """

    resource: Resource
    excess_bytes: int
    figures: str


@dataclass(frozen=True, slots=True)
class Victim:
    key: TaskKey
    bytes: int
    detail: str


def victims(shortage: Shortage, tenants: Sequence[PressureTenant], leaving: Collection[TaskKey]) -> list[Victim]:
    """Return the tasks that must end to free enough memory or disk. The list contains no task that need not end.

    `leaving`: tasks that are already ending. The memory or disk that these tasks use counts as free.
    """
    resource = shortage.resource
    left = shortage.excess_bytes - sum(held(t, resource) for t in tenants if t.key in leaving)
    chosen: list[PressureTenant] = []
    candidates = [t for t in tenants if t.key not in leaving and _may_end(t, resource)]
    for tenant in sorted(candidates, key=lambda t: _rank(t, resource)):
        if left <= 0:
            break
        chosen.append(tenant)
        left -= held(tenant, resource)
    for tenant in reversed(chosen):
        if left + held(tenant, resource) <= 0:
            chosen.remove(tenant)
            left += held(tenant, resource)
    return [Victim(t.key, held(t, resource), _detail(t, shortage)) for t in chosen]


def held(tenant: PressureTenant, resource: Resource) -> int:
    """Return the bytes of memory or disk that a task uses."""
    return tenant.usage.ram_bytes if resource == "ram" else tenant.usage.disk_bytes


def _over(tenant: PressureTenant, resource: Resource) -> bool:
    return held(tenant, resource) > tenant.task.limit.get(resource, 0) > 0


def _may_end(tenant: PressureTenant, resource: Resource) -> bool:
    return held(tenant, resource) >= LEAST_BYTES and (_over(tenant, resource) or not tenant.task.prod)


def _rank(tenant: PressureTenant, resource: Resource) -> tuple[bool, int, int, TaskKey]:
    return not _over(tenant, resource), tenant.task.priority, -held(tenant, resource), tenant.key


def _detail(tenant: PressureTenant, shortage: Shortage) -> str:
    limit = tenant.task.limit.get(shortage.resource, 0)
    own = f"this task used {mebibytes(held(tenant, shortage.resource))}"
    own += f", its limit is {mebibytes(limit)}" if limit else ""
    return f"{shortage.figures}; {own}, and its priority is {tenant.task.priority}"
