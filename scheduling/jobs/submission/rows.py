"""Writes the rows and events of admitted jobs, with the statement COPY, and the events of rejected jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quota.vocabulary.bands import Band
from scheduling.config_files import spec_uses
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import autoscaling_create
from scheduling.jobs.dependencies.binding import dependencies_create
from scheduling.jobs.submission.outcomes import Item, rejected_event
from scheduling.journal import copy_rows, journal
from scheduling.journal.row_events import job_submitted_event
from scheduling.models import Cell, Job, JobSpec
from scheduling.secrets import spec_rules
from scheduling.tasks import new_tasks
from scheduling.tasks.new_tasks import NewTasks


def jobs_create(entry: journal.JournalEntry, cell: Cell, items: Sequence[Item], bands: Sequence[Band]) -> None:
    """Write the rows and events of new jobs."""
    # Alloc sets come first, because the jobs inside them refer to their ids.
    for part in ([i for i in items if i.inside is None], [i for i in items if i.inside is not None]):
        rows = [_row(entry, cell, item, bands) for item in part]
        copy_rows.rows(Job, rows)
        for item, row in zip(part, rows, strict=True):
            item.job = row
            row.new_at = entry.revision  # type: ignore[attr-defined]
    dependencies_create(entry, items)
    jobs = [item.job for item in items if item.job is not None]
    copy_rows.values(
        JobSpec,
        ("job_id", "version", "spec", "digest", "packages", "secrets", "configs", "actor", "created_at"),
        [
            (
                *(job.id, 1, msgspec.Raw(item.spec.canonical), item.digest, item.packages),
                *(_json(spec_rules.names_of(item.spec)), _json(spec_uses.names_of(item.spec))),
                *(item.principal.name, entry.time),
            )
            for job, item in zip(jobs, items, strict=True)
        ],
    )
    autoscaling_create([(job, item.spec) for job, item in zip(jobs, items, strict=True)])
    new: list[NewTasks] = []
    for job, item in zip(jobs, items, strict=True):
        groups = item.spec.groups(0, item.size - 1)
        new.append(NewTasks(job.id, groups, 1))
        entry.act_as(item.principal)
        entry.append(job_submitted_event(job, groups))
    if new:
        new_tasks.tasks_create(entry, new, counted=True)
    for item in items:
        if item.job is not None and item.size < item.spec.tasks:
            entry.act_as(item.principal)
            updates.update_open(entry, item.job, from_version=0, to_spec=item.spec, actor=item.principal.name)


def _row(entry: journal.JournalEntry, cell: Cell, item: Item, bands: Sequence[Band]) -> Job:
    inside = item.inside.job if isinstance(item.inside, Item) else None
    return Job(  # type: ignore[misc]
        cell=cell,
        tenant=item.tenant,
        name=item.spec.name,
        kind=item.spec.kind,
        alloc_set_id=inside.id if inside is not None else item.inside,
        tasks_total=item.size,
        tasks_pending=item.size,
        submitted_by=item.principal.name,
        key=item.submission_key,
        created_at=entry.time,
        waiting=any(not one.reached for one in item.dependencies),
        **updates.spec_columns(item.spec, bands, submitted_at=entry.time),
    )


def rejection_append(entry: journal.JournalEntry, item: Item) -> None:
    """Append an event for a rejected job, except if the job was rejected because its name or key is already in use, or
    because the request names another revision.
    """
    problem = item.verdict.problem if item.verdict is not None else None
    if problem is not None and problem.code not in ("job-exists", "key-used", "revision-changed"):
        entry.act_as(item.principal)
        entry.append(rejected_event(item.spec.tenant, item.spec.name, problem))


def _json(names: list[str]) -> msgspec.Raw:
    """Return a list as JSON. COPY would write a Python list as an array of PostgreSQL."""
    return msgspec.Raw(msgspec.json.encode(names))
