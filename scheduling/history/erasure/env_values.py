"""Erases values of environment variables that look like secrets from stored job files that nothing uses any more.

    versions of specs of ended jobs, and old versions of live jobs ─┐
    old versions of templates ──────────────────────────────────────┼─► ERASED in place of each value
    parameters and jobs of ended workflows ─────────────────────────┘

What live jobs, cron jobs, live workflows, stopped services and the newest versions of templates still use stays, and is
listed: an erased value would be missing at the next start of a task. The journal and checkpoints have no values of
environment variables, and the archive has masks, so they need no change. A spec with an erased value is rejected, so an
undo or a retry cannot start tasks with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Q

from quota import records
from quota.models import Tenant
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.journal.sql import query
from scheduling.models import Cell, CronJob, JobSpec, JobTemplate, JobTemplateVersion, Workflow, WorkflowNode
from scheduling.spec.masking import ERASED, looks_secret, without_secrets

_AT_ONCE = 500
_MOST_LISTED = 100

# Versions of specs with `env`, in the order of ids, and whether something still uses them: the newest version of a live
# job, versions that tasks have, all versions during an update, and the version that a start of a service submits.
_SPECS = """
SELECT s.id, c.name, t.name, j.name, s.version, s.spec::text,
    (j.state <> 'dead' AND (s.version = j.spec_version
        OR EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = j.id AND u.state = 'open')))
    OR EXISTS (SELECT FROM scheduling_task AS k
        WHERE k.job_id = j.id AND k.spec_version = s.version AND k.state <> 'dead')
    OR EXISTS (SELECT FROM scheduling_stoppedjob AS p WHERE p.job_id = j.id AND p.version = s.version)
FROM scheduling_jobspec AS s JOIN scheduling_job AS j ON j.id = s.job_id
JOIN scheduling_cell AS c ON c.id = j.cell_id JOIN quota_tenant AS t ON t.id = j.tenant_id
WHERE j.cell_id = %(cell)s AND s.id > %(after)s AND (%(tenant)s = '' OR t.name = %(tenant)s)
    AND (jsonb_path_exists(s.spec, '$.task.env') OR jsonb_path_exists(s.spec, '$.overrides.*.env'))
