"""The plan of a scheduling pass. `scheduling.master.commit` checks the plan again and applies it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduling.core.vocabulary.reasons import Why


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The assignment of one pending task to a machine. All ids are those in the database. `score`: the score of the
    machine by each scorer, by name of the scorer.

    `ports`: port numbers in the order of the job's port names. `victims`: the running tasks on the machine that must be
    preempted for this task, as (job id, index), lowest priority first (§3.2). `alloc`: the task id of the alloc that
    contains the task (§2.4), 0 for none. `devices`: indexes of the accelerators that the task uses. `runners_up`:
    (machine id, score) of the next best machines. `packages`: how many bytes of the task's packages the machine already
    has, and the size of all packages of the task in bytes.
    """

    job_id: int
    index: int
    machine_id: int
    ports: tuple[int, ...] = ()
    victims: tuple[tuple[int, int], ...] = ()
    score: dict[str, float] = {}
    alloc: int = 0
    devices: tuple[int, ...] = ()
    runners_up: tuple[tuple[int, float], ...] = ()
    packages: tuple[int, ...] = ()


class Booking(msgspec.Struct, frozen=True, gc=False):
    """Capacity that is kept free for a gang until it can start. `job_id`: the job that is the gang. `at`: the time at
    which it fits at the latest, if the cell and the reservations stay as they are and all tasks end at or before their
    time limits, in seconds since the epoch. `on`: (machine id, number of tasks) for each machine, sorted by id.
    """

    job_id: int
    at: float
    on: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PassStats:
    """Statistics of one pass. They contain no durations, because a pass reads no clock."""

    pending: int = 0
    classes: int = 0
    placed: int = 0
    preempted: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cut: bool = False  # some tasks were not tried: the pass had placed as many as it may


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a scheduling pass. `assignments`: the placed tasks, in the order in which the pass placed them.
    `unplaced`: one explanation (`Why`) for each group of equal tasks that stay pending. `bookings`: the capacity that
    later passes keep free for gangs, as long as nothing changes. `bounded`: the ids of the jobs with assignments that
    may run only this many tasks at once (`max_running`).
    """

    revision: int  # of the state it was made from
    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Why, ...] = ()
    stats: PassStats = PassStats()
    bookings: tuple[Booking, ...] = ()
    bounded: frozenset[int] = frozenset()
