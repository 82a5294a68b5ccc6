"""Job files, version `borg/v1`: read, checked, normalised to a `JobSpecification`. Pure.

bytes or dict ── parse ──► JobSpec, or Rejected("invalid-spec"), fields: {"task.limit.cpu": what is wrong and the cure}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from quota.vocabulary.bands import DEFAULT_BANDS, FREE_PRIORITY, MAX_PRIORITY, Band, band_of
from quota.vocabulary.errors import Rejected
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.spec.job_spec import (
    API_LEVELS,
    BATCH,
    KINDS,
    LATENCY_SENSITIVE,
    MAX_LEAVE_S,
    JobSpecification,
    Override,
)
from scheduling.spec.merge_patch import merged, patch_to
from scheduling.spec.nesting import TOO_DEEP, too_deep
from scheduling.spec.problems import Problems, convert
from scheduling.spec.schema import API_VERSION, SERVICE_LABEL, JobFile, Names
from scheduling.spec.task_spec import TaskRole, TaskSpec, read_task

MAX_BYTES = 4 * 2**20
MAX_LABELS = 64
MOST_TOLD = 10  # problems in one sentence; `fields` has them all
MAX_GANG = 2_500  # one pass decides about a gang, and one transaction writes it
MAX_SAVING_S = 14 * 86400
MAX_TTL_S = 86_400
MAX_TOTAL = 2**60  # of one resource, all tasks together: sums over a tenant stay inside 64 bits
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Limits of a cell. `bands` None: any priority (a stored spec, whose bands may have moved since).

    `extra`: the cell's own named resources, after the fixed ones.
    """

    max_tasks: int = MAX_TASKS
    bands: Sequence[Band] | None = DEFAULT_BANDS
    extra: Sequence[str] = ()


def parse(data: bytes | Mapping[str, Any], *, limits: CellLimits = CellLimits()) -> JobSpecification:
    """A job file as a checked, normalised spec.

    Raises `Rejected("invalid-spec")` whose `fields` name every problem by its path in the file.
    """
    problems = Problems()
    given = decode(data)
    file = convert(given, JobFile, problems, "")
    spec = None if file is None else _read(file, problems, limits)
    if problems.found or spec is None:
        raise _refusal(problems)
    return spec


def load(
    stored: Mapping[str, Any], *, extra: Sequence[str] = (), packages: Mapping[str, Any] | None = None
) -> JobSpecification:
    """A spec as `to_json` wrote it, whatever bands and limits hold now. `packages`: what is stored beside it of those
    that it names, so that the requirements of its tasks can be computed."""
    spec = parse(stored, limits=CellLimits(bands=None, extra=extra))
    return with_sizes(spec, packages) if packages else spec


def with_sizes(spec: JobSpecification, packages: Mapping[str, Any]) -> JobSpecification:
    """Return the spec with sizes of packages. `packages`: by digest, with `size_bytes`."""
    sizes = {digest: int(known["size_bytes"]) for digest, known in packages.items()}
    return msgspec.structs.replace(spec, sizes=sizes)


def decode(data: bytes | Mapping[str, Any]) -> Any:
    """Return the content of a job file, unchecked. Raise `Rejected("invalid-spec")` for text that is not JSON, and for
    JSON that is too long or nested too deeply."""
    if not isinstance(data, bytes | bytearray):
        return data
    problems = Problems()
    if len(data) > MAX_BYTES:
        problems.add("file", f"has {len(data)} bytes; a job file has at most {MAX_BYTES}")
        raise _refusal(problems)
    try:
        given = msgspec.json.decode(data)
        if not too_deep(given):
            return given
        problems.add("file", TOO_DEEP)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problems.add("file", f"is not JSON: {error}")
    except RecursionError:
        problems.add("file", TOO_DEEP)
    raise _refusal(problems)


def _refusal(problems: Problems) -> Rejected:
    found = list(problems.found.items())
    detail = "; ".join(f"{path}: {message}" for path, message in found[:MOST_TOLD])
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return Rejected("invalid-spec", f"{detail}{more}", fields=problems.found)


def _read(file: JobFile, problems: Problems, limits: CellLimits) -> JobSpecification | None:
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
        problems.add("saves_for_s", "only a job inside an alloc set saves what an alloc leaves; name its alloc_set")
    role = TaskRole(
        allocation=allocation, inside=bool(file.alloc_set), stored=limits.bands is None, batch=not latency_sensitive
    )
    task = read_task(file.task, problems, "task", extra=limits.extra, role=role)
    if task is None or problems.found:
        return None
    spec = JobSpecification(
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
            problems.add(f"spread.{name}", f"its tasks go where the allocs are; put it into alloc set {file.alloc_set}")
    if file.saves_for_s and file.task.get("ports"):
        problems.add("saves_for_s", "what runs again when its alloc has left has no ports there; leave task.ports out")


def _read_urgency(file: JobFile, problems: Problems, bands: Sequence[Band] | None) -> tuple[int, bool]:
    """Return the priority, and whether the job is latency-sensitive. The name of a band means its lowest priority."""
    priority = file.priority
    known = DEFAULT_BANDS if bands is None else bands
    if isinstance(priority, str):
        named = [band for band in known if band.name == priority]
        if not named:
            names = ", ".join(band.name for band in known)
            problems.add("priority", f"{priority!r} is not a band; give a number or one of {names}")
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
                f"labels.{key}", "is not the name of a label; use letters, digits, '.', '_', '/', '-', at most 128"
            )
        if not isinstance(value, str):
            problems.add(f"labels.{key}", f"{value!r} is not text; put it between quotes")
        else:
            problems.text(f"labels.{key}", value, 255)
            if key == SERVICE_LABEL and not stored:  # a name in DNS since services have them
                problems.label(f"labels.{key}", value)


def _read_overrides(
    file: JobFile, task: TaskSpec, problems: Problems, limits: CellLimits, role: TaskRole
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
            problems.add(path, "is not an index; write '3', or '0-9' for ten tasks")
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
                None if differing is None else (patch_to(base, differing.to_json(extra=limits.extra)), differing)
            )
        done = read[known]
        if done is not None and done[0]:
            result.append(Override(first, last, *done))
    result.sort(key=lambda override: override.first)
    for before, after in pairwise(result):
        if after.first <= before.last:
            problems.add(f"overrides.{after.key}", f"overlaps with {before.key}; name each task once")
    return tuple(result)
