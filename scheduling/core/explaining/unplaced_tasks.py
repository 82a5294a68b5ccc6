"""Counts the tasks that a pass left pending, by class and by place in the queue (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduling.core.explaining.forecast import expected_start
from scheduling.core.vocabulary.kernel_arrays import Ints, Ints32
from scheduling.core.vocabulary.reasons import Ahead, Basis, ExpectedStart, QueuePlace, Why
from scheduling.core.vocabulary.requirement import Requirement

if TYPE_CHECKING:  # its kernels cost every process that imports them 45 MB
    from scheduling.core.cell.state import CellState
    from scheduling.core.cell.tasks import LiveJob
    from scheduling.core.placing.equivalence_classes import GroupedQueue

# How many of the tenants that are ahead are named, and to how many jobs of a class.
TENANTS_NAMED = 3
JOBS_TOLD = 16
# A class, whatever the pass: requirement, by limit, ceiling, whole cores, the job it belongs to alone, machines that
# it avoids, time limit, gang.
Key = tuple[Requirement, bool, int, int, int, tuple[int, ...], float, bool]
# Job id -> how many tenants have tasks ahead of it, and those with most.
AheadOf = dict[int, tuple[int, tuple[Ahead, ...]]]


class Pair(NamedTuple):
    """A job with pending tasks in a class. `tasks`: how many pending tasks the job has in the class. `ahead`: how many
    tasks are before the first of them in the queue. `own`: how many of the `ahead` tasks belong to the class.
    """

    job_id: int
    tasks: int
    ahead: int
    own: int


class UnplacedGroups(NamedTuple):
    """The tasks that the pass left pending. `groups`: one group per class, in the order of the queue. `first`: for each
    class, how many tasks are before its first task in the queue. `of`, `job`: the group and the job of each task.
    `pairs`: by group, the jobs that have tasks in it.
    """

    groups: list[int]
    first: list[int]
    of: Ints32  # group by position among those left over
    job: Ints32  # the pass' number of the job, likewise
    pairs: dict[int, list[Pair]]  # by group, by id of the job

    def places(self, position: int, known: AheadOf) -> tuple[tuple[tuple[int, int], ...], tuple[QueuePlace, ...]]:
        """Return two tuples about the jobs of the class at `position`, in the same order: a pair (job id, number of
        pending tasks) of each job, and the place of each job in the queue. `known`: the last result of `ahead` for this
        class, from which the tenants before each job are taken.
        """
        pairs = self.pairs[self.groups[position]]
        none: tuple[int, tuple[Ahead, ...]] = (0, ())
        return (
            tuple((pair.job_id, pair.tasks) for pair in pairs),
            tuple(QueuePlace(pair.ahead, pair.own, *known.get(pair.job_id, none)) for pair in pairs),
        )

    def before(self, position: int, groups: int) -> NDArray[np.intp]:
        """Return an array with one number for each of the `groups` groups: how many of its tasks are in the queue
        before the first task of the class at `position`.
        """
        return np.bincount(self.of[: self.first[position]], minlength=groups)

    def ahead(self, position: int, tenants: TenantsAhead) -> AheadOf:
        """Return, for a few jobs of the class at `position`, the tenants that have tasks before the job in the queue.
        These jobs are the first ones of the class in the queue.
        """
        pairs = sorted(self.pairs[self.groups[position]], key=lambda pair: pair.ahead)[:JOBS_TOLD]
        return {pair.job_id: tenants.at(pair.ahead) for pair in pairs}


class TenantsAhead:
    """Finds the tenants that have tasks before a given place in the queue of pending tasks."""

    def __init__(self, waiting: UnplacedGroups, jobs: Sequence[LiveJob]) -> None:
        names = [job.tenant for job in jobs]
        self._names = sorted(set(names))
        number = {name: n for n, name in enumerate(self._names)}
        tenant_of = np.array([number[name] for name in names], dtype=np.int64)
        self._length = len(waiting.job) + 1
        _, first = np.unique(waiting.job, return_index=True)
        self._tasks = self._by_tenant(tenant_of[waiting.job], np.arange(len(waiting.job)))
        self._jobs = self._by_tenant(tenant_of[waiting.job[first]], first)
        self._at: dict[int, tuple[int, tuple[Ahead, ...]]] = {}

    def _by_tenant(self, tenant: NDArray[np.int64], places: NDArray[np.intp]) -> tuple[Ints, Ints]:
        """Return two arrays. The first has the sorted pairs (tenant, place in the queue), each encoded as one integer.
        The second has, for each tenant, the index of its first pair in the first array.
        """
        keys: Ints = np.sort(tenant * self._length + places)
        return keys, np.searchsorted(keys, np.arange(len(self._names)) * self._length).astype(np.int64)

    def at(self, place: int) -> tuple[int, tuple[Ahead, ...]]:
        """Return how many tenants have tasks before `place` in the queue, and which tenants have most tasks before
        it.
        """
        if place in self._at:
            return self._at[place]
        until = np.arange(len(self._names)) * self._length + place
        jobs, tasks = (np.searchsorted(keys, until) - begins for keys, begins in (self._jobs, self._tasks))
        most = np.argsort(-tasks, kind="stable")[:TENANTS_NAMED].tolist()
        named = tuple(Ahead(self._names[n], int(jobs[n]), int(tasks[n])) for n in most if tasks[n])
        self._at[place] = int(np.count_nonzero(tasks)), named
        return self._at[place]


def left_over(state: CellState, sorting: GroupedQueue, answer: Ints) -> tuple[UnplacedGroups, list[Key]]:
    """Return the tasks that stay pending, by class, and the key of each class. A class consists of the groups with
    equal requirements that also agree in all other properties that decide where a task can be placed. `answer`: for
    each task in the queue, the position of its machine, or -1 if no machine fits.
    """
    where = np.flatnonzero(answer == -1)
    of, job = sorting.of_task[where], sorting.job[where]
    classes: dict[Key, int] = {}
    same = np.arange(len(sorting.requirements), dtype=np.int32)
    groups, first = np.unique(of, return_index=True)
    begins = []
    for position in np.argsort(first).tolist():
        group = int(groups[position])
        same[group] = classes.setdefault(_key(state, sorting, group), group)
        if same[group] == group:
            begins.append(int(first[position]))
    of = same[of]
    pairs: dict[int, list[Pair]] = {}
    pair, place, number = np.unique(of.astype(np.int64) << 32 | job, return_index=True, return_counts=True)
    own = _rank(of)[place]
    columns = ((pair >> 32).tolist(), (pair & 0xFFFFFFFF).tolist(), number.tolist(), place.tolist(), own.tolist())
    for group, local, count, ahead, before in zip(*columns, strict=True):
        pairs.setdefault(group, []).append(Pair(sorting.jobs[local].id, count, ahead, before))
    for own_pairs in pairs.values():
        own_pairs.sort()
    return UnplacedGroups(list(classes.values()), begins, of, job, pairs), list(classes)


def smallest_gang(state: CellState, pairs: list[Pair]) -> int:
    """Return the size of the smallest gang of a class, or 0 if a job of the class is not a gang. (The tasks of a gang
    start together.)
    """
    gangs = [bool(state.tasks.job_gang[state.tasks.jobs[pair.job_id].slot]) for pair in pairs]
    return min(pair.tasks for pair in pairs) if all(gangs) else 0


def of_job(why: Why, job_id: int) -> Why:
    """Return a copy of `why`, the explanation of a class, for one job of the class. It has the pending tasks, the place
    in the queue and the expected start of this job.
    """
    number = next((i for i, (job, _) in enumerate(why.tasks) if job == job_id), None)
    if number is None:
        return why
    own = msgspec.structs.replace(why, tasks=(why.tasks[number],), places=())
    if not why.places:
        return own
    place, expected = why.places[number], why.expected
    if expected is not None and expected.at is not None and place.own and expected.basis is not Basis.BOOKED_FOR_A_GANG:
        expected = ExpectedStart(Basis.BEHIND_OTHERS)
    if expected is not None and expected.ends:
        further = place.ahead - why.ahead  # of other classes too: they may be larger, or in nobody's way
        expected = expected_start(
            ends=expected.ends,
            room=expected.room,
            seconds=expected.window_s,
            ahead=(expected.least + place.own, expected.ahead + further),
        )
    return msgspec.structs.replace(
        own, ahead=place.ahead, ahead_of=place.ahead_of, ahead_tenants=place.tenants, expected=expected
    )


def _rank(of: Ints32) -> NDArray[np.intp]:
    """Return for each task how many tasks of the same class come before it. `of`: the class of each task."""
    by = np.argsort(of, kind="stable")
    ordered = of[by]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    rank = np.empty(len(of), dtype=np.intp)
    rank[by] = np.arange(len(of)) - np.repeat(begins, np.diff(np.append(begins, len(of))))
    return rank


def _key(state: CellState, sorting: GroupedQueue, group: int) -> Key:
    job = int(sorting.own_job[group])
    return (
        sorting.requirements[group],
        bool(sorting.by_limit[group]),
        int(sorting.ceiling[group]),
        int(sorting.cores[group]),
        sorting.jobs[job].id if job >= 0 else 0,
        tuple(state.machines.id[list(sorting.avoid.get(group, ()))].tolist()),
        float(sorting.ends_within_s[group]),
        bool(sorting.gang[group]),
    )
