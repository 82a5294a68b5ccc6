"""The live jobs, cron jobs and workflows that use a secret or a config file, and the events that make machines look at
a secret again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import JobState
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.models import Secret

SECRETS, CONFIGS = "secrets", "configs"  # what a task uses: the field of a job file and the columns with the names


def _in_files(column: str, field: str) -> str:
    """Return a query of the uses of `%(name)s` in the job file in a column."""
    return " UNION ALL ".join(
        f"SELECT jsonb_path_query({column}, '{path}.{field}[*] ? (@.name == $name)',"
        " jsonb_build_object('name', %(name)s::text)) AS used"
        for path in ("$.task", "$.overrides.*")
    )


class UsingJob(NamedTuple):
    """A live job, a cron job or a live workflow that uses a secret or a config file. `job_id`: only of a job,
    else 0. `kind`: Job, CronJob, Workflow or StoppedJob. `versions`: the versions of it that its specs name.
    """

    job_id: int
    cell_id: int
    cell: str
    name: str
    kind: str
    versions: tuple[str, ...]


def jobs_using(tenant_id: int, name: str, field: str = SECRETS) -> list[UsingJob]:
    """Return the live jobs, cron jobs, live workflows and stopped jobs of services of a tenant of which a spec uses the
    secret `name`, or with the field `CONFIGS` the config file `name`, in order of cell and job. A spec counts if it is
    the newest one of its job, if a task has it, if an open update may return to it, or if the start of a stopped
    service submits it. A workflow counts until it ends, because nodes that wait have no job yet. Makes one query.
    """
    rows = query(
        "SELECT j.id, c.id, c.name, j.name, 'Job', array_agg(DISTINCT u.used #>> '{version}')"
        " FROM scheduling_jobspec AS s JOIN scheduling_job AS j ON j.id = s.job_id"
        " JOIN scheduling_cell AS c ON c.id = j.cell_id AND c.study_of IS NULL AND c.deleted_at IS NULL"
        f" CROSS JOIN LATERAL ({_in_files('s.spec', field)}) AS u"
        f" WHERE s.{field} @> jsonb_build_array(%(name)s::text) AND s.{field} <> '[]'"
        " AND j.tenant_id = %(tenant)s AND j.state <> %(dead)s"
        " AND (s.version = j.spec_version OR s.version IN (SELECT o.from_version FROM scheduling_update AS o"
        " WHERE o.job_id = j.id AND o.state = 'open') OR EXISTS (SELECT FROM scheduling_task AS t"
        " WHERE t.job_id = s.job_id AND t.spec_version = s.version AND t.state <> %(dead)s))"
        " GROUP BY j.id, c.id, c.name, j.name"
        " UNION ALL SELECT 0, c.id, c.name, k.name, 'CronJob', array_agg(DISTINCT u.used #>> '{version}')"
        " FROM scheduling_cronjob AS k"
        " JOIN scheduling_cell AS c ON c.id = k.cell_id AND c.study_of IS NULL AND c.deleted_at IS NULL"
        f" CROSS JOIN LATERAL ({_in_files('k.template', field)}) AS u"
        " WHERE k.tenant_id = %(tenant)s GROUP BY k.id, c.id, c.name, k.name"
        " UNION ALL SELECT 0, c.id, c.name, w.name, 'Workflow',"
        f" ARRAY(SELECT jsonb_array_elements_text(w.{field} -> %(name)s::text))"
        " FROM scheduling_workflow AS w"
        " JOIN scheduling_cell AS c ON c.id = w.cell_id AND c.study_of IS NULL AND c.deleted_at IS NULL"
        " WHERE w.tenant_id = %(tenant)s AND w.ended_at IS NULL"
        f" AND w.{field} -> %(name)s::text IS NOT NULL"
        " UNION ALL SELECT 0, c.id, c.name, j.name, 'StoppedJob', array_agg(DISTINCT u.used #>> '{version}')"
        " FROM scheduling_stoppedjob AS k JOIN scheduling_job AS j ON j.id = k.job_id"
        " JOIN scheduling_jobspec AS s ON s.job_id = k.job_id AND s.version = k.version"
        " JOIN scheduling_cell AS c ON c.id = j.cell_id AND c.study_of IS NULL AND c.deleted_at IS NULL"
        f" CROSS JOIN LATERAL ({_in_files('s.spec', field)}) AS u"
        f" WHERE s.{field} @> jsonb_build_array(%(name)s::text) AND s.{field} <> '[]'"
        " AND j.tenant_id = %(tenant)s GROUP BY j.id, c.id, c.name, j.name"
        " ORDER BY 2, 1, 4, 5",
        {"name": name, "tenant": tenant_id, "dead": JobState.DEAD.value},
    )
    return [UsingJob._make((*job, tuple(filter(None, versions)))) for *job, versions in rows]


def append_events(entries: Mapping[int, JournalEntry], jobs: Iterable[UsingJob], secret: Secret, change: str) -> None:
    """Append an event to the journal of each job's cell: a secret that the job uses has changed. `entries`: the
    revision that is being written, by the id of the cell. `change`: set, granted, revoked or deleted.
    """
    for job in (job for job in jobs if job.job_id):
        entries[job.cell_id].append(
            events.JobSecretChanged(job_id=job.job_id, secret=secret.name, change=change, version=secret.newest_version)
        )
