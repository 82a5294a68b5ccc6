"""What each machine has left during a pass: the state's quantities, less what the pass has given out (§5.5).

Prod is placed by limits: those of all prod tasks fit the capacity, and reservations of all that stay fit too.
Non-prod is placed by the reservations of all that stay, so into reclaimed resources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quota.bands import Band, band_of, may_preempt
from quota.resources import PORTS
from scheduling.core.policy import Policy
from scheduling.core.requirement import Requirement
from scheduling.core.state import CellState, Ints, JobRecord, MachineRecord, TaskRecord

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EquivalenceClass:
    """Tasks with identical requirements (§3.4): equal in all that placement depends on, but the job itself."""

    requirement: Requirement
    priority: int
    by_limit: bool  # placed by limits, as prod; otherwise by reservations (§5.5)

    @property
    def per_job(self) -> bool:
        """Whether it matters where other tasks of the same job are."""
        wanted = self.requirement
        return bool(wanted.max_per_machine or wanted.max_per_rack or wanted.max_per_power_domain)


@dataclass(slots=True)
class Overlay:
    """Where tasks of one job are: `counts` per machine, rack and power domain."""

    counts: tuple[Ints, Ints, Ints]
    shared: bool  # the empty one, of all jobs of one task: never written


class Ledger:
    """`left_*[m]` are what machine slot m has left; a row is renewed when the pass takes or frees there."""

    def __init__(self, state: CellState, policy: Policy) -> None:
        self.state, self.policy = state, policy
        self.capacity = state.capacity
        self._bands: dict[int, Band] = {}
        self.hits = self.misses = 0
        self._classes: dict[tuple[Requirement, int, bool], EquivalenceClass] = {}
        self._needs: dict[Requirement, Ints] = {}
        self._overlays: dict[int, Overlay] = {}
        nothing = np.zeros(len(state.up), np.int64)
        self._nowhere = Overlay(
            (nothing, np.zeros(state.racks, np.int64), np.zeros(state.domains, np.int64)), shared=True
        )
        self.prod_limits = self._sum(state.limits, prod_only=True)
        self.reserved = self._sum(state.reservations, prod_only=False)
        self.ports_used = state.ports_used.copy()
        self._ports_taken: dict[int, set[int]] = {}
        self._left: dict[bool, Ints] = {}
        self._evictable: dict[tuple[int, bool], Ints] = {}
        self._gone: dict[int, list[TaskRecord]] = {}  # slot -> victims of this pass

    def band(self, priority: int) -> Band:
        if priority not in self._bands:
            self._bands[priority] = band_of(priority, self.policy.bands)
        return self._bands[priority]

    def class_of(self, job: JobRecord, requirement: Requirement) -> EquivalenceClass:
        prod = self.band(job.priority).prod
        by_limit = prod and (job.latency_sensitive or not self.policy.batch_in_prod_by_reservation)
        key = (requirement, job.priority, by_limit)
        if key not in self._classes:
            self._classes[key] = EquivalenceClass(*key)
        return self._classes[key]

    def need(self, requirement: Requirement) -> Ints:
        """The limit as int64[R]."""
        if requirement not in self._needs:
            vector = np.zeros(self.state.resources, np.int64)
            vector[: len(requirement.limit)] = requirement.limit
            self._needs[requirement] = vector
        return self._needs[requirement]

    def statics(self, requirement: Requirement) -> tuple[Bools, Floats]:
        """(bool[M] up and hard constraints hold, float64[M] minus the weight of broken soft ones). Cached (§3.4)."""
        cached = self.state.statics.get(requirement.constraints) if self.policy.cache else None
        if cached is not None and cached[0] == self.state.facts_version:
            self.hits += 1
            return cached[1], cached[2]
        self.misses += 1
        allowed = self.state.up.copy()
        bonus = np.zeros(len(allowed), np.float64)
        for constraint in requirement.constraints:
            holds = self.state.attributes.satisfied(constraint)
            if constraint.hard:
                allowed &= holds
            else:
                bonus -= self.policy.soft_weight * constraint.weight * ~holds
        self.state.statics[requirement.constraints] = (self.state.facts_version, allowed, bonus)
        return allowed, bonus

    def overlay(self, job: JobRecord) -> Overlay:
        if len(job.tasks) <= 1:
            return self._nowhere
        if job.job_id not in self._overlays:
            counts = tuple(array.copy() for array in self._nowhere.counts)
            found = Overlay((counts[0], counts[1], counts[2]), shared=False)
            if job.running:
                for identity in job.tasks:
                    slot = self.state.tasks[identity].machine
                    if slot >= 0:
                        self._count(found, slot, 1)
            self._overlays[job.job_id] = found
        return self._overlays[job.job_id]

    def left(self, by_limit: bool) -> Ints:
        """int64[M, R]: what is free for a prod task, or for another."""
        if by_limit not in self._left:
            self._left[by_limit] = self._free(by_limit, self.prod_limits, self.reserved, slice(None))
        return self._left[by_limit]

    def left_if_preempted(self, wanted: EquivalenceClass) -> Ints | None:
        """The same if all were gone that this class may preempt; None when it may preempt nobody."""
        lower = [p for p in self.state.limits if may_preempt(wanted.priority, p, self.policy.bands)]
        if not lower:
            return None
        key = (wanted.priority, wanted.by_limit)
        if key not in self._evictable:
            prod = self.prod_limits - self._sum({p: self.state.limits[p] for p in lower}, prod_only=True)
            reserved = self.reserved - self._sum(
                {p: self.state.reservations[p] for p in lower}, prod_only=False
            )
            for slot, victims in self._gone.items():
                for victim in victims:
                    self._forget(prod, reserved, slot, victim, -1)
            self._evictable[key] = self._free(wanted.by_limit, prod, reserved, slice(None))
        return self._evictable[key]

    def fits(self, wanted: EquivalenceClass, slot: int, need: Ints, without: tuple[TaskRecord, ...]) -> bool:
        """Whether the class fits on a machine once those tasks are gone."""
        prod, reserved = self.prod_limits[slot].copy(), self.reserved[slot].copy()
        for task in without:
            reserved -= task.reservation
            if self.band(self.state.jobs[task.job_id].priority).prod:
                prod -= task.limit
        return bool(np.all(need <= self._free(wanted.by_limit, prod, reserved, slot)))

    def take_ports(self, machine: MachineRecord, number: int) -> tuple[int, ...]:
        """Ports for one task, free at the state's revision and not given out by this pass."""
        taken = self._ports_taken.setdefault(machine.machine_id, set())
        ports = self.state.free_ports(machine, number, taken)
        taken.update(ports)
        return ports

    def place(self, job: JobRecord, wanted: EquivalenceClass, slot: int) -> None:
        need = self.need(wanted.requirement).copy()
        self.ports_used[slot] += need[PORTS]
        need[PORTS] = 0
        self.reserved[slot] += need
        if self.band(wanted.priority).prod:
            self.prod_limits[slot] += need
        overlay = self.overlay(job)
        if not overlay.shared:
            self._count(overlay, slot, 1)
        for evictable in self._evictable.values():
            evictable[slot] -= need
            evictable[slot, PORTS] = self.capacity[slot, PORTS] - self.ports_used[slot]
        self._renew(slot)

    def evict(self, victim: TaskRecord) -> None:
        """Its resources are free for its preemptor; its ports are not, until it is gone."""
        slot = victim.machine
        self._forget(self.prod_limits, self.reserved, slot, victim, 1)
        self._gone.setdefault(slot, []).append(victim)
        job = self.state.jobs[victim.job_id]
        overlay = self.overlay(job)
        if not overlay.shared:
            self._count(overlay, slot, -1)
        self._renew(slot)

    def _forget(self, prod: Ints, reserved: Ints, slot: int, task: TaskRecord, sign: int) -> None:
        reserved[slot] -= sign * task.reservation
        if self.band(self.state.jobs[task.job_id].priority).prod:
            prod[slot] -= sign * task.limit

    def _renew(self, slot: int) -> None:
        for by_limit, left in self._left.items():
            left[slot] = self._free(by_limit, self.prod_limits[slot], self.reserved[slot], slot)

    def _free(self, by_limit: bool, prod: Ints, reserved: Ints, where: int | slice) -> Ints:
        taken = np.maximum(prod, reserved) if by_limit else reserved
        left: Ints = self.capacity[where] - taken
        left[..., PORTS] = self.capacity[where][..., PORTS] - self.ports_used[where]
        return left

    def _count(self, overlay: Overlay, slot: int, sign: int) -> None:
        machine, rack, domain = overlay.counts
        machine[slot] += sign
        rack[self.state.rack[slot]] += sign
        domain[self.state.domain[slot]] += sign

    def _sum(self, held: dict[int, Ints], *, prod_only: bool) -> Ints:
        total = np.zeros_like(self.capacity)
        for priority, array in held.items():
            if not prod_only or self.band(priority).prod:
                total += array
        return total
