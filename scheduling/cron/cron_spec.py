"""Cron jobs in job files: `kind: CronJob`, with a cron line and the job that each run submits. Pure.

bytes or dict ── parse ──► CronSpecification, or Rejected with fields: {"schedule": what is wrong, what to do}
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any
from zoneinfo import available_timezones

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.spec import parser
from scheduling.spec.field_errors import Problems, convert, rejection
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schedules import cron_lines
from scheduling.spec.schema import API_VERSION, SERVICE_LABEL

KIND = "CronJob"
# What happens at a due time if an earlier run is still live.
ALLOW, FORBID, REPLACE = "allow", "forbid", "replace"
OVERLAPS = (ALLOW, FORBID, REPLACE)
MIN_CATCH_UP_S, MAX_CATCH_UP_S = 60.0, 86_400.0
MAX_KEPT_RUNS = 1_000
# Runs are named `NAME-20261128t0230z`; a run by hand has seconds too. Names of jobs have at most 63 characters.
MAX_NAME = 63 - len("-20261128t023000z")
# The label of each run, with the name of its cron job.
LABEL = "cron"
MAX_TEMPLATE_BYTES = 256 * 2**10  # because one turn reads the jobs of many runs
MAX_JOB_LABELS = parser.MAX_LABELS - 1  # without `LABEL`
# Parsed templates, by the SHA-256 of the template and the cell's own resources. Large templates are not kept.
_parsed: dict[tuple[bytes, tuple[str, ...]], JobSpecification] = {}
_MAX_CACHED, _MAX_CACHED_BYTES = 512, 64 * 2**10


class CronFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job file of kind `CronJob`. `job`: a job file without name, tenant and cell."""

    name: str
    schedule: str
    job: dict[str, Any]
    kind: str = KIND
    apiVersion: str = API_VERSION  # noqa: N815 - the file's own spelling
    tenant: str = ""
    cell: str = ""
    labels: dict[str, Any] = {}
    time_zone: str = "UTC"
    overlap: str = ALLOW
    catch_up_s: float = 600.0
    keep_runs: int = 100


class CronSpecification(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A checked cron job. `job`: the job of a run, without a name. `catch_up_s`: a run starts at most this many seconds
    late, for example after an outage; later it is missed. `keep_runs`: how many runs its history keeps.
    """

    name: str
    tenant: str
    cell: str
    labels: dict[str, str]
    schedule: str
    time_zone: str
    overlap: str
    catch_up_s: float
    keep_runs: int
    job: JobSpecification

    def at(self, *, cell: str, tenant: str) -> CronSpecification:
        return msgspec.structs.replace(self, cell=cell, tenant=tenant)

    @cached_property
    def template(self) -> dict[str, Any]:
        """Return the job of a run as a job file without name, tenant and cell, so that equal jobs are equal here."""
        return {key: value for key, value in self.job.to_json().items() if key not in ("name", "tenant", "cell")}

    def to_json(self) -> dict[str, Any]:
        """Return a job file that parses to an equal cron job."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "tenant": self.tenant,
            "cell": self.cell,
            "labels": dict(sorted(self.labels.items())),
            "schedule": self.schedule,
            "time_zone": self.time_zone,
            "overlap": self.overlap,
            "catch_up_s": self.catch_up_s,
            "keep_runs": self.keep_runs,
            "job": self.template,
        }

    def digest(self) -> str:
        """Return the SHA-256 of the cron job in hexadecimal. Equal cron jobs have equal digests."""
        return hashlib.sha256(msgspec.json.encode(self.to_json(), order="deterministic")).hexdigest()


