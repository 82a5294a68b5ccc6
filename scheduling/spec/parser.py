"""The parser of job files, version `borg/v1`. Pure.

bytes or dict ── parse ──► JobSpecification, or Rejected with fields: {"task.limit.cpu": what is wrong, what to do}
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import msgspec

from quota.vocabulary.bands import DEFAULT_BANDS, FREE_PRIORITY, MAX_PRIORITY, Band, band_of
from quota.vocabulary.errors import invalid
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.core.vocabulary.states import JobGoal
from scheduling.spec.autoscaling.checks import check_of_task, read_autoscale
from scheduling.spec.autoscaling.fields import AUTO, Autoscale
from scheduling.spec.disruptions.limits import check_budget, normalised
from scheduling.spec.field_errors import Problems, convert, rejection
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
from scheduling.spec.schema import API_VERSION, HEALTHY, MANUAL, SERVICE_LABEL, JobFields, JobFile, Names, Rolling
from scheduling.spec.task_spec import TaskRole, TaskSpec, read_task

MAX_BYTES = 4 * 2**20
MAX_LABELS = 64
MAX_AFTER = 64
MAX_GANG = 2_500  # because one transaction writes all placements of a gang
MAX_SAVING_S = 14 * 86400
MAX_TTL_S = 86_400
MAX_HEALTHY_S = 86_400
MAX_DELAY_S = 3_600
LEAST_TTL_S = 2 * 86_400  # after the end of a job, until its usage and its costs are written
MAX_TOTAL = 2**60  # of one resource for all tasks, so that sums over a tenant fit into 64 bits
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class CellLimits:
    """The limits that a cell sets for job files. `bands`: the priority bands; None: every priority is valid. None is
    used for stored specs, because the bands may have changed after a spec was stored.

    `extra`: names of the cell's own resources. `unchanged`: the spec is stored and nothing in it changes, so that rules
    that are younger than it do not hold for it.
    """

    max_tasks: int = MAX_TASKS
    bands: Sequence[Band] | None = DEFAULT_BANDS
    extra: Sequence[str] = ()
    unchanged: bool = False


def parse(data: bytes | Mapping[str, Any], *, limits: CellLimits = CellLimits()) -> JobSpecification:
    """Return the checked and normalised spec that a job file contains.

    Raises `Rejected` with the code `invalid-spec` if the file is not valid. The `fields` of this error contain all
    problems by their path in the file.
    """
    problems = Problems()
    given = decode(data)
    file = convert(given, JobFile, problems, "")
    spec = None if file is None else _read(file, problems, limits)
    if problems.found or spec is None:
        raise rejection(problems.found)
    return spec


def load(
    stored: Mapping[str, Any], *, extra: Sequence[str] = (), packages: Mapping[str, Any] | None = None
) -> JobSpecification:
    """Return the spec from JSON that `to_json` returned earlier. The priority is not compared with the present bands.
    `packages`: by digest, the stored packages; their sizes are added to the spec.
    """
    spec = parse(stored, limits=CellLimits(bands=None, extra=extra, unchanged=True))
    return with_sizes(spec, packages) if packages else spec


def with_sizes(spec: JobSpecification, packages: Mapping[str, Any]) -> JobSpecification:
    """Return a copy of the spec that contains the sizes of its packages. `packages`: by digest, a dict with the key
    `size_bytes`.
    """
    sizes = {digest: int(known["size_bytes"]) for digest, known in packages.items()}
    return msgspec.structs.replace(spec, sizes=sizes)


def decode(data: bytes | Mapping[str, Any]) -> Any:
    """Return the content of a job file, without checking its fields. Raises `Rejected` with the code `invalid-spec` if
    the data is not JSON, too long, or nested too deeply.
    """
    if not isinstance(data, bytes | bytearray):
        return data
    if len(data) > MAX_BYTES:
        raise invalid("file", f"the file has {len(data)} bytes; send at most {MAX_BYTES}", "invalid-spec")
    try:
        given = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(
            "file", f"the file is not JSON: {error}; correct it at this place"[:500], "invalid-spec"
        ) from None
    except RecursionError:
        raise invalid("file", TOO_DEEP, "invalid-spec") from None
    if too_deep(given):
        raise invalid("file", TOO_DEEP, "invalid-spec")
    return given


def _most_at_once(file: JobFile, autoscale: Autoscale | None) -> int:
    """Return how many tasks of the job may run at once, also after the autoscaler has added tasks."""
    horizontal = autoscale.horizontal if autoscale is not None else None
    most = max(file.tasks, horizontal.max) if horizontal is not None and horizontal.mode == AUTO else file.tasks
    return min(most, file.max_running or most)


def _read(file: JobFile, problems: Problems, limits: CellLimits) -> JobSpecification | None:
    check_header(file, KINDS, problems)
    if file.alloc_set:
        problems.label("alloc_set", file.alloc_set)
    allocation = file.kind == "AllocSet"
    if allocation and file.alloc_set:
        problems.add("alloc_set", "an alloc set cannot be inside another alloc set; remove this field")
    priority, latency_sensitive = _read_urgency(file, problems, limits.bands)
    check_labels(file.labels, problems, stored=limits.bands is None)
    if not 1 <= file.tasks <= limits.max_tasks:
        problems.add("tasks", f"{file.tasks} tasks are not possible; give 1 to {limits.max_tasks}")
    for name, value in msgspec.structs.asdict(file.spread).items():
        problems.number(f"spread.{name}", value, 0, MAX_TASKS)
    _check_update(file.update, problems)
    _check_max_running(file, problems)
    if file.preemption_delay_s is not None:
        problems.number("preemption_delay_s", file.preemption_delay_s, 0, MAX_DELAY_S)
    if file.gang and file.tasks > MAX_GANG:
        problems.add("gang", f"{file.tasks} tasks are too many for a gang; split it into jobs of at most {MAX_GANG}")
    problems.number("saves_for_s", file.saves_for_s, 0, MAX_SAVING_S)
    start_after = _read_times(file, problems)
    _check_after(file, problems)
    autoscale = read_autoscale(file, problems, stored=limits.bands is None)
    check_budget(file.disruption_budget, problems, at_once=0 if limits.unchanged else _most_at_once(file, autoscale))
    problems.choice("api", file.api, API_LEVELS)
    _check_published(file.names, allocation, problems)
    if file.alloc_set:
        _check_inside(file, problems)
    elif file.saves_for_s:
        problems.add("saves_for_s", "only a job inside an alloc set can save files of an alloc; give its alloc_set")
    role = TaskRole(
        allocation=allocation, inside=bool(file.alloc_set), stored=limits.bands is None, batch=not latency_sensitive
    )
    task = read_task(file.task, problems, "task", extra=limits.extra, role=role)
    if task is not None and autoscale is not None:
        check_of_task(autoscale, task, problems)
    if task is None or problems.found:
        return None
    read = {
        "base": task,
        "kind": KINDS[file.kind],
        "priority": priority,
        "latency_sensitive": latency_sensitive,
        "overrides": _read_overrides(file, task, problems, limits, role),
        "extra": tuple(limits.extra),
        "start_after": start_after,
        "autoscale": autoscale,
        "disruption_budget": normalised(file.disruption_budget),
    }
    equal = {name: getattr(file, name) for name in JobFields.__struct_fields__}
    spec = JobSpecification(labels=file.labels, **(equal | read))
    if not problems.found and max(spec.total) > MAX_TOTAL:
        problems.add("task.limit", f"all {spec.tasks} tasks together ask for more than is possible; ask for less")
    return spec


def _check_update(update: Rolling, problems: Problems) -> None:
    for name in ("max_down", "max_disruptions", "canary"):
        problems.number(f"update.{name}", getattr(update, name), 0, MAX_TASKS)
    problems.choice("update.promote", update.promote, (HEALTHY, MANUAL))
    problems.number("update.healthy_s", update.healthy_s, 0, MAX_HEALTHY_S)
    if update.promote == MANUAL and not update.canary:
        problems.add("update.promote", "there are no canary tasks to promote; set update.canary, or remove this field")
    if update.deadline_s is not None:
        problems.duration("update.deadline_s", update.deadline_s, "for updates without a deadline")


def _read_times(file: JobFile, problems: Problems) -> str | None:
    """Check the times of a job. Return `start_after` in UTC, so that equal times are equal texts."""
    if file.kind == "AllocSet":
        for name in ("deadline_s", "start_after"):
            if getattr(file, name) is not None:
                problems.add(name, "an alloc set has no times; set this field in the jobs inside the alloc set")
    if file.deadline_s is not None:
        problems.duration("deadline_s", file.deadline_s, "for a job without a deadline")
    if file.ttl_after_end_s is not None:
        without = "to keep the job as long as its cell keeps ended jobs"
        problems.duration("ttl_after_end_s", file.ttl_after_end_s, without, least_s=LEAST_TTL_S)
    if file.start_after is None:
        return None
    try:
        at = dt.datetime.fromisoformat(file.start_after)
        if at.tzinfo is None:
            detail = f"{file.start_after[:64]!r} has no time zone; add one, such as Z for UTC or +01:00"
            problems.add("start_after", detail)
            return None
        return at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        detail = f"{file.start_after[:64]!r} is not a time; write it like 2026-12-24T02:00:00+01:00"
        problems.add("start_after", detail)
        return None


def _check_max_running(file: JobFile, problems: Problems) -> None:
    problems.number("max_running", file.max_running, 0, MAX_TASKS)
    if not file.max_running:
        return
    if file.update.canary or file.update.rollback:
        detail = (
            "an update with canary or rollback waits until all tasks are up, which this field prevents; remove this"
            " field, or remove update.canary and update.rollback"
        )
        problems.add("max_running", detail)
    if file.gang:
        problems.add("max_running", "all tasks of a gang run at once; remove this field, or gang")
    if file.kind == "AllocSet":
        problems.add("max_running", "all allocs of a set run at once; set this field in the jobs inside")


def _check_after(file: JobFile, problems: Problems) -> None:
    if file.after and file.kind == "AllocSet":
        problems.add("after", "an alloc set starts at once; set this field in the jobs inside the alloc set")
    problems.count("after", file.after, MAX_AFTER, "jobs")
    for name, goal in file.after.items():
        problems.label(f"after.{name}", name)
        problems.choice(f"after.{name}", goal, JobGoal)
        if name == file.name:
            problems.add(f"after.{name}", "a job cannot wait for itself; name another job")


def _check_published(names: Names, allocation: bool, problems: Problems) -> None:
    if allocation and names != Names():
        problems.add("names", "an alloc set has no names; set them in the jobs inside the alloc set")
    problems.number("names.ttl_s", names.ttl_s, 0, MAX_TTL_S)
    if names.leave_s is not None:
        problems.number("names.leave_s", names.leave_s, 0, MAX_LEAVE_S)


def _check_inside(file: JobFile, problems: Problems) -> None:
    """Add a problem for each field that a job inside an alloc set cannot have."""
    for name in ("max_per_rack", "max_per_power_domain"):
        if getattr(file.spread, name):
            detail = f"the tasks run inside allocs; set this field in the alloc set {file.alloc_set} instead"
            problems.add(f"spread.{name}", detail)
    if file.saves_for_s and file.task.get("ports"):
        problems.add("saves_for_s", "a task that runs after its alloc has left cannot have ports; remove task.ports")


def _read_urgency(file: JobFile, problems: Problems, bands: Sequence[Band] | None) -> tuple[int, bool]:
    """Return (priority, whether the job is latency-sensitive). If the file gives the name of a band as priority, this
    is the lowest priority of the band.
    """
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
    problems.choice("appclass", file.appclass, (LATENCY_SENSITIVE, BATCH))
    return priority, file.appclass == LATENCY_SENSITIVE


class FileHeader(Protocol):
    """The fields that job files of every kind have."""

    @property
    def apiVersion(self) -> str: ...  # noqa: N802 - the file's own spelling
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def cell(self) -> str: ...


def check_header(file: FileHeader, kinds: Iterable[str], problems: Problems) -> None:
    """Add a problem for each field of the header that is not valid. `kinds`: the kinds that are accepted."""
    if file.apiVersion != API_VERSION:
        problems.add("apiVersion", f"{file.apiVersion!r} is unknown; this cell reads {API_VERSION!r}")
    problems.choice("kind", file.kind, kinds)
    problems.label("name", file.name)
    for path, value in (("tenant", file.tenant), ("cell", file.cell)):
        if value:
            problems.label(path, value)


def check_labels(labels: dict[str, Any], problems: Problems, *, stored: bool = False) -> None:
    """Add a problem for each label that is not valid. `stored`: whether the labels come from a stored spec."""
    problems.count("labels", labels, MAX_LABELS, "labels")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            problems.add(f"labels.{key}", "is not a label name; use at most 128 letters, digits, '.', '_', '/' and '-'")
        if not isinstance(value, str):
            problems.add(f"labels.{key}", f"{value!r} is not text; put it between quotes")
        else:
            problems.text(f"labels.{key}", value, 255)
            if key == SERVICE_LABEL and not stored:  # older versions accepted any text
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
            problems.add(path, "is not an index; write '3' for one task, or '0-9' for ten tasks")
            continue
        first, last = int(span[1]), int(span[2] or span[1])
        if not first <= last < file.tasks:
            problems.add(path, f"is out of range; the job has tasks 0 to {file.tasks - 1}")
        if not isinstance(patch, dict):
            problems.add(path, "is not an object; give the fields that differ, such as {limit: {ram: '1Gi'}}")
            continue
        known = msgspec.json.encode(patch)
        if known not in read:
            other = read_task(merged(base, patch), problems, path, extra=limits.extra, role=role)
            if other is not None and other.ports != task.ports:
                problems.add(f"{path}.ports", "all tasks of a job have the same ports; put the ports into task")
            read[known] = None if other is None else (patch_to(base, other.to_json(extra=limits.extra)), other)
        done = read[known]
        if done is not None and done[0]:
            result.append(Override(first, last, *done))
    result.sort(key=lambda override: override.first)
    for before, after in pairwise(result):
        if after.first <= before.last:
            problems.add(f"overrides.{after.key}", f"overlaps with {before.key}; name each task once")
    return tuple(result)