ORDER BY s.id LIMIT %(most)s"""


@dataclass(slots=True)
class ErasedValues:
    """The result of an erasure. `values`: how many values were erased, in so many versions of `specs` and `templates`,
    and in so many ended `workflows`. `in_use`: how many objects still use such values. `left`: their names, at most
    100.
    """

    values: int = 0
    specs: int = 0
    templates: int = 0
    workflows: int = 0
    in_use: int = 0
    left: list[str] = field(default_factory=list)

    def add_left(self, text: str) -> None:
        if text not in self.left:
            self.in_use += 1
            if len(self.left) < _MOST_LISTED:
                self.left.append(text)


def env_values_erase(*, principal: Principal, tenant: str = "", dry_run: bool = False) -> ErasedValues:
    """Erase values that look like secrets from job files that nothing uses any more. Return how many there were.
    `tenant`: only those of this tenant. Can be interrupted and repeated. Raises `NotFound` for an unknown tenant.

    Locks: per cell and 500 versions, the row of the cell, so that no job begins to use a version meanwhile.
    """
    require(principal, Action.PLATFORM_ADMIN)
    if tenant and not Tenant.objects.filter(name=tenant).exists():
        raise NotFound("tenant", tenant)
    done = ErasedValues()
    for cell in Cell.objects.order_by("id"):
        after = 0
        while after >= 0:
            with transaction.atomic():
                Cell.objects.select_for_update().get(pk=cell.pk)
                after = _erase_specs(cell, tenant, after, done, dry_run=dry_run)
        with transaction.atomic():
            Cell.objects.select_for_update().get(pk=cell.pk)
            _erase_templates(cell, tenant, done, dry_run=dry_run)
            _erase_workflows(cell, tenant, done, dry_run=dry_run)
        _list_cron_jobs(cell, tenant, done)
    if done.values and not dry_run:
        with records.write(principal) as entry:
            entry.append(
                "secret.env-erased",
                tenant=tenant,
                values=done.values,
                specs=done.specs,
                templates=done.templates,
                workflows=done.workflows,
            )
    return done


def _erase_specs(cell: Cell, tenant: str, after: int, done: ErasedValues, *, dry_run: bool) -> int:
    """Erase values from the next versions of specs behind the id `after`. Return the last id, or -1 at the end."""
    rows = query(_SPECS, {"cell": cell.pk, "after": after, "tenant": tenant, "most": _AT_ONCE})
    changed = []
    for pk, cell_name, tenant_name, name, version, spec, used in rows:
        file, count = without_secrets(msgspec.json.decode(spec))
        if not count:
            continue
        if used:
            done.add_left(f"job {cell_name}/{tenant_name}/{name}, version {version}")
            continue
        done.values, done.specs = done.values + count, done.specs + 1
        # With the digest of the spec, a reader could check guesses of the value.
        changed.append(JobSpec(pk=pk, spec=file, digest=""))
    if not dry_run:
        JobSpec.objects.bulk_update(changed, ["spec", "digest"])
    return rows[-1][0] if len(rows) == _AT_ONCE else -1


def _erase_templates(cell: Cell, tenant: str, done: ErasedValues, *, dry_run: bool) -> None:
    rows = JobTemplate.objects.filter(cell=cell, **_of(tenant)).select_related("tenant")
    newest = {row.pk: row for row in rows}
    changed = []
    versions = JobTemplateVersion.objects.filter(template__in=newest).order_by("id")
    for version in versions.iterator(_AT_ONCE):
        row = newest[version.template_id]
        job, count = without_secrets(version.content["job"])
        if not count:
            continue
        if version.version == row.version:
            done.add_left(f"template {cell.name}/{row.tenant.name}/{row.name}")
            continue
        done.values, done.templates = done.values + count, done.templates + 1
        version.content = version.content | {"job": job}
        changed.append(version)
    if not dry_run:
        JobTemplateVersion.objects.bulk_update(changed, ["content"], batch_size=_AT_ONCE)


def _erase_workflows(cell: Cell, tenant: str, done: ErasedValues, *, dry_run: bool) -> None:
    """Erase values from the parameters and the jobs of ended workflows. A retry of a node that needs them fails."""
    rows = list(Workflow.objects.filter(cell=cell, **_of(tenant)).select_related("tenant").order_by("id"))
    counts, ended = dict.fromkeys((row.pk for row in rows), 0), []
    for row in rows:
        hidden = {name for name, value in row.parameters.items() if value != ERASED and looks_secret(name, value)}
        counts[row.pk] += len(hidden)
        if hidden and row.ended_at is not None:
            row.parameters = {name: ERASED if name in hidden else value for name, value in row.parameters.items()}
            row.digest = ""
            ended.append(row)
    live = {row.pk for row in rows if row.ended_at is None}
    nodes = []
    with_env = Q(template__task__has_key="env") | Q(template__has_key="overrides")
    found = WorkflowNode.objects.filter(with_env, workflow_id__in=counts, branch=-1).only("workflow_id", "template")
    for node in found.order_by("id").iterator(_AT_ONCE):
        node.template, count = without_secrets(node.template)
        counts[node.workflow_id] += count
        if count and node.workflow_id not in live:
            nodes.append(node)
    for row in rows:
        if counts[row.pk] and row.pk in live:
            done.add_left(f"workflow {cell.name}/{row.tenant.name}/{row.name}")
        elif counts[row.pk]:
            done.values, done.workflows = done.values + counts[row.pk], done.workflows + 1
    if not dry_run:
        Workflow.objects.bulk_update(ended, ["parameters", "digest"], batch_size=_AT_ONCE)
        WorkflowNode.objects.bulk_update(nodes, ["template"], batch_size=_AT_ONCE)


def _list_cron_jobs(cell: Cell, tenant: str, done: ErasedValues) -> None:
    for row in CronJob.objects.filter(cell=cell, **_of(tenant)).select_related("tenant").order_by("id"):
        if without_secrets(row.template)[1]:
            done.add_left(f"cron job {cell.name}/{row.tenant.name}/{row.name}")


def _of(tenant: str) -> dict[str, Any]:
    return {"tenant__name": tenant} if tenant else {}
