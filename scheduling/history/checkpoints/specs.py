"""The specs of a cell's live jobs, without the values of environment variables, as a section of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from scheduling.core.vocabulary.requirement import Requirement
from scheduling.journal.sql import query
from scheduling.spec import parser

if TYPE_CHECKING:
    import pyarrow

# Fields of a spec that do not change the requirements of tasks.
_NAMES = ("name", "tenant", "cell", "labels", "priority", "names", "update")
# The versions that tasks have, that the job has, and that an update changes from and to.
_USED = """
SELECT s.job_id, s.version, s.spec::text, s.packages::text FROM scheduling_jobspec AS s
JOIN scheduling_job AS j ON j.id = s.job_id WHERE j.id = ANY(%(jobs)s) AND (s.version = j.spec_version OR EXISTS (
    SELECT FROM scheduling_task AS t WHERE t.job_id = s.job_id AND t.spec_version = s.version
) OR EXISTS (
    SELECT FROM scheduling_update AS u
    WHERE u.job_id = s.job_id AND u.state = 'open' AND s.version IN (u.from_version, u.to_version)
)) ORDER BY s.job_id, s.version"""


def specs_of(job_ids: list[int]) -> pyarrow.Table:
    """Return a table with those versions of the jobs' specs that tasks and updates of the jobs use at present."""
    import pyarrow as pa

    rows = query(_USED, {"jobs": job_ids})
    columns = {
        "job_id": pa.array([row[0] for row in rows], pa.int64()),
        "version": pa.array([row[1] for row in rows], pa.int32()),
        "spec": pa.array([without_values(row[2]) for row in rows], pa.string()),
        "packages": pa.array([row[3] for row in rows], pa.string()),
    }
    return pa.table(columns)


def without_values(text: str) -> str:
    """Return a stored spec, JSON text, in which the values of all environment variables are empty."""
    if '"env"' not in text:
        return text
    file = msgspec.json.decode(text)
    without_environment(file)
    return msgspec.json.encode(file).decode()


def without_environment(file: dict[str, Any]) -> None:
    """Replace the values of all environment variables in a stored spec by empty texts."""
    for task in (file.get("task"), *(file.get("overrides") or {}).values()):
        if isinstance(task, dict) and isinstance(env := task.get("env"), Mapping):
            task["env"] = dict.fromkeys(env, "")


class SpecRequirements:
    """The requirements of tasks by job and version of the spec. `extra`: the further resources of the cell. Specs
    that differ only in names are parsed once.
    """

    def __init__(self, specs: pyarrow.Table, extra: Sequence[str]) -> None:
        self.extra = tuple(extra)
        self._rows = {(row["job_id"], row["version"]): (row["spec"], row["packages"]) for row in specs.to_pylist()}
        self._parsed: dict[bytes, tuple[list[int], list[Requirement]]] = {}

    def of(self, job_id: int, version: int) -> tuple[list[int], list[Requirement]]:
        """Return the first index of each range of tasks with equal requirements, and the requirement of each range.
        Raises `LookupError` if the spec is unknown.
        """
        if (job_id, version) not in self._rows:
            raise LookupError(
                f"job {job_id} has tasks of version {version}, but this version of its spec is missing in the database;"
                " run `manage.py validate`"
            )
        spec, packages = self._rows[job_id, version]
        file = msgspec.json.decode(spec)
        unimportant = dict.fromkeys(_NAMES if file.get("overrides") else (*_NAMES, "tasks"))
        key = msgspec.json.encode([{**file, **unimportant}, packages])
        found = self._parsed.get(key)
        if found is None:
            read = parser.load(file, extra=self.extra, packages=msgspec.json.decode(packages))
            segments = list(read.segments())
            firsts = [first for first, _, _ in segments]
            found = self._parsed[key] = firsts, [read.requirement_of(task) for _, _, task in segments]
        return found
