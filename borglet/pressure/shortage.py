"""Choose the tasks that must end when a machine runs out of memory or disk, which cannot be throttled (§6.2). Pure.

Tasks over their own limit first, whatever their priority; then non-prod, from the lowest priority up, the largest
first; prod within its limits never. The same order as the master's (`scheduling.core.reclamation.shortage`), which
sees machines every few seconds and evicts; this one acts where seconds are too long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from borglet.messages import RunTask, TaskKey, Usage
from borglet.runtimes.cgroups.cgroupfs import mebibytes

# Ending a task that uses less would free too little.
LEAST_BYTES = 2**20

Resource = Literal["ram", "disk"]


@dataclass(frozen=True, slots=True)
class PressureTenant:
    """A running task as the control loop sees it.

    `usage`: over the last few seconds. `ready`: the number of its threads that were ready to run at the last look."""

    task: RunTask
    usage: Usage
    ready: int = 0

    @property
    def key(self) -> TaskKey:
        return self.task.key


@dataclass(frozen=True, slots=True)
class Shortage:
    """`excess_bytes`: how much must be freed. `figures`: the machine's figures, as text."""

    resource: Resource
    excess_bytes: int
    figures: str


@dataclass(frozen=True, slots=True)
class Victim:
    key: TaskKey
    bytes: int
    detail: str


def victims(shortage: Shortage, tenants: Sequence[PressureTenant], leaving: Collection[TaskKey]) -> list[Victim]:
    """Return tasks whose end frees enough. Tasks that turn out unnecessary are spared, the last chosen first.

    `leaving`: tasks that are already ending; their usage counts as freed.
    """
    resource = shortage.resource
    left = shortage.excess_bytes - sum(_held(t, resource) for t in tenants if t.key in leaving)
    chosen: list[PressureTenant] = []
    candidates = [t for t in tenants if t.key not in leaving and _may_end(t, resource)]
    for tenant in sorted(candidates, key=lambda t: _rank(t, resource)):
        if left <= 0:
            break
        chosen.append(tenant)
        left -= _held(tenant, resource)
    for tenant in reversed(chosen):
        if left + _held(tenant, resource) <= 0:
            chosen.remove(tenant)
            left += _held(tenant, resource)
    return [Victim(t.key, _held(t, resource), _detail(t, shortage)) for t in chosen]


def _held(tenant: PressureTenant, resource: Resource) -> int:
    return tenant.usage.ram_bytes if resource == "ram" else tenant.usage.disk_bytes


def _over(tenant: PressureTenant, resource: Resource) -> bool:
    return _held(tenant, resource) > tenant.task.limit.get(resource, 0) > 0


def _may_end(tenant: PressureTenant, resource: Resource) -> bool:
    if _held(tenant, resource) < LEAST_BYTES:
        return False
    return _over(tenant, resource) or not tenant.task.prod


def _rank(tenant: PressureTenant, resource: Resource) -> tuple[bool, int, int, TaskKey]:
    return not _over(tenant, resource), tenant.task.priority, -_held(tenant, resource), tenant.key


def _detail(tenant: PressureTenant, shortage: Shortage) -> str:
    limit = tenant.task.limit.get(shortage.resource, 0)
    own = f"this task used {mebibytes(_held(tenant, shortage.resource))}"
    own += f", limit {mebibytes(limit)}" if limit else ""
    return f"{shortage.figures}; {own}, priority {tenant.task.priority}"
