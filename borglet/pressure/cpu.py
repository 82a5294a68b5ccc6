"""Limit the CPU of latency-sensitive tasks, so that batch tasks do not wait for CPU for minutes (§6.2). Pure.

Batch tasks are in the kernel's idle class. So they get no CPU (they starve) while latency-sensitive tasks use all of
it. For some seconds this is intended. Then the control acts:

    batch starves for `starved_after_s` ─► tasks above their own limit get ceilings, but never below that limit
    batch gets its minimum for `relax_after_s` ─► ceilings rise step by step; unneeded ceilings are removed
    other processes use the machine ─► batch leaves the idle class for a minute, and shares the CPU with them
    batch starves for `remove_after_s`, and no task is above its limit ─► the Borglet asks the master to evict starved
                                                                         tasks, one by one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from borglet.messages import Removal, TaskKey
from borglet.pressure.victims import PressureTenant

# Differences up to this share are noise of the measurement.
_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """Settings of the CPU control. `floor_share`: the share of the machine's CPU that all batch tasks together should
    get at least.
    """

    floor_share: float = 0.05
    outside_after_s: float = 5.0  # batch leaves the idle class if it starves for this long because of other processes
    outside_share: float = 0.5  # these use more than this share of the machine
    weigh_s: float = 60.0  # time for which batch then competes with all processes
    starved_after_s: float = 30.0
    settle_s: float = 10.0  # between two steps, so that the last step shows its effect
    relax_after_s: float = 60.0
    relax_factor: float = 1.25
    remove_after_s: float = 180.0
    remove_every_s: float = 60.0


@dataclass(slots=True)
class CpuControl:
    """The CPU control of one machine. `ceilings`: the temporary CPU limit, in milli-cores, of each task that used more
    than its own limit while batch tasks starved. `wanted`: tasks that the master should evict.
    """

    settings: CpuSettings = field(default_factory=CpuSettings)
    ceilings: dict[TaskKey, int] = field(default_factory=dict)
    wanted: dict[TaskKey, Removal] = field(default_factory=dict)
    _weighs_until: float = -math.inf
    _starved_since: float | None = None
    _quiet_since: float | None = None
    _acted_at: float = 0.0
    _removed_at: float = 0.0

    def batch_idle(self, now: float) -> bool:
        """Return whether batch tasks are in the kernel's idle class, in which they get only CPU that no other process
        needs.
        """
        return now >= self._weighs_until

    def step(
        self, tenants: Sequence[PressureTenant], *, machine_milli: int, now: float, outside_milli: int = 0
    ) -> None:
        """Update the attributes `ceilings` and `wanted` from one measurement at the time `now`, in seconds. `tenants`:
        the running tasks. `machine_milli`: the CPU of the machine. `outside_milli`: the CPU that processes other than
        tasks use. Both are in milli-cores.
        """
        running = {tenant.key for tenant in tenants}
        self.ceilings = {key: milli for key, milli in self.ceilings.items() if key in running}
        missing = self._missing(tenants, machine_milli)
        if missing <= 0:
            self._starved_since = None
            self.wanted = {}
            self._quiet_since = now if self._quiet_since is None else self._quiet_since
            if self.ceilings and now - self._quiet_since >= self.settings.relax_after_s:
                self._quiet_since = now
                self._relax(tenants, machine_milli)
            return
        self._quiet_since = None
        self._starved_since = now if self._starved_since is None else self._starved_since
        starved_s = now - self._starved_since
        outside = outside_milli > machine_milli * self.settings.outside_share
        if outside and starved_s >= self.settings.outside_after_s:
            self._weighs_until = now + self.settings.weigh_s
        if starved_s < self.settings.starved_after_s or now - self._acted_at < self.settings.settle_s:
            return
        if self._tighten(tenants, missing):
            self._acted_at = now
            return
        if starved_s < self.settings.remove_after_s or now - self._removed_at < self.settings.remove_every_s:
            return
        self._removed_at = now
        self._remove(tenants, starved_s)

    def _missing(self, tenants: Sequence[PressureTenant], machine_milli: int) -> int:
        """Return how many milli-cores the batch tasks lack. This is the difference between the CPU that they get and
        the CPU that they need, which counts only up to their guaranteed minimum.
        """
        batch = [tenant for tenant in tenants if not tenant.task.latency_sensitive]
        got = sum(tenant.usage.cpu_milli for tenant in batch)
        # A task at its own quota is not starved by other tasks.
        wanted = sum(1000 * t.ready for t in batch if t.task.slack.cpu or not t.usage.throttled_milli)
        floor = min(int(machine_milli * self.settings.floor_share), got + wanted)
        return floor - got if got < floor * (1 - 4 * _MARGIN) else 0

    def _tighten(self, tenants: Sequence[PressureTenant], missing: int) -> bool:
        """Set lower `ceilings` for tasks that use more CPU than their own limit, so that batch tasks get the `missing`
        milli-cores. Return False if no task uses more than its own limit.
        """
        excess = {
            t.key: t.usage.cpu_milli - _own(t)
            for t in tenants
            if t.task.latency_sensitive and t.usage.cpu_milli > _own(t) * (1 + _MARGIN)
        }
        total = sum(excess.values())
        if not total:
            return False
        share = min(1.0, missing * 1.2 / total)  # share of the excess, so that no task gets less than its own limit
        for tenant in tenants:
            if (over := excess.get(tenant.key)) is not None:
                self.ceilings[tenant.key] = int(tenant.usage.cpu_milli - over * share)
        return True

    def _relax(self, tenants: Sequence[PressureTenant], machine_milli: int) -> None:
        throttled: Mapping[TaskKey, int] = {t.key: t.usage.throttled_milli for t in tenants}
        raised = {key: int(milli * self.settings.relax_factor) for key, milli in self.ceilings.items()}
        self.ceilings = {key: milli for key, milli in raised.items() if milli < machine_milli and throttled[key]}

    def _remove(self, tenants: Sequence[PressureTenant], starved_s: float) -> None:
        """Add one batch task to `wanted`, so that the master evicts it: the task with the lowest priority of the
        non-prod batch tasks whose threads wait for CPU.
        """
        starved = [
            t
            for t in tenants
            if not t.task.latency_sensitive and not t.task.prod and t.ready and t.key not in self.wanted
        ]
        if not starved:
            return
        tenant = min(starved, key=lambda t: (t.task.priority, t.usage.cpu_milli, t.key))
        detail = (
            f"latency-sensitive tasks used all the CPU, within their limits, for {starved_s:.0f} s;"
            f" this batch task got {tenant.usage.cpu_milli} milli-cores and has {tenant.ready} threads ready to run,"
            " so the Borglet asks the master to evict it"
        )
        self.wanted[tenant.key] = Removal(tenant.key, "cpu-starved", detail)


def _own(tenant: PressureTenant) -> int:
    """Return the CPU, in milli-cores, below which no ceiling of a task may be: its own limit, or 100 if it has no
    limit.
    """
    return tenant.task.limit.get("cpu", 0) or 100
