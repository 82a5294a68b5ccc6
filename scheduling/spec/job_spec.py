"""Specs of jobs, version `borg/v1`: what the tasks of a job request. Pure.

parser.parse ─► JobSpecification ── groups ──► equal requirements as ranges of indexes
                       ├─────────── task(i) ─► TaskSpec, with its override merged
                       └─────────── to_json ─► a job file that parses to an equal spec
"""

from __future__ import annotations

import bisect
import datetime as dt
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.resources import CPU, Vector, add, scale
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement
from scheduling.spec import package_names as names
from scheduling.spec.disruptions.limits import DisruptionLimits, limits_of, tasks_down
from scheduling.spec.schema import API_VERSION, JobFields, Names, Rolling
from scheduling.spec.task_spec import TaskSpec, fields_set

KINDS = {"Job": "job", "AllocSet": "alloc-set"}
# Values of `api`, which limits what tasks may do with the REST API (`scheduling.identity.task_tokens`), lowest first.
API_LEVELS = ("none", "read", "submit")
LATENCY_SENSITIVE, BATCH = "latency-sensitive", "batch"
MAX_LEAVE_S = 600.0
# The longest time from the end of a task until the cell knows it, in seconds, unless its machine is away.
REPORT_S = 5.0
_Value = TypeVar("_Value")


