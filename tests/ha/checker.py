"""Prove from histories, the journal and the final state that the cell kept its promises. Pure.

The checker returns violations. Each has a kind:

    lost        a change was acknowledged, and the cell does not have it
    twice       a request had its effect twice, or an incarnation was placed twice
    revision    the journal has a gap, or ends before the cell's revision
    lease       a master placed tasks while another one had the lease
    port        two tasks on one machine had the same port at once
    two-runs    two incarnations of one task ran at once, for longer than the reconnection window
    name        a name pointed to a task that had ended, for longer than its bound
    quota       more quota is sold or used than there is
    invariant   `manage.py validate` or `manage.py ledger_check` found an error
    spec        a job or a task does not end where its spec says
    rest        the cell did not recover from a fault, or did not come to rest
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.ha.history import Action, Outcome, Request

# A machine that has lost its connection connects again within this time, and stops what it should no longer run.
RECONNECTION_S = 30.0
# A running task leaves a sign of life each second. On a busy host it may be late.
FRESH_S = 15.0
# A resolver that did not reach the journal for this time reports that its answers are stale (BORG_DNS_STALE, and 5 s).
NAME_BOUND_S = 35.0
# A master that was paused just after it had renewed its lease ends its pass later. Placements stay correct without the
# lease, so only a master that goes on is wrong.
LATE_PASSES = 2


@dataclass(frozen=True)
class Violation:
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True)
class JournalRow:
    """An event of the journal. `incarnation`: None for other events than placements. `host`: of a new lease holder of
    `scheduler`. `machine`, `ports`: those that a placed task got.
    """

    revision: int
    seq: int
    kind: str
    job: str = ""  # the name, for job.submitted
    task: tuple[int, int] | None = None  # (job id, index); of an ended job, (job id, -1)
    incarnation: int | None = None
    host: str = ""
    scheduler: str = ""
    machine: int = 0
    ports: Sequence[int] = ()


@dataclass(frozen=True)
class PassRow:
    """A pass of a master that placed tasks, from its log. `revision`: the plan was made from it."""

    host: str
    revision: int
    scheduler: str = ""


@dataclass(frozen=True)
class TaskRow:
    index: int
    state: str
    incarnation: int


@dataclass(frozen=True)
class JobRow:
    """A job as the database has it at the end."""

    uid: str
    state: str
    version: int
    tasks: Sequence[TaskRow] = ()


@dataclass(frozen=True)
class Run:
    """Signs of life of one incarnation, written by the task itself. Times: Unix seconds."""

    job: str
    index: int
    incarnation: int
    first: float
    last: float


@dataclass(frozen=True)
class Placement:
    """The time in which a task was on a machine. Times: Unix seconds; `until`: infinite if it is still there."""

    job: str
    index: int
    address: str
    since: float
    until: float


@dataclass(frozen=True)
class Lookup:
    """An answer of a resolver: the task's name points to this address."""

    at: float
    resolver: str
    job: str
    index: int
    address: str


