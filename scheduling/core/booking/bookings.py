"""Bookings: capacity that is kept free for a gang until it can start (backfill, §3.2).

    a gang does not fit ─► earliest_fit.py: when does it fit, if tasks with a time limit end at their limits?
         at T, on these machines ─► Bookings.extra: what the gang leaves of each of them
         tasks after it in the queue ─► use the booked capacity only if they end before T, or need no more than `extra`

This is the method EASY (Lifka, 1995): only the first gang that waits has a booking, here one per band. A gang that
would not fit even after all known ends has none, and the next gang is tried. A booking is computed from the state in
each pass, and it is stored nowhere. So it follows each change of the cell, and all masters and the simulator compute
the same one.

All tasks of a gang count as large as the largest one in each resource. Then the tasks fit together at T whichever
machine takes which of them. No task that is placed by these rules makes T later, as long as tasks end in time, limits
are not changed, and reservations do not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from quota.vocabulary.bands import band_of
from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.booking.earliest_fit import Sums, Wanted, choose, earliest_fit
from scheduling.core.booking.run_ends import MARGIN_S, Occupants, occupants_of
from scheduling.core.cell.state import CellState
from scheduling.core.kernels.counts import count_on_each
from scheduling.core.placing.closed_machines import crossing, run_limit_s
from scheduling.core.placing.equivalence_classes import GroupedQueue
from scheduling.core.placing.queue import MOST_GANGS
from scheduling.core.vocabulary.kernel_arrays import UNBOOKED, Bools, Ints, Ints32, MachineArrays, Tables
from scheduling.core.vocabulary.plan import Booking
from scheduling.core.vocabulary.policy import Policy

# Capacity is not kept free for a gang that starts later than this. Slurm's backfill looks as far ahead (`bf_window`).
FARTHEST_S = 86_400.0
# Largest number of gangs of a pass for which the time of a start is computed, also in vain.
MOST_TRIES = 2 * MOST_GANGS
# So often, machines with maintenance windows are left out and the start of a gang is computed again.
_MOST_WINDOWS = 8


def machines_booked(state: CellState, bookings: Iterable[Booking]) -> frozenset[int]:
    """Return the ids of the machines on which `bookings` of an earlier pass keep capacity. A booking ends when no task
    of its gang is pending any more.
    """
    jobs, pending = state.tasks.jobs, state.tasks.job_pending
    waiting = [one for one in bookings if (job := jobs.get(one.job_id)) is not None and pending[job.slot]]
    return frozenset(machine for booking in waiting for machine, _ in booking.on)


class Fit(NamedTuple):
    """When tasks fit together, and how. `at`: seconds since the epoch; inf if they do not fit. `taken` [P]: how many of
    them each machine takes. `left` [P, R]: the free amount at this time without them, only of resources that they ask
    for.
    """

    at: float
    taken: Ints
    left: Ints


class BookingMaker:
    """Makes the bookings of one attempt to place a queue. Call `book` each time the kernel stops behind a gang."""

    def __init__(self, state: CellState, policy: Policy, sorting: GroupedQueue, tables: Tables, now: float) -> None:
        self._state, self._policy, self._sorting, self._tables, self._now = state, policy, sorting, tables, now
        self._bands: set[str] = set()
        self._tries = 0
        self.bookings: list[Booking] = []

    def book(self, until: int) -> None:
        """Book capacity for the gang whose last task is before position `until` of the queue, if it can start within
        `FARTHEST_S`, and if its band has no booking yet. The tasks at later positions are bound to the booking, except
        those that end before the gang starts.
        """
        tables, sorting = self._tables, self._sorting
        job = sorting.jobs[sorting.job[until - 1]]
        try:
            band = band_of(job.priority, self._policy.bands).name
        except LookupError:
            return
        made = int(tables.bookings.made[0])
        if made == len(tables.bookings.extra) or band in self._bands or self._tries == MOST_TRIES:
            return
        self._tries += 1
        first = int(np.searchsorted(sorting.job[:until] == sorting.job[until - 1], True))
        groups = np.unique(sorting.of_task[first:until])
        wanted = wanted_of(tables, groups, int(sorting.job[first]), until - first)
        if wanted is None:
            return
        free = tables.bookings.extra[:made, :, 0] == UNBOOKED
        wanted = wanted._replace(allowed=wanted.allowed & free.all(axis=0))
        there = occupants_of(self._state, sorting, tables, until, self._now)
        ceiling = int(sorting.ceiling[sorting.of_task[first]])
        fit = fit_between_windows(self._state, tables, wanted, ceiling, there, sorting, run_limit_s(job))
        if not self._now <= fit.at <= self._now + FARTHEST_S:
            return
        self._bands.add(band)
        self._keep(made, wanted, fit)
        machines = np.flatnonzero(fit.taken)
        ids = self._state.machines.id[tables.machines.slot[machines]]
        on = tuple(sorted(zip(ids.tolist(), fit.taken[machines].tolist(), strict=True)))
        self.bookings.append(Booking(job.id, fit.at, on))

    def _keep(self, made: int, wanted: Wanted, fit: Fit) -> None:
        bookings, sorting = self._tables.bookings, self._sorting
        extra, booked = bookings.extra[made], fit.taken > 0
        extra[:] = UNBOOKED
        asked = np.flatnonzero(wanted.limit > 0)
        extra[np.ix_(booked, asked)] = fit.left[np.ix_(booked, asked)] - fit.taken[booked, None] * wanted.limit[asked]
        if wanted.limit[ACCELERATORS]:
            extra[booked, ACCELERATORS] = 0  # what is left may be parts of several devices
        if wanted.cores > 0:
            extra[booked] = -1  # which cores are left depends on the tasks that share them
        capacity = self._tables.machines.capacity[booked, 0]
        extra[booked, 0] = np.minimum(extra[booked, 0], capacity)  # so that the machine counts as booked
        within_s = sorting.ends_within_s
        bookings.bound[made] = (within_s == 0.0) | (self._now + within_s + MARGIN_S > fit.at)
        bookings.made[0] = made + 1
        cache = self._tables.cache
        for column in (cache.stage, cache.cursor, cache.filled, cache.offered, cache.near):
            column[:] = 0
        cache.passed_over[:] = False


def wanted_of(tables: Tables, of: Ints32, job: int, number: int) -> Wanted | None:
    """Return what `number` tasks of the groups `of` ask for, if each counts as large as the largest. `job`: the number
    of their job in the pass. Return None if no machine may hold a task of each group.
    """
    groups, machines, counts = tables.groups, tables.machines, tables.counts
    allowed: Bools = np.logical_and.reduce(groups.allowed[groups.hard[of]])
    for g in of.tolist():
        allowed[groups.avoid[groups.avoid_from[g] : groups.avoid_to[g]]] = False
    if not allowed.any():
        return None
    many = len(machines.slot)
    per_machine, per_rack, per_power = (
        _least(column[of]) for column in (groups.max_machine, groups.max_rack, groups.max_power)
    )
    most: Ints = np.full(many, number, dtype=np.int64)
    if per_machine:
        count_on_each(counts, machines, job, most)
        most = np.maximum(0, per_machine - most)
    rack, rack_most = _domains(machines.rack, counts.rack, int(counts.row[job]), per_rack)
    power, power_most = _domains(machines.power, counts.power, int(counts.row[job]), per_power)
    cores = groups.cores[of]
    return Wanted(
        number=number,
        limit=groups.limit[of].max(axis=0),
        by_limit=bool(groups.by_limit[of[0]]),
        cores=int(cores.max()),
        sharing=int(cores.min() == 0 and cores.max() > 0),
        allowed=allowed,
        most=most,
        rack=rack,
        power=power,
        rack_most=rack_most,
        power_most=power_most,
    )


def _least(bounds: Ints32) -> int:
    """Return the smallest maximum in `bounds`, where 0 means no maximum."""
    some = bounds[bounds > 0]
    return int(some.min()) if len(some) else 0


def _domains(domain: Ints32, there: Ints32, row: int, bound: int) -> tuple[Ints, Ints]:
    """Return two arrays: the number [P] of each machine's domain, and how many more tasks each domain may hold. A
    machine without a domain is alone in one. `domain` [P]: the rack or power domain of each machine, or -1. `there`:
    how many tasks of each job are in each domain; the job is in this `row`. `bound`: the maximum, 0 for none.
    """
    many = len(domain)
    known = int(domain.max(initial=-1)) + 1
    number: Ints = np.where(domain >= 0, domain, known + np.arange(many)).astype(np.int64)
    most: Ints = np.full(known + many, UNBOOKED, dtype=np.int64)
    if bound and known:
        most[:known] = np.maximum(0, bound - (there[row, :known] if row >= 0 else 0))
    return number, most


def fit_at(state: CellState, tables: Tables, wanted: Wanted, ceiling: int, there: Occupants) -> Fit:
    """Return when and where the `wanted` tasks fit together, if the tasks that are `there` end at their latest times.
    `ceiling`: the wanted tasks may preempt tasks with a lower priority.
    """
    machines, tasks = tables.machines, state.tasks
    slots, on, ends = there.slots, there.on, there.ends
    evictable = tasks.job_priority[tasks.job[slots]] < ceiling
    ending = np.flatnonzero(~evictable & np.isfinite(ends) & wanted.allowed[on])
    ending = ending[np.argsort(ends[ending], kind="stable")]
    later = _copy(machines)
    sums = Sums(
        room=np.zeros(len(machines.slot), dtype=np.int64),
        rack=np.zeros(len(wanted.rack_most), dtype=np.int64),
        power=np.zeros(len(wanted.power_most), dtype=np.int64),
        total=np.zeros(1, dtype=np.int64),
    )
    at = earliest_fit(
        later, there.running, wanted, slots[evictable], on[evictable], slots[ending], on[ending], ends[ending], sums
    )
    taken: Ints = np.zeros(len(machines.slot), dtype=np.int64)
    left = later.capacity - (np.maximum(later.reserved, later.prod_limit) if wanted.by_limit else later.reserved)
    left[:, PORTS] = np.minimum(left[:, PORTS], later.ports_free)
    if math.isfinite(at):
        able = np.flatnonzero(sums.room)
        order = able[np.lexsort((machines.rank[able], -sums.room[able]))]
        if choose(wanted, sums, order, taken) < wanted.number:
            at = math.inf  # racks that belong to several power domains
    return Fit(at, taken, left)


def fit_between_windows(
    state: CellState,
    tables: Tables,
    wanted: Wanted,
    ceiling: int,
    there: Occupants,
    sorting: GroupedQueue,
    run_s: float,
) -> Fit:
    """Return the same as `fit_at`, without machines on which a maintenance window would interrupt the tasks. `run_s`:
    the time limit of the wanted tasks; 0 if they have none.
    """
    fit = fit_at(state, tables, wanted, ceiling, there)
    if sorting.maintenance is None:
        return fit
    for _ in range(_MOST_WINDOWS):
        if not math.isfinite(fit.at):
            return fit
        closed = crossing(sorting.maintenance.planned, fit.at, run_s)[tables.machines.slot]
        if not (closed & (fit.taken > 0)).any():
            return fit
        wanted = wanted._replace(allowed=wanted.allowed & ~closed)
        fit = fit_at(state, tables, wanted, ceiling, there)
    return fit._replace(at=math.inf)


def _copy(machines: MachineArrays) -> MachineArrays:
    changing = ("reserved", "prod_limit", "ports_free", "devices", "owned", "sharing")
    return machines._replace(**{name: getattr(machines, name).copy() for name in changing})
