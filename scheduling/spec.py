"""Job specs, version `borg/v1`: read from a job file, checked, normalised, compared. Pure.

bytes or dict ── parse ──► JobSpec ── groups ──► equal requirements as ranges of indexes
                   │          ├────── task(i) ─► TaskSpec, the override merged in
                   ▼          └────── to_json ─► a job file that parses to an equal spec
                Refused("invalid-spec"), fields: {"task.limit.cpu": what is wrong and the cure}
"""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from quota.bands import DEFAULT_BANDS, FREE_PRIORITY, MAX_PRIORITY, Band, band_of
from quota.errors import Refused
from quota.resources import Vector, add, scale
from scheduling.core.published import Published
from scheduling.core.requirement import MAX_TASKS, Group, Requirement
from scheduling.patches import merged, patch_to
from scheduling.problems import Problems, convert
from scheduling.shapes import API_VERSION, SERVICE_LABEL, JobFile, Names, Rolling, Spread
from scheduling.taskspec import Change, Role, TaskSpec, read_task
from scheduling.taskspec import change as task_change

KINDS = {"Job": "job", "AllocSet": "alloc-set"}
# What tasks may do with the REST API, from the least to the most (`scheduling.identities`).
API_LEVELS = ("none", "read", "submit")
LATENCY_SENSITIVE, BATCH = "latency-sensitive", "batch"

MAX_BYTES = 4 * 2**20
MAX_LABELS = 64
MAX_GANG = 2_500  # one pass decides about a gang, and one transaction writes it
MAX_SAVING_S = 14 * 86400
MAX_TTL_S = 86_400
MAX_LEAVE_S = 600.0
MAX_TOTAL = 2**60  # of one resource, all tasks together: sums over a tenant stay inside 64 bits