@dataclass(frozen=True)
class Holding:
    """Amounts of a kind of quota that must not exceed others, such as the quota that a cell has sold."""

    what: str
    amounts: Sequence[int]
    at_most: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that the checker looks at. `at`: when the runs were read, after the cell had come to rest.

    `cuts`: (begin, end) of each time during which a machine could not be reached. `orders`: keys by number. `reported`:
    sentences of `validate` and `ledger_check`. `clock_error_s`: by how much the database's clock was wrong at times.
    """

    at: float
    revision: int
    requests: Sequence[Request] = ()
    journal: Sequence[JournalRow] = ()
    passes: Sequence[PassRow] = ()
    jobs: Mapping[str, JobRow] = field(default_factory=dict)
    orders: Mapping[int, str] = field(default_factory=dict)
    holdings: Sequence[Holding] = ()
    runs: Sequence[Run] = ()
    placements: Sequence[Placement] = ()
    lookups: Sequence[Lookup] = ()
    cuts: Sequence[tuple[float, float]] = ()
    reported: Sequence[str] = ()
    clock_error_s: float = 0.0


def check(evidence: Evidence) -> list[Violation]:
    """Return all violations."""
    return [violation for one in _CHECKS for violation in one(evidence)]


def _lost_changes(evidence: Evidence) -> Iterator[Violation]:
    for request in evidence.requests:
        if request.outcome != Outcome.ACKNOWLEDGED:
            continue
        if request.action == Action.BUY:
            if evidence.orders.get(request.order) != request.name:
                yield Violation("lost", f"order {request.order} with key {request.name} does not exist")
            continue
        job = evidence.jobs.get(request.name)
        if job is None:
            yield Violation("lost", f"{request.action} of {request.name}: there is no such job")
        elif request.uid and job.uid != request.uid:
            yield Violation("lost", f"job {request.name} is {job.uid}, but {request.uid} was acknowledged")
        elif job.version < request.version:
            yield Violation(
                "lost", f"job {request.name} is at version {job.version}, but {request.version} was acknowledged"
            )


def _repeated_effects(evidence: Evidence) -> Iterator[Violation]:
    submitted = Counter(row.job for row in evidence.journal if row.kind == "job.submitted")
    for name, times in submitted.items():
        if times > 1:
            yield Violation("twice", f"job {name} was submitted {times} times")
    for key, times in Counter(evidence.orders.values()).items():
        if key and times > 1:
            yield Violation("twice", f"{times} orders have the key {key}")
    placed = Counter((row.task, row.incarnation) for row in evidence.journal if row.incarnation is not None)
    for (task, incarnation), times in placed.items():
        if times > 1:
            yield Violation("twice", f"incarnation {incarnation} of task {task} was placed {times} times")


def _gaps(evidence: Evidence) -> Iterator[Violation]:
    sequences: dict[int, list[int]] = defaultdict(list)
    for row in evidence.journal:
        sequences[row.revision].append(row.seq)
    for revision in range(1, max([evidence.revision, *sequences]) + 1):
        if revision not in sequences:
            yield Violation("revision", f"the journal has no revision {revision}")
        elif sorted(sequences[revision]) != list(range(len(sequences[revision]))):
            yield Violation("revision", f"the events of revision {revision} have the numbers {sequences[revision]}")
    if sequences and max(sequences) > evidence.revision:
        yield Violation("revision", f"the cell is at {evidence.revision}, and the journal ends at {max(sequences)}")


def _without_lease(evidence: Evidence) -> Iterator[Violation]:
    taken: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in sorted(evidence.journal, key=lambda row: row.revision):
        if row.host:
            taken[row.scheduler].append((row.revision, row.host))
    late: Counter[tuple[str, int]] = Counter()
    for one in evidence.passes:
        leases = taken[one.scheduler]
        if position := bisect.bisect_right(leases, one.revision, key=lambda lease: lease[0]):
            revision, holder = leases[position - 1]
            if one.host != holder:
                late[one.host, revision] += 1
    for (host, revision), number in late.items():
        if number > LATE_PASSES:
            yield Violation(
                "lease", f"{host} placed tasks in {number} passes after another took the lease at {revision}"
            )


def _shared_ports(evidence: Evidence) -> Iterator[Violation]:
    holders: dict[tuple[int, int], tuple[int, int]] = {}  # (machine, port) -> task
    held: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)  # task -> (machine, port)
    of_job: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for row in sorted(evidence.journal, key=lambda row: (row.revision, row.seq)):
        if row.task is None:
            continue
        job, index = row.task
        for task in [row.task] if index >= 0 else of_job.pop(job, set()):  # it leaves its machine, or is placed again
            for place in held.pop(task, ()):
                if holders.get(place) == task:
                    del holders[place]
        for port in row.ports:
            place = (row.machine, port)
            if place in holders:
                tasks = f"{holders[place]} and {row.task}"
                yield Violation("port", f"revision {row.revision}: {tasks} have port {port} of machine {row.machine}")
            holders[place] = row.task
            held[row.task].add(place)
            of_job[job].add(row.task)


def _double_runs(evidence: Evidence) -> Iterator[Violation]:
    by_task: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in evidence.runs:
        by_task[run.job, run.index].append(run)
    for (job, index), runs in by_task.items():
        for one, other in itertools.combinations(runs, 2):
            begin, end = max(one.first, other.first), min(one.last, other.last)
            reachable = max([begin, *(until for since, until in evidence.cuts if since <= begin)])
            if end > reachable + RECONNECTION_S:
                numbers = f"{one.incarnation} and {other.incarnation}"
                yield Violation("two-runs", f"incarnations {numbers} of {job}/{index} ran together {end - begin:.0f} s")


def _old_names(evidence: Evidence) -> Iterator[Violation]:
    places: dict[tuple[str, int, str], list[Placement]] = defaultdict(list)
    for place in evidence.placements:
        places[place.job, place.index, place.address].append(place)
    for one in evidence.lookups:
        there = places[one.job, one.index, one.address]
        wrong = evidence.clock_error_s
        if not any(place.since - wrong <= one.at <= place.until + NAME_BOUND_S + wrong for place in there):
            late = min((one.at - place.until for place in there if place.since <= one.at), default=math.inf)
            yield Violation(
                "name", f"{one.resolver}: {one.job}/{one.index} is {one.address}, {late:.0f} s after its end"
            )


def _oversold(evidence: Evidence) -> Iterator[Violation]:
    for holding in evidence.holdings:
        if any(amount > most for amount, most in zip(holding.amounts, holding.at_most, strict=True)):
            yield Violation("quota", f"{holding.what}: {holding.amounts} is more than {holding.at_most}")


def _reported(evidence: Evidence) -> Iterator[Violation]:
    return (Violation("invariant", sentence) for sentence in evidence.reported)


def _wrong_ends(evidence: Evidence) -> Iterator[Violation]:
    fresh: dict[tuple[str, int], list[int]] = defaultdict(list)
    for run in evidence.runs:
        if run.last >= evidence.at - FRESH_S:
            fresh[run.job, run.index].append(run.incarnation)
    for name, wanted in _wanted(evidence.requests).items():
        job = evidence.jobs.get(name)
        live = [] if job is None else [task for task in job.tasks if task.state != "dead"]
        if len(live) not in wanted:
            yield Violation("spec", f"job {name} has {len(live)} tasks, and {_either(wanted)} were asked for")
        for task in live:
            running = fresh.pop((name, task.index), [])
            if task.state != "running":
                yield Violation("spec", f"task {name}/{task.index} is {task.state}")
            elif running != [task.incarnation]:
                yield Violation(
                    "spec", f"incarnation {task.incarnation} of {name}/{task.index} should run, and {running} run"
                )
    for (name, index), incarnations in fresh.items():
        yield Violation("spec", f"incarnations {incarnations} of {name}/{index} run, and nothing asks for them")


def _wanted(requests: Iterable[Request]) -> dict[str, set[int]]:
    """Return the numbers of tasks that each job may have at the end. A request without an answer allows two numbers."""
    wanted: dict[str, set[int]] = {}
    for request in sorted(requests, key=lambda request: request.began):
        if request.action == Action.BUY:
            continue
        before = wanted.get(request.name, {0})
        if request.outcome == Outcome.ACKNOWLEDGED:
            wanted[request.name] = {request.tasks}
        elif request.outcome == Outcome.UNKNOWN:
            wanted[request.name] = before | {request.tasks}
        else:
            wanted[request.name] = before
    return wanted


def _either(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


_CHECKS = (
    _lost_changes,
    _repeated_effects,
    _gaps,
    _without_lease,
    _shared_ports,
    _double_runs,
    _old_names,
    _oversold,
    _reported,
    _wrong_ends,
)
