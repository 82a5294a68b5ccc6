"""The specs of the jobs of a copied cell. A spec that is unknown is replaced by one that this module makes.

A checkpoint of another installation may contain no specs, and old specs may have been deleted. But each task's
requirement is known, and a spec can be made that gives the same requirement. Its command is not the real one, which
does no harm, because a study cell never runs a task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import PORTS
from scheduling.core.cell.tasks import DEAD
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Constraint, Relation, Requirement
from scheduling.history.checkpoints.specs import SpecRequirements
from scheduling.history.checkpoints.tables import Tables
from scheduling.spec.job_spec import JobSpecification, Override
from scheduling.spec.merge_patch import patch_to
from scheduling.spec.schema import Spread
from scheduling.spec.task_spec import LIMITS_TIME, SPEAKS, TaskSpec

if TYPE_CHECKING:
    import pyarrow

UNKNOWN_COMMAND = ("(unknown)",)
Version = tuple[int, int]  # job id, version of the spec


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """A spec as the database stores it: a job file, and its packages by digest (`JobSpec.packages`)."""

    spec: dict[str, Any]
    packages: dict[str, Any]


def versions_used(tables: Tables) -> set[Version]:
    """Return the versions of specs that a cell needs: those of its tasks, jobs and updates."""
    used = {(job, version) for job, version, _, _ in _runs(tables)}
    jobs, updates = tables["jobs"].to_pylist(), tables["updates"].to_pylist()
    used |= {(row["job_id"], row["spec_version"]) for row in jobs}
    # A job that is created in parts has an update from version 0, which has no spec.
    used |= {(row["job_id"], row[which]) for row in updates for which in ("from_version", "to_version") if row[which]}
    return used


def specs_in(table: pyarrow.Table) -> dict[Version, StoredSpec]:
    """Return the specs of the section `specs` of a checkpoint."""
    return {
        (row["job_id"], row["version"]): StoredSpec(
            msgspec.json.decode(row["spec"]), msgspec.json.decode(row["packages"])
        )
        for row in table.to_pylist()
    }


def specs_completed(
    tables: Tables, known: Mapping[Version, StoredSpec], *, extra: tuple[str, ...]
) -> dict[Version, StoredSpec]:
    """Return a spec for each version that the cell needs. Specs of `known` are used if they give the requirements that
    the tasks have. The other specs are made from the requirements. `extra`: names of the cell's own resources.
    """
    requirements = [
        msgspec.json.decode(text, type=Requirement) for text in tables["requirements"]["requirement"].to_pylist()
    ]
    wrong = set(_differing(tables, known, requirements, extra))
    used = versions_used(tables)
    found = {version: known[version] for version in used if version in known and version not in wrong}
    missing = used - found.keys()
    if missing:
        made = _Making(tables, requirements, extra)
        found |= {version: made.spec(version) for version in missing}
    return found


def _runs(tables: Tables) -> Iterator[tuple[int, int, int, int]]:
    """Yield (job id, version, begin, end) for each run of tasks with equal job and version."""
    ids = tables["tasks"]["id"].to_numpy()
    version = tables["tasks"]["spec_version"].to_numpy().astype(np.int64)
    job = ids >> INDEX_BITS
    starts = np.flatnonzero(np.diff(job, prepend=-1) | np.diff(version, prepend=-1))
    for begin, end in zip(starts.tolist(), [*starts.tolist()[1:], len(ids)], strict=False):
        yield int(job[begin]), int(version[begin]), begin, end


def _differing(
    tables: Tables, known: Mapping[Version, StoredSpec], requirements: list[Requirement], extra: tuple[str, ...]
) -> Iterator[Version]:
    """Yield the versions whose known spec is missing, cannot be read, or gives other requirements than the tasks
    have.
    """
    number = {one: place for place, one in enumerate(requirements)}
    wanted, state = tables["tasks"]["requirement"].to_numpy(), tables["tasks"]["state"].to_numpy()
    index = tables["tasks"]["id"].to_numpy() & (MAX_TASKS - 1)
    specs = SpecRequirements(_table(known), extra)
    for job, version, begin, end in _runs(tables):
        try:
            firsts, given = specs.of(job, version)
        except (LookupError, Rejected, msgspec.MsgspecError):
            yield job, version
            continue
        numbers = np.array([number.get(one, -1) for one in given])
        place = np.searchsorted(firsts, index[begin:end], side="right") - 1
        if ((numbers[place] != wanted[begin:end]) & (state[begin:end] != DEAD)).any():
            yield job, version


class _Making:
    """Makes specs for the jobs of a copied cell from the requirements of their tasks."""

    def __init__(self, tables: Tables, requirements: list[Requirement], extra: tuple[str, ...]) -> None:
        self._extra = extra
        self._requirements = requirements
        self._number = tables["tasks"]["requirement"].to_numpy()
        self._index: Ints = tables["tasks"]["id"].to_numpy() & (MAX_TASKS - 1)
        self._jobs = {row["job_id"]: row for row in tables["jobs"].to_pylist()}
        self._names = {row["job_id"]: row["name"] for row in self._jobs.values()}
        self._runs: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for job, version, begin, end in _runs(tables):
            self._runs[job].append((version, begin, end))

    def spec(self, version: Version) -> StoredSpec:
        """Return a spec that gives the tasks of this version the requirements that they have. Tasks without a known
        requirement get that of another task of the job. Raises `LookupError` if the job has no tasks.
        """
        job = self._jobs[version[0]]
        runs = self._runs[version[0]]
        if not runs:
            raise LookupError(
                f"the checkpoint is damaged: job {job['name']} with id {version[0]} has no tasks; use another"
                " checkpoint"
            )
        own = [(begin, end) for of, begin, end in runs if of == version[1]] or [runs[0][1:]]
        spans = [span for begin, end in own for span in self._spans(begin, end)]
        base, first = spans[0][2], self._requirements[spans[0][2]]
        task = self._task(job, first)
        base_json = task.to_json(extra=self._extra)
        others = {one: self._task(job, self._requirements[one]) for _, _, one in spans if one != base}
        spec = JobSpecification(
            name=job["name"],
            tenant=job["tenant"],
            kind=job["job_kind"],
            labels=msgspec.json.decode(job["labels"]),
            priority=job["priority"],
            latency_sensitive=job["latency_sensitive"] or bool(first.whole_cores),
            tasks=max(int(self._index[end - 1]) for _, _, end in runs) + 1,
            base=task,
            overrides=tuple(
                Override(low, high, patch_to(base_json, others[one].to_json(extra=self._extra)), others[one])
                for low, high, one in spans
                if one != base
            ),
            spread=Spread(first.max_per_machine, first.max_per_rack, first.max_per_power_domain),
            alloc_set=self._names.get(job["alloc_set"], ""),
            gang=job["gang"],
            disruption_budget=job["disruption_budget"],
            max_running=job.get("max_running") or 0,
            extra=self._extra,
        )
        packages = {
            digest: {"size_bytes": size, "format": "tar"}
            for _, _, one in spans
            for digest, size in self._requirements[one].packages
        }
        return StoredSpec(spec.to_json(), packages)

    def _spans(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first index, last index, number of the requirement) for each range of tasks with equal requirements,
        among the rows of tasks from `begin` to `end`.
        """
        number, index = self._number[begin:end], self._index[begin:end]
        starts = np.flatnonzero((np.diff(number, prepend=-1) != 0) | (np.diff(index, prepend=-2) != 1))
        for low, high in zip(starts.tolist(), [*starts.tolist()[1:], len(index)], strict=False):
            yield int(index[low]), int(index[high - 1]), int(number[low])

    def _task(self, job: Mapping[str, Any], wanted: Requirement) -> TaskSpec:
        max_run_s = job.get("max_run_s") if LIMITS_TIME in wanted.constraints else None
        implied = {LIMITS_TIME} if max_run_s else {SPEAKS} if wanted.packages else set()
        if wanted.whole_cores:
            implied.add(Constraint("isolation.cores", Relation.NOT_EQUAL, "none"))
        return TaskSpec(
            limit=wanted.limit,
            command=() if job["job_kind"] == "alloc-set" else UNKNOWN_COMMAND,
            ports=tuple(f"port-{number}" for number in range(wanted.limit[PORTS])),
            constraints=tuple(one for one in wanted.constraints if one not in implied),
            packages=tuple(f"package-{n}@{digest}" for n, (digest, _) in enumerate(wanted.packages)),
            whole_cores=wanted.whole_cores > 0,
            max_run_s=max_run_s or None,
        )


def _table(known: Mapping[Version, StoredSpec]) -> pyarrow.Table:
    import pyarrow as pa

    rows = [
        {
            "job_id": job,
            "version": version,
            "spec": msgspec.json.encode(one.spec).decode(),
            "packages": msgspec.json.encode(one.packages).decode(),
        }
        for (job, version), one in known.items()
    ]
    names = {"job_id": pa.int64(), "version": pa.int32(), "spec": pa.string(), "packages": pa.string()}
    return pa.Table.from_pylist(rows, schema=pa.schema(names))