def is_cron_file(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("kind") == KIND


def parse(data: bytes | Mapping[str, Any], *, limits: parser.CellLimits, least_period_s: int = 60) -> CronSpecification:
    """Return the checked cron job of a job file. Raises `Rejected` with the code `invalid-spec`, whose `fields` contain
    all problems. `least_period_s`: the shortest time that the cell allows between two runs.
    """
    problems = Problems()
    file = convert(parser.decode(data), CronFile, problems, "")
    if file is None:
        raise rejection(problems.found)
    _check_header(file, problems)
    line = _check_schedule(file.schedule, problems)
    if line is not None and line.least_minutes_between() * 60 < least_period_s:
        problems.add(
            "schedule",
            f"runs every {line.least_minutes_between() * 60} s, and at most one run per {least_period_s} s is possible;"
            " choose a longer period",
        )
    job = _read_job(file, problems, limits)
    if problems.found or job is None:
        raise rejection(problems.found)
    equal = {name: getattr(file, name) for name in ("name", "tenant", "cell", "labels", "time_zone", "overlap")}
    schedule = " ".join(file.schedule.split())
    return CronSpecification(**equal, schedule=schedule, catch_up_s=file.catch_up_s, keep_runs=file.keep_runs, job=job)


def load_template(template: str, *, extra: tuple[str, ...] = ()) -> JobSpecification:
    """Return the job of a stored template, with the label of runs. Raises `Rejected` if a run could not be loaded
    later. `template`: canonical JSON, so that equal templates are parsed once.
    """
    key = hashlib.sha256(template.encode()).digest(), extra
    found = _parsed.get(key)
    if found is None:
        job = msgspec.json.decode(template)
        labels = {**job.get("labels", {}), LABEL: "run"}
        found = parser.load({**job, "name": "run", "labels": labels}, extra=extra)
        if len(template) <= _MAX_CACHED_BYTES:
            while len(_parsed) >= _MAX_CACHED:
                _parsed.pop(next(iter(_parsed)), None)
            _parsed[key] = found
    return found


def run_name(name: str, due_at: dt.datetime, *, by_hand: bool = False) -> str:
    """Return the name of the job of a run, for example `nightly-20261128t0230z`. The time is in UTC."""
    return f"{name}-{due_at.astimezone(dt.UTC):{'%Y%m%dt%H%M%Sz' if by_hand else '%Y%m%dt%H%Mz'}}"


def _check_header(file: CronFile, problems: Problems) -> None:
    parser.check_header(file, (KIND,), problems)
    if len(file.name) > MAX_NAME:
        problems.add(
            "name", f"the name has {len(file.name)} characters; give at most {MAX_NAME}, because runs add their time"
        )
    problems.choice("overlap", file.overlap, OVERLAPS)
    problems.number("catch_up_s", file.catch_up_s, MIN_CATCH_UP_S, MAX_CATCH_UP_S)
    problems.number("keep_runs", file.keep_runs, 1, MAX_KEPT_RUNS)
    if file.time_zone not in _zones():
        problems.add("time_zone", f"{file.time_zone[:64]!r} is unknown; give a name such as Europe/Berlin, or UTC")
    parser.check_labels(file.labels, problems)
    if SERVICE_LABEL in file.labels:
        problems.add(f"labels.{SERVICE_LABEL}", "a cron job is not a service; set this label in job.labels")


def _check_schedule(schedule: str, problems: Problems) -> cron_lines.CronLine | None:
    try:
        return cron_lines.parse(" ".join(schedule.split()))
    except cron_lines.CronLineError as error:
        problems.add("schedule", str(error))
        return None


def _read_job(file: CronFile, problems: Problems, limits: parser.CellLimits) -> JobSpecification | None:
    for name in ("name", "tenant", "cell"):
        if name in file.job:
            problems.add(f"job.{name}", f"a run gets its {name} from the cron job; remove this field")
    if file.job.get("start_after") is not None:
        problems.add("job.start_after", "the cron line decides when a run starts; remove this field")
    if file.job.get("kind", "Job") != "Job":
        problems.add("job.kind", "a run is always a job; write Job, or remove this field")
    labels = file.job.get("labels")
    if isinstance(labels, dict) and LABEL in labels:
        problems.add(f"job.labels.{LABEL}", "each run gets this label with the name of the cron job; remove it")
    elif isinstance(labels, dict) and len(labels) > MAX_JOB_LABELS:
        cure = f"give at most {MAX_JOB_LABELS}, because each run gets the label {LABEL} too"
        problems.add("job.labels", f"has {len(labels)} labels; {cure}")
    try:
        job = parser.parse({**file.job, "name": "run"}, limits=limits)
    except Rejected as problem:
        for path, message in problem.fields.items():
            problems.add(f"job.{path}", message)
        return None
    if (size := len(job.canonical)) > MAX_TEMPLATE_BYTES:
        cure = f"give at most {MAX_TEMPLATE_BYTES:,}; move data into a package"
        problems.add("job", f"the job of a run has {size:,} bytes in JSON; {cure}")
    return job


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones() - {"localtime", "Factory"})