_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cell allows. `bands` None: any priority (a stored spec, whose bands may have moved since).

    `extra`: the cell's own named resources, after the fixed ones.
    """

    max_tasks: int = MAX_TASKS
    bands: Sequence[Band] | None = DEFAULT_BANDS
    extra: Sequence[str] = ()


class Override(msgspec.Struct, frozen=True):
    """Tasks `first` to `last` differ: `patch` is merged into the job's task (RFC 7396), `task` the result."""

    first: int
    last: int
    patch: dict[str, Any]
    task: TaskSpec

    @property
    def key(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class JobSpec(msgspec.Struct, frozen=True, dict=True):
    """One version of a job, normalised. `base` is the file's `task`; `overrides` in order, never overlapping.

    `saves_for_s`: after their alloc has left a machine its tasks run there again, until each has ended with status 0,
    for so long at most (§4). `gang`: its pending tasks are placed together, victims included, or none of them.
    `disruption_budget`: so many of its tasks preemption and drains may have down at once, 0 for no bound. `alloc_set`:
    the name of the alloc set that its tasks live in (§2.4). `api`: what its tasks may do with the REST API. `names`:
    how its names are published (§2.6).
    """

    name: str
    tasks: int
    base: TaskSpec
    tenant: str = ""
    cell: str = ""
    kind: str = "job"
    labels: dict[str, str] = {}
    priority: int = FREE_PRIORITY
    latency_sensitive: bool = False
    overrides: tuple[Override, ...] = ()
    spread: Spread = Spread()
    update: Rolling = Rolling()
    alloc_set: str = ""
    reclamation: bool = True
    gang: bool = False
    disruption_budget: int = 0
    saves_for_s: float = 0.0
    api: str = "none"
    names: Names = Names()
    extra: tuple[str, ...] = ()

    def task(self, index: int) -> TaskSpec:
        """What task `index` is asked to be. Raises `IndexError`."""
        if not 0 <= index < self.tasks:
            raise IndexError(f"job {self.name} has tasks 0 to {self.tasks - 1}, not {index}")
        position = bisect.bisect_right(self._starts, index) - 1
        if position >= 0 and index <= self.overrides[position].last:
            return self.overrides[position].task
        return self.base

    def segments(self) -> Iterator[tuple[int, int, TaskSpec]]:
        """`(first, last, task)` over all indexes, in order; at most twice as many as overrides, plus one."""
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
            # Tasks in an alloc go where the alloc is, whatever they need of its machine.
            constraints=task.constraints if self.alloc_set else task.demands(),
            max_per_machine=self.spread.max_per_machine,
            max_per_rack=self.spread.max_per_rack,
            max_per_power_domain=self.spread.max_per_power_domain,
        )

    def groups(self, first: int = 0, last: int | None = None) -> tuple[Group, ...]:
        """Tasks `first` to `last` (default: all) by equal requirement, adjacent ranges joined."""
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

    def total(self) -> Vector:
        """What all tasks together ask for."""
        return self._total

    def charged(self) -> Vector:
        """What of it costs quota: nothing inside an alloc set, which has paid for the envelope (§2.4)."""
        return (0,) * len(self.base.limit) if self.alloc_set else self.total()

    def max_down(self) -> int:
        """How many tasks an update may have down at once."""
        return self.update.max_down or max(1, self.tasks // 10)

    def may_be_down(self) -> int:
        """How many tasks preemption and drains may have down at once: its budget, or as many as an update may."""
        return self.disruption_budget or self.max_down()

    def published(self) -> Published:
        """How its names are published: adjacent tasks of one weight joined, those of weight 1 left out."""
        weights: list[tuple[int, int, int]] = []
        for first, last, task in self.segments():
            if task.weight == 1:
                continue
            if weights and weights[-1][1:] == (first - 1, task.weight):
                weights[-1] = (weights[-1][0], last, task.weight)
            else:
                weights.append((first, last, task.weight))
        return Published(self.names.ttl_s, tuple(weights))

    def leave_s(self, task: TaskSpec, *, ttl_s: int) -> float:
        """How long one of its tasks that was up is out of the answers before SIGTERM: as long as clients remember
        where it was, and a second. `ttl_s`: what the installation says of that."""
        if self.names.leave_s is not None:
            return self.names.leave_s
        return min((self.names.ttl_s or ttl_s) + 1.0, MAX_LEAVE_S) if task.ports else 0.0

    def at(self, *, cell: str, tenant: str) -> JobSpec:
        """The same for a cell and tenant that the file left out."""
        return msgspec.structs.replace(self, cell=cell, tenant=tenant)

    def to_json(self) -> dict[str, Any]:
        """A job file, ready for JSON, that parses to an equal spec: all fields, `_LATER` ones where they are set."""
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
            "update": msgspec.to_builtins(self.update),
            "alloc_set": self.alloc_set,
            "reclamation": self.reclamation,
        } | {
            name: msgspec.to_builtins(value)
            for name, default in _LATER.items()
            if (value := getattr(self, name)) != default
        }

    def digest(self) -> str:
        """Equal for equal specs, whatever the order or spelling of the file. SHA-256, hexadecimal."""
        return hashlib.sha256(self.canonical).hexdigest()

    @cached_property
    def _total(self) -> Vector:
        if not self.overrides:
            return scale(self.base.limit, self.tasks)
        result: Vector = (0,) * len(self.base.limit)
        for first, last, task in self.segments():
            result = add(result, scale(task.limit, last - first + 1))
        return result

    @cached_property
    def canonical(self) -> bytes:
        """`to_json` as JSON, its keys in order."""
        return msgspec.json.encode(self.to_json(), order="deterministic")

    @cached_property
    def _starts(self) -> list[int]:
        return [override.first for override in self.overrides]


def change(old: JobSpec, new: JobSpec, index: int) -> Change:
    """What following `new` means for running task `index` of `old`. Raises `IndexError` when either lacks it."""
    return _change(old, new, old.task(index), new.task(index))


def changes(old: JobSpec, new: JobSpec) -> list[tuple[int, int, Change]]:
    """`(first, last, change)` over the indexes that both have, in order; neighbours of one kind are joined."""
    result: list[tuple[int, int, Change]] = []
    ours, theirs = list(old.segments()), list(new.segments())
    i = j = 0
    while i < len(ours) and j < len(theirs):
        first, last = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        kind = _change(old, new, ours[i][2], theirs[j][2])
        if result and result[-1][2] is kind:
            result[-1] = (result[-1][0], last, kind)
        else:
            result.append((first, last, kind))
        i, j = i + (ours[i][1] == last), j + (theirs[j][1] == last)
    return result


def _change(old: JobSpec, new: JobSpec, before: TaskSpec, after: TaskSpec) -> Change:
    if (old.latency_sensitive, old.spread) != (new.latency_sensitive, new.spread):
        return Change.RESTART
    kind = task_change(before, after)
    if kind is Change.NONE and _of_the_job(old) != _of_the_job(new):
        return Change.IN_PLACE
    return kind


def _of_the_job(spec: JobSpec) -> tuple[object, ...]:
    """What is in force at once, and disturbs no task."""
    return (
        spec.priority, spec.labels, spec.reclamation, spec.gang, spec.disruption_budget, spec.saves_for_s, spec.api,
        spec.names,
    )  # fmt: skip


