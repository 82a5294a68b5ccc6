"""The jobs of a recorded cell (a study cell whose history comes from a simulation). Converts the simulated jobs to
database rows, specs and events, with ids of the database.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from quota.models import Tenant
from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.resources import NAMES, PORTS, Vector
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Group, split_task_id, task_id
from scheduling.jobs.updates import spec_columns
from scheduling.journal.row_events import job_submitted_event
from scheduling.models import Cell, Job, JobSpec
from scheduling.simulator.workload import Ending, Workload
from scheduling.spec import parser
from scheduling.spec.job_spec import BATCH, LATENCY_SENSITIVE, JobSpecification

ACTOR = "system:record"
_COMMAND = ["run"]


@dataclass(eq=False)
class RecordedJobs:
    """The jobs of a recorded cell: the jobs of a simulated source, with ids of database rows. The object gives the
    simulation the arriving jobs (`Arrivals`) and the behaviour of their tasks (`Behaviour`).

    `initial`: the jobs at the beginning of the simulation. `source`: the jobs that arrive later. `ids` [J]: an
    ascending id for each of the J jobs, initial jobs first. `began`: the time 0 of the source, in seconds since the
    epoch. `rows`, `specs`: the rows of all jobs that were submitted, by id.
    """

    cell: Cell
    tenants: Sequence[Tenant]
    initial: Sequence[events.JobSubmitted]
    source: Workload
    ids: Ints
    began: float
    rows: dict[int, Job] = field(default_factory=dict)
    specs: dict[int, JobSpec] = field(default_factory=dict)
    _parsed: dict[Any, JobSpecification] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.times: Floats = self.source.arrivals.times + self.began
        self._own = np.zeros(len(self.ids), dtype=np.int64)  # ids of the source, by position

    def begin(self) -> list[events.JobSubmitted]:
        """Return the submissions of the initial jobs. Add their rows to `rows` and `specs`."""
        return [self._submitted(place, job, self.began) for place, job in enumerate(self.initial)]

    def job(self, number: int) -> events.JobSubmitted:
        """Return the submission of the job at position `number` of the arrivals. Add its rows to `rows` and `specs`."""
        place = len(self.initial) + number
        return self._submitted(place, self.source.arrivals.job(number), self.times.item(number))

    def ending(self, identity: int, incarnation: int, priority: int) -> Ending | None:
        job_id, index = split_task_id(identity)
        own = self._own.item(int(np.searchsorted(self.ids, job_id)))
        return self.source.behaviour.ending(task_id(own, index), incarnation, priority)

    def demand(self, identity: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        places = np.searchsorted(self.ids, identity >> INDEX_BITS)
        own = self._own[places] << INDEX_BITS | identity & (MAX_TASKS - 1)
        return self.source.behaviour.demand(own, limit, priority, now - self.began)

    def _submitted(self, place: int, job: events.JobSubmitted, at: float) -> events.JobSubmitted:
        self._own[place] = job.job_id
        job_id, time = self.ids.item(place), dt.datetime.fromtimestamp(at, dt.UTC)
        tenant = self.tenants[job.tenant_id % len(self.tenants)]
        spec = msgspec.structs.replace(self._spec(job), name=job.name, tenant=tenant.name, cell=self.cell.name)
        columns = spec_columns(spec, DEFAULT_BANDS, submitted_at=time)
        row = Job(
            id=job_id,
            uid=uuid.uuid5(self.cell.history_id, str(job_id)),
            cell=self.cell,
            tenant=tenant,
            name=job.name,
            kind=spec.kind,
            tasks_total=spec.tasks,
            submitted_by=ACTOR,
            created_at=time,
            **columns | {"requested": [0] * len(spec.total)},  # nothing is charged to quota
        )
        self.rows[job_id] = row
        self.specs[job_id] = JobSpec(
            job_id=job_id,
            version=1,
            spec=msgspec.Raw(spec.canonical),
            digest=spec.digest(),
            packages={},
            actor=ACTOR,
            created_at=time,
        )
        return job_submitted_event(row, spec.groups())

    def _spec(self, job: events.JobSubmitted) -> JobSpecification:
        """Return a spec with the requirements of a job, but without the names of the job, its tenant and its cell. Jobs
        with equal tasks share one spec, which is parsed once.
        """
        key = (job.groups, job.priority, job.latency_sensitive)
        if key not in self._parsed:
            self._parsed[key] = parser.parse(job_file(job))
        return self._parsed[key]


def job_file(job: events.JobSubmitted) -> dict[str, Any]:
    """Return a job file whose tasks have the requirements of a submitted job. The largest group of equal tasks becomes
    the entry `task`, and the other groups become `overrides` of it.
    """
    base, *others = sorted(job.groups, key=_tasks_of, reverse=True)
    first = base.requirement
    return {
        "name": "recorded",
        "priority": job.priority,
        "appclass": LATENCY_SENSITIVE if job.latency_sensitive else BATCH,
        "tasks": sum(map(_tasks_of, job.groups)),
        "task": {"command": _COMMAND, **_differing(base)},
        "overrides": {f"{low}-{high}": _differing(group) for group in others for low, high in group.ranges},
        "spread": {
            "max_per_machine": first.max_per_machine,
            "max_per_rack": first.max_per_rack,
            "max_per_power_domain": first.max_per_power_domain,
        },
    }


def _tasks_of(group: Group) -> int:
    return group.size


def _differing(group: Group) -> dict[str, Any]:
    constraints = [msgspec.to_builtins(one) for one in group.requirement.constraints]
    return {"limit": _limit(group.requirement.limit), "constraints": constraints}


def _limit(limit: Vector) -> dict[str, int | str]:
    """Return the limit in the form of a job file, with exact amounts."""
    return {
        name: f"{value}m" if name in ("cpu", "accelerators") else value
        for place, (name, value) in enumerate(zip(NAMES, limit, strict=True))
        if place != PORTS and (value or name in ("cpu", "ram", "disk"))
    }
