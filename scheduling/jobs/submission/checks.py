"""Checks of submitted jobs while the cell's row is locked. They check packages, names, secrets, config files, alloc
sets and the number of jobs.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence

from django.db.models import F

from quota.vocabulary.errors import Conflict, Rejected
from scheduling.allocs import alloc_sets
from scheduling.config_files import known_files
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.job_times import times_refusal
from scheduling.jobs.submission.outcomes import Item
from scheduling.jobs.submission.revisions import revision_refusal
from scheduling.journal.sql import query
from scheduling.models import Cell, Job, JobSpec
from scheduling.packages import pinning
from scheduling.secrets import known_secrets, spec_rules
from scheduling.spec.field_errors import rejection


def pin_packages(cell: Cell, items: Sequence[Item]) -> None:
    """Replace the tags of packages in the jobs by digests. The cell's row is locked, so no package can be deleted
    before the job that uses it exists.
    """
    for item, done in zip(items, pinning.pin(cell, [(i.tenant.id, i.spec) for i in items]), strict=True):
        if isinstance(done, Rejected):
            item.refuse(done)
        elif done.packages:
            item.spec, item.digest, item.packages = done.spec, done.spec.digest(), done.packages


def check_names(cell: Cell, items: Sequence[Item]) -> None:
    """Check that no live job has the name of a job in `items`. If a live job has the same name and an equal spec,
    this job becomes the result of the item. If the spec is different, the item is rejected. An item is also rejected
    if the live job, or its absence, is not the revision that the item names.
    """
    if not items:
        return
    found = query(
        "SELECT id FROM scheduling_job WHERE cell_id = %s AND tenant_id = ANY(%s) AND name = ANY(%s) AND state <> %s",
        [cell.id, [item.tenant.id for item in items], [item.spec.name for item in items], JobState.DEAD.value],
    )
    rows = Job.objects.filter(id__in=[identity for (identity,) in found]) if found else ()
    live = {(job.tenant_id, job.name): job for job in rows}
    digests = {}
    if live:
        current = JobSpec.objects.filter(job__in=live.values(), version=F("job__spec_version"))
        digests = dict(current.values_list("job_id", "digest"))
    taken: set[tuple[int, str]] = set()
    for item in items:
        job = live.get(item.key)
        if problem := revision_refusal(job, item.if_revision, item.spec.name):
            item.refuse(problem)
        elif job is not None and digests.get(job.id) == item.digest:
            item.answer("unchanged", job)
        elif job is not None or item.key in taken:
            item.refuse(
                Conflict(
                    "job-exists",
                    f"tenant {item.spec.tenant} already has a live job {item.spec.name} in cell {cell.name}; "
                    "update that job, kill it first, or choose another name",
                    fields={"name": "taken by a live job"},
                )
            )
        taken.add(item.key)


def check_secrets(cell: Cell, items: Sequence[Item]) -> None:
    """Check that the secrets of the jobs exist and are granted to them, and that no value in `env` of a new spec looks
    like a secret.
    """
    for item in items:
        rule = spec_rules.erased_values if item.earlier else spec_rules.plain_secrets
        if problems := rule(item.spec):
            item.refuse(rejection(problems))
    undecided = [item for item in items if item.verdict is None]
    refusals = known_secrets.refusals(cell.name, [item.spec for item in undecided])
    for item, problem in zip(undecided, refusals, strict=True):
        if problem is not None:
            item.refuse(problem)


def check_config_files(items: Sequence[Item]) -> None:
    """Check that the config files of the jobs exist, in the versions that the job files name."""
    undecided = [item for item in items if item.verdict is None]
    problems = known_files.refusals([item.spec for item in undecided])
    for item, problem in zip(undecided, problems, strict=True):
        if problem is not None:
            item.refuse(problem)


def check_times(items: Sequence[Item], *, now: dt.datetime) -> None:
    """Check that the jobs start in the future, and before their deadline."""
    for item in items:
        if problem := times_refusal(item.spec, submitted_at=now, now=now):
            item.refuse(problem)


def check_numbers(items: Sequence[Item]) -> None:
    """Check that no tenant would have too many live jobs together with the new jobs."""
    if not items:
        return
    rows = query(
        "SELECT tenant_id, count(*) FROM scheduling_job WHERE tenant_id = ANY(%s) AND state <> %s"
        " AND cell_id NOT IN (SELECT id FROM scheduling_cell WHERE study_of IS NOT NULL) GROUP BY tenant_id",
        [list({item.tenant.id for item in items}), JobState.DEAD.value],
    )
    numbers = Counter[int](dict(rows))
    for item in items:
        if numbers[item.tenant.id] >= item.tenant.max_jobs:
            item.refuse(
                Rejected(
                    "too-many-jobs",
                    f"tenant {item.tenant.name} has {numbers[item.tenant.id]} live jobs and may have at most "
                    f"{item.tenant.max_jobs}; kill some jobs, or ask an SRE for a higher limit",
                    figures={"live": numbers[item.tenant.id], "most": item.tenant.max_jobs},
                    status=403,
                )
            )
        else:
            numbers[item.tenant.id] += 1


def check_alloc_sets(cell: Cell, items: Sequence[Item]) -> None:
    """Check jobs that should run inside an alloc set (§2.4). The alloc set must be large enough. It must be live, or
    come earlier in `items`.
    """
    named_sets = {(item.tenant.id, item.spec.alloc_set) for item in items if item.spec.alloc_set}
    live = alloc_sets.alloc_sets_named(cell, named_sets)
    coming: dict[tuple[int, str], Item] = {}
    for item in items:
        if item.spec.kind == alloc_sets.KIND:
            coming[item.key] = item
        if not item.spec.alloc_set:
            continue
        named = (item.tenant.id, item.spec.alloc_set)
        if named in coming:
            item.inside, alloc_set = coming[named], coming[named].spec
        elif named in live:
            item.inside, alloc_set = live[named].job_id, live[named].spec
        else:
            alloc_set = None
        if problem := alloc_sets.refusal(item.spec, alloc_set):
            item.refuse(problem)