# Fields that specs stored by an older version don't have: they are written only when they say something, so that
# what was stored keeps its digest.
_LATER: dict[str, object] = {
    "gang": False,
    "disruption_budget": 0,
    "saves_for_s": 0.0,
    "api": "none",
    "names": Names(),
}


def parse(data: bytes | Mapping[str, Any], *, limits: Limits = Limits()) -> JobSpec:
    """A job file as a checked, normalised spec.

    Raises `Refused("invalid-spec")` whose `fields` name every problem by its path in the file.
    """
    problems = Problems()
    given = decode(data)
    file = convert(given, JobFile, problems, "")
    spec = None if file is None else _read(file, problems, limits)
    if problems.found or spec is None:
        raise _refusal(problems)
    return spec


def load(stored: Mapping[str, Any], *, extra: Sequence[str] = ()) -> JobSpec:
    """A spec as `to_json` wrote it, whatever bands and limits hold now."""
    return parse(stored, limits=Limits(bands=None, extra=extra))


def decode(data: bytes | Mapping[str, Any]) -> Any:
    """What a job file holds, unchecked. Raises `Refused("invalid-spec")` for what is no JSON."""
    if not isinstance(data, bytes | bytearray):
        return data
    problems = Problems()
    if len(data) > MAX_BYTES:
        problems.add("file", f"has {len(data)} bytes; a job file has at most {MAX_BYTES}")
        raise _refusal(problems)
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problems.add("file", f"is not JSON: {error}")
    except RecursionError:
        problems.add("file", "is nested too deeply to be a job")
    raise _refusal(problems)


def _refusal(problems: Problems) -> Refused:
    found = list(problems.found.items())
    told = "; ".join(f"{path}: {message}" for path, message in found[:3])
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return Refused("invalid-spec", f"{told}{more}", fields=problems.found)


def _read(file: JobFile, problems: Problems, limits: Limits) -> JobSpec | None:
    if file.apiVersion != API_VERSION:
        problems.add("apiVersion", f"{file.apiVersion!r} is not known here; this cell reads {API_VERSION!r}")
    if file.kind not in KINDS:
        problems.add("kind", f"{file.kind!r}: one of {', '.join(KINDS)}")
    problems.label("name", file.name)
    for path, value in (("tenant", file.tenant), ("cell", file.cell), ("alloc_set", file.alloc_set)):
        if value:
            problems.label(path, value)
    allocation = file.kind == "AllocSet"
    if allocation and file.alloc_set:
        problems.add("alloc_set", "an alloc set can't lie in another one; leave it out")
    priority, latency_sensitive = _read_urgency(file, problems, limits.bands)
    _check_labels(file.labels, problems, stored=limits.bands is None)
    if not 1 <= file.tasks <= limits.max_tasks:
        problems.add("tasks", f"{file.tasks} tasks; a job has 1 to {limits.max_tasks}")
    for name, value in msgspec.structs.asdict(file.spread).items():
        problems.number(f"spread.{name}", value, 0, MAX_TASKS)
    for name, value in msgspec.structs.asdict(file.update).items():
        problems.number(f"update.{name}", value, 0, MAX_TASKS)
    problems.number("disruption_budget", file.disruption_budget, 0, MAX_TASKS)
    if file.gang and file.tasks > MAX_GANG:
        problems.add("gang", f"{file.tasks} tasks; at most {MAX_GANG} are placed together, split the job")
    problems.number("saves_for_s", file.saves_for_s, 0, MAX_SAVING_S)
    if file.api not in API_LEVELS:
        problems.add("api", f"{file.api!r}: one of {', '.join(API_LEVELS)}")
    _check_published(file.names, allocation, problems)
    if file.alloc_set:
        _check_inside(file, problems)
    elif file.saves_for_s:
        problems.add(
            "saves_for_s", "only a job inside an alloc set saves what an alloc leaves; name its alloc_set"
        )
    role = Role(
        allocation=allocation,
        inside=bool(file.alloc_set),
        stored=limits.bands is None,
        batch=not latency_sensitive,
    )
    task = read_task(file.task, problems, "task", extra=limits.extra, role=role)
    if task is None or problems.found:
        return None
    spec = JobSpec(
        name=file.name,
        tasks=file.tasks,
        base=task,
        tenant=file.tenant,
        cell=file.cell,
        kind=KINDS[file.kind],
        labels=dict(file.labels),
        priority=priority,
        latency_sensitive=latency_sensitive,
        overrides=_read_overrides(file, task, problems, limits, role),
        spread=file.spread,
        update=file.update,
        alloc_set=file.alloc_set,
        reclamation=file.reclamation,
        gang=file.gang,
        disruption_budget=file.disruption_budget,
        saves_for_s=file.saves_for_s,
        api=file.api,
        names=file.names,
        extra=tuple(limits.extra),
    )
    if not problems.found and max(spec.total()) > MAX_TOTAL:
        problems.add("task.limit", f"all {spec.tasks} tasks together ask for an absurd amount; ask for less")
    return spec