class Override(msgspec.Struct, frozen=True):
    """Other settings for the tasks with the indexes `first` to `last`. `task`: the job's `task` after `patch` was
    merged into it (RFC 7396).
    """

    first: int
    last: int
    patch: dict[str, Any]
    task: TaskSpec

    @property
    def key(self) -> str:
        """Return the range of indexes in the form of a job file: `3` or `0-9`."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class JobSpecification(JobFields, frozen=True, kw_only=True, dict=True):
    """A version of a job's spec, normalised. `base`: the `task` of the job file. `overrides`: sorted, without
    overlaps.

    `saves_for_s`: after an alloc ends, the tasks that ran in it run again on the same machine for at most this many
    seconds, until they end with status 0 (§4). `gang`: either all pending tasks are placed together, or none is
    placed. `disruption_budget`: how many tasks preemption and drains may have down at once, and how many they may evict
    within a window of time (`DisruptionLimits`); 0: no limit. `max_running`: how many tasks may have a machine at once;
    0: no limit. `preemption_delay_s`: seconds within which tasks that this job preempts end (its delay bound, §2.3);
    None: they get their own notice. `alloc_set`: the name of the alloc set in which the tasks run (§2.4). `api`: what
    the tasks may do with the REST API. `names`: how the names of the job are published (§2.6). `deadline_s`: how many
    seconds after its submission the job must have ended. `start_after`: no task starts before this time, in RFC 3339
    with time zone UTC; None: at once. `after`: no task starts before the jobs with these names have reached these
    states (`JobGoal`). `ttl_after_end_s`: for how many seconds after its end the job stays in PostgreSQL. `autoscale`:
    how the autoscaler changes the job. `sizes`: the known sizes of packages in bytes, by digest; the job file does not
    contain them.
    """

    base: TaskSpec
    kind: str = "job"
    labels: dict[str, str] = {}
    priority: int = FREE_PRIORITY
    latency_sensitive: bool = False
    overrides: tuple[Override, ...] = ()
    extra: tuple[str, ...] = ()
    sizes: dict[str, int] = {}

    def task(self, index: int) -> TaskSpec:
        """Return the spec of task `index`. Raises `IndexError` if the job has no such task."""
        if not 0 <= index < self.tasks:
            raise IndexError(f"job {self.name} has no task {index}; give 0 to {self.tasks - 1}")
        position = bisect.bisect_right(self._starts, index) - 1
        if position >= 0 and index <= self.overrides[position].last:
            return self.overrides[position].task
        return self.base

    def segments(self) -> Iterator[tuple[int, int, TaskSpec]]:
        """Yield `(first, last, task)` for ranges of tasks with the same spec, in order of the indexes."""
        after = 0
        for override in self.overrides:
            if after < override.first:
                yield after, override.first - 1, self.base
            yield override.first, override.last, override.task
            after = override.last + 1
        if after < self.tasks:
            yield after, self.tasks - 1, self.base

    def requirement(self, index: int) -> Requirement:
        return self.requirement_of(self.task(index))

    def requirement_of(self, task: TaskSpec) -> Requirement:
        return Requirement(
            limit=task.limit,
            # A task in an alloc runs on the machine of the alloc, whatever the task needs from a machine.
            constraints=task.constraints if self.alloc_set else task.demands(),
            max_per_machine=self.spread.max_per_machine,
            max_per_rack=self.spread.max_per_rack,
            max_per_power_domain=self.spread.max_per_power_domain,
            whole_cores=task.limit[CPU] // 1000 if task.whole_cores and self.latency_sensitive else 0,
            packages=() if self.alloc_set or not self.sizes else self._packages(task),
        )

    def _packages(self, task: TaskSpec) -> tuple[tuple[str, int], ...]:
        digests = {names.parse(text).digest for text in task.packages}
        return tuple(sorted((digest, self.sizes[digest]) for digest in digests & self.sizes.keys()))

    def groups(self, first: int = 0, last: int | None = None) -> tuple[Group, ...]:
        """Return the tasks with the indexes `first` to `last`, both included, in groups with equal requirements. If
        `last` is None, `last` is the job's last task.
        """
        last = self.tasks - 1 if last is None else last
        if not self.overrides and (first, last) == (0, self.tasks - 1):
            return (Group(self.requirement_of(self.base), ((first, last),)),)
        ranges: dict[Requirement, list[tuple[int, int]]] = {}
        for low, high, task in self.segments():
            low, high = max(low, first), min(high, last)
            if low > high:
                continue
            known = ranges.setdefault(self.requirement_of(task), [])
            if known and known[-1][1] + 1 == low:
                known[-1] = (known[-1][0], high)
            else:
                known.append((low, high))
        return tuple(Group(requirement, tuple(spans)) for requirement, spans in ranges.items())

    @cached_property
    def total(self) -> Vector:
        """Return the sum of the limits of all tasks."""
        if not self.overrides:
            return scale(self.base.limit, self.tasks)
        result: Vector = (0,) * len(self.base.limit)
        for first, last, task in self.segments():
            result = add(result, scale(task.limit, last - first + 1))
        return result

    def charged(self) -> Vector:
        """Return the amounts that the job needs as quota. They are zero for a job inside an alloc set, because the set
        is charged instead (§2.4).
        """
        return (0,) * len(self.base.limit) if self.alloc_set else self.total

    def max_down(self) -> int:
        """Return how many tasks an update may have down at the same time."""
        return self.update.max_down or max(1, self.tasks // 10)

    def may_be_down(self) -> int:
        """Return how many tasks may be down at the same time because of drains. This is the disruption budget. If the
        spec has none, it is the limit for updates (`max_down`).
        """
        return self.budget_down or self.max_down()

    @property
    def disruption_limits(self) -> DisruptionLimits:
        """Return the disruption budget with its parts."""
        return limits_of(self.disruption_budget)

    @property
    def budget_down(self) -> int:
        """Return how many tasks may be down at once within the disruption budget; 0: no limit. A share is a share of
        the tasks that run at once (`max_running`).
        """
        at_once = min(self.tasks, self.max_running or self.tasks)
        return tasks_down(self.disruption_limits.max_down, at_once)

    @property
    def max_run_s(self) -> float | None:
        """Return the longest time limit of the runs of a task, in seconds. Return None if a task has no limit."""
        limits = [task.max_run_s for _, _, task in self.segments()]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def ends_within_s(self, *, ttl_s: int) -> float | None:
        """Return the seconds from the start of a run until it has ended and its resources are free: its time limit, the
        time in which it leaves DNS, and its notice. Return None if a task has no such bound: it has no time limit, or
        it may start again in place (`restart.on` is not `never`), or it has a health check, whose results hide when the
        run started. `ttl_s`: as in `leave_s`.
        """
        longest = 0.0
        for _, _, task in self.segments():
            if task.max_run_s is None or task.restart.on != "never" or task.health is not None:
                return None
            longest = max(longest, task.max_run_s + self.leave_s(task, ttl_s=ttl_s) + task.notice_s + REPORT_S)
        return longest

    def published(self) -> Published:
        """Return the settings with which DNS publishes the job's names. They contain only weights other than 1, the
        default.
        """
        weights = ((first, last, task.weight) for first, last, task in self.segments() if task.weight != 1)
        return Published(self.names.ttl_s, tuple(joined(weights)))

    def leave_s(self, task: TaskSpec, *, ttl_s: int) -> float:
        """Return how many seconds before SIGTERM a stopping task is removed from DNS answers. If the spec does not say
        it, this is one second more than clients may cache an answer, or zero if the task has no ports. `ttl_s`: for
        how many seconds clients may cache an answer by default.
        """
        if self.names.leave_s is not None:
            return self.names.leave_s
        return min((self.names.ttl_s or ttl_s) + 1.0, MAX_LEAVE_S) if task.ports else 0.0

    @property
    def starts_at(self) -> dt.datetime | None:
        """Return the time before which no task starts, or None if tasks may start at once."""
        return dt.datetime.fromisoformat(self.start_after) if self.start_after else None

    def at(self, *, cell: str, tenant: str) -> JobSpecification:
        """Return a copy of this spec with this `cell` and this `tenant`, because a job file may leave them out."""
        return msgspec.structs.replace(self, cell=cell, tenant=tenant)

    def to_json(self) -> dict[str, Any]:
        """Return a job file that parses to an equal spec. A field in `_LATER`, which older software does not have, is
        left out if it has its default.
        """
        return {
            "apiVersion": API_VERSION,
            "kind": next(kind for kind, stored in KINDS.items() if stored == self.kind),
            "name": self.name,
            "tenant": self.tenant,
            "cell": self.cell,
            "labels": dict(sorted(self.labels.items())),
            "priority": self.priority,
            "appclass": LATENCY_SENSITIVE if self.latency_sensitive else BATCH,
            "tasks": self.tasks,
            "task": self.base.to_json(extra=self.extra),
            "overrides": {override.key: override.patch for override in self.overrides},
            "spread": msgspec.to_builtins(self.spread),
            "update": {"max_down": self.update.max_down, "max_disruptions": self.update.max_disruptions}
            | fields_set(self.update, _LATER_OF_UPDATES),
            "alloc_set": self.alloc_set,
            "reclamation": self.reclamation,
        } | fields_set(self, _LATER)

    def digest(self) -> str:
        """Return the SHA-256 of the spec in hexadecimal. Equal specs have equal digests, even if their job files are
        written differently.
        """
        return hashlib.sha256(self.canonical).hexdigest()

    @cached_property
    def canonical(self) -> bytes:
        """Return the spec as a job file in JSON with sorted keys. Equal specs give equal bytes."""
        return msgspec.json.encode(self.to_json(), order="deterministic")

    @cached_property
    def _starts(self) -> list[int]:
        return [override.first for override in self.overrides]


def compared(
    old: JobSpecification | None, new: JobSpecification
) -> Iterator[tuple[int, int, TaskSpec | None, TaskSpec]]:
    """Yield `(first, last, before, after)` for ranges of task indexes, in order. The ranges cover all tasks of `new`.
    `before` is None for tasks that `old` does not have.
    """
    before = deque([] if old is None else [(last, task) for _, last, task in old.segments()])
    for first, last, task in new.segments():
        while first <= last:
            while before and before[0][0] < first:
                before.popleft()
            end = min(last, before[0][0]) if before else last
            yield first, end, before[0][1] if before else None, task
            first = end + 1


def joined(ranges: Iterable[tuple[int, int, _Value]]) -> list[tuple[int, int, _Value]]:
    """Return the ranges `(first, last, value)`, with neighbouring ranges joined if their values are equal."""
    result: list[tuple[int, int, _Value]] = []
    for first, last, value in ranges:
        if result and result[-1][1:] == (first - 1, value):
            result[-1] = (result[-1][0], last, value)
        else:
            result.append((first, last, value))
    return result


# Fields that specs of older versions lack. They are written only if they differ from the default, so that the digests
# of stored specs do not change.
_LATER_OF_UPDATES = {
    name: getattr(Rolling(), name) for name in ("canary", "promote", "healthy_s", "rollback", "deadline_s")
}
_LATER: dict[str, object] = {
    "gang": False,
    "disruption_budget": 0,
    "max_running": 0,
    "preemption_delay_s": None,
    "saves_for_s": 0.0,
    "api": "none",
    "names": Names(),
    "deadline_s": None,
    "start_after": None,
    "after": {},
    "ttl_after_end_s": None,
    "autoscale": None,
}