def _check_published(names: Names, allocation: bool, problems: Problems) -> None:
    if allocation and names != Names():
        problems.add("names", "an alloc set has no names of its own; give them to the jobs inside it")
    problems.number("names.ttl_s", names.ttl_s, 0, MAX_TTL_S)
    if names.leave_s is not None:
        problems.number("names.leave_s", names.leave_s, 0, MAX_LEAVE_S)


def _check_inside(file: JobFile, problems: Problems) -> None:
    """A job inside an alloc set goes where its allocs are: where that is, the alloc set says."""
    for name in ("max_per_rack", "max_per_power_domain"):
        if getattr(file.spread, name):
            problems.add(
                f"spread.{name}", f"its tasks go where the allocs are; put it into alloc set {file.alloc_set}"
            )
    if file.saves_for_s and file.task.get("ports"):
        problems.add(
            "saves_for_s", "what runs again when its alloc has left has no ports there; leave task.ports out"
        )


def _read_urgency(file: JobFile, problems: Problems, bands: Sequence[Band] | None) -> tuple[int, bool]:
    """Priority and whether it is latency-sensitive. A band's name is its lowest priority."""
    priority = file.priority
    known = DEFAULT_BANDS if bands is None else bands
    if isinstance(priority, str):
        named = [band for band in known if band.name == priority]
        if not named:
            names = ", ".join(band.name for band in known)
            problems.add("priority", f"{priority!r} is no band; give a number or one of {names}")
            return FREE_PRIORITY, False
        priority = named[0].low
    try:
        prod = band_of(priority, known).prod
    except LookupError as error:
        prod = False
        if bands is not None or not 0 <= priority <= MAX_PRIORITY * 10:
            problems.add("priority", str(error))
    if file.appclass is None:
        return priority, prod
    if file.appclass not in (LATENCY_SENSITIVE, BATCH):
        problems.add("appclass", f"{file.appclass!r}: one of {LATENCY_SENSITIVE}, {BATCH}")
    return priority, file.appclass == LATENCY_SENSITIVE


def _check_labels(labels: dict[str, Any], problems: Problems, *, stored: bool) -> None:
    if len(labels) > MAX_LABELS:
        problems.add("labels", f"{len(labels)} labels; at most {MAX_LABELS}")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            problems.add(
                f"labels.{key}", "is no name of a label; use letters, digits, '.', '_', '/', '-', at most 128"
            )
        if not isinstance(value, str):
            problems.add(f"labels.{key}", f"{value!r} is no text; put it between quotes")
        else:
            problems.text(f"labels.{key}", value, 255)
            if key == SERVICE_LABEL and not stored:  # a name in DNS since services have them
                problems.label(f"labels.{key}", value)


def _read_overrides(
    file: JobFile, task: TaskSpec, problems: Problems, limits: Limits, role: Role
) -> tuple[Override, ...]:
    if not file.overrides:
        return ()
    base = task.to_json(extra=limits.extra)
    read: dict[bytes, tuple[dict[str, Any], TaskSpec] | None] = {}
    result: list[Override] = []
    for key, patch in file.overrides.items():
        path = f"overrides.{key}"
        span = _RANGE.fullmatch(key)
        if span is None:
            problems.add(path, "is no index; write '3', or '0-9' for ten tasks")
            continue
        first, last = int(span[1]), int(span[2] or span[1])
        if not first <= last < file.tasks:
            problems.add(path, f"is out of range; the job has tasks 0 to {file.tasks - 1}")
        if not isinstance(patch, dict):
            problems.add(path, "give the part of the task that differs, such as {limit: {ram: '1Gi'}}")
            continue
        known = msgspec.json.encode(patch)
        if known not in read:
            differing = read_task(merged(base, patch), problems, path, extra=limits.extra, role=role)
            if differing is not None and differing.ports != task.ports:
                problems.add(f"{path}.ports", "all tasks of a job have the same ports; put them into task")
            read[known] = (
                None
                if differing is None
                else (patch_to(base, differing.to_json(extra=limits.extra)), differing)
            )
        done = read[known]
        if done is not None and done[0]:
            result.append(Override(first, last, *done))
    result.sort(key=lambda override: override.first)
    for before, after in pairwise(result):
        if after.first <= before.last:
            problems.add(f"overrides.{after.key}", f"overlaps with {before.key}; name each task once")
    return tuple(result)
