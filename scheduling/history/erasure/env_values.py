"""Erases values of environment variables that look like secrets from stored job files that nothing uses any more.

    versions of specs of ended jobs, and old versions of live jobs ─┐
    old versions of templates ──────────────────────────────────────┼─► ERASED in place of each value
    parameters, variables and jobs of ended workflows ──────────────┘

What live jobs, cron jobs, live workflows, stopped services and the newest versions of templates still have stays, and
is listed. The journal and checkpoints have no values of environment variables, and the archive has masks, so they need
no change. A spec with an erased value is rejected, so an undo or a retry cannot start tasks with it.

Rows are found without a lock, in parts. Each part that changes is read again under the lock of the cell's row, so that
nothing begins to use it meanwhile, and has its record in the same transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db import transaction

from quota import records
from quota.models import Tenant
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.journal.sql import query
from scheduling.models import Cell, CronJob, JobSpec, JobTemplateVersion, Workflow, WorkflowNode
from scheduling.spec.masking import ERASED, looks_secret, without_secrets

AT_ONCE = 500  # rows that one transaction changes
_IDS_AT_ONCE = 5_000  # ids that one statement looks at
_MOST_LISTED = 100

# Versions of specs with `env`, and whether something still uses them: the newest and the last good version of a live
# job, versions that its tasks have (a dead task can be retried), all versions during an update, and the version that a
# start of a service submits.
_SPECS = """
SELECT s.id, j.cell_id, c.name, t.name, j.name, s.version, s.spec::text,
    (j.state <> 'dead' AND (s.version = j.spec_version
        OR s.version = coalesce((SELECT max(u.to_version) FROM scheduling_update AS u
            WHERE u.job_id = j.id AND u.state = 'done' AND u.restarts = '[]'::jsonb), 1)
        OR EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = j.id AND u.state = 'open')
        OR EXISTS (SELECT FROM scheduling_task AS k WHERE k.job_id = j.id AND k.spec_version = s.version)))
    OR EXISTS (SELECT FROM scheduling_stoppedjob AS p WHERE p.job_id = j.id AND p.version = s.version)
FROM scheduling_jobspec AS s JOIN scheduling_job AS j ON j.id = s.job_id
JOIN scheduling_cell AS c ON c.id = j.cell_id JOIN quota_tenant AS t ON t.id = j.tenant_id
WHERE {which} AND (%(tenant)s = '' OR t.name = %(tenant)s)
    AND (jsonb_path_exists(s.spec, '$.task.env') OR jsonb_path_exists(s.spec, '$.overrides.*.env')) ORDER BY s.id"""
_IN_RANGE = _SPECS.format(which="s.id > %(after)s AND s.id <= %(last)s")
_OF_IDS = _SPECS.format(which="s.id = ANY(%(ids)s)")


@dataclass(slots=True)
class ErasedValues:
    """The result of an erasure. `values`: how many values were erased, in so many versions of `specs` and `templates`,
    and in so many ended `workflows`. `in_use`: how many objects still have such values. `left`: their names, at most
    100.
    """

    values: int = 0
    specs: int = 0
    templates: int = 0
    workflows: int = 0
    in_use: int = 0
    left: list[str] = field(default_factory=list)

    def add_left(self, text: str) -> None:
        self.in_use += 1
        if len(self.left) < _MOST_LISTED:
            self.left.append(text)


def env_values_erase(*, principal: Principal, tenant: str = "", dry_run: bool = False) -> ErasedValues:
    """Erase values that look like secrets from job files that nothing uses any more. Return how many there were.
    `tenant`: only those of this tenant. `dry_run`: only count them, without a lock. Can be interrupted and repeated.
    Raises `NotFound` for an unknown tenant. Locks: for each part, the row of its cell.
    """
    require(principal, Action.PLATFORM_ADMIN)
    if tenant and not Tenant.objects.filter(name=tenant).exists():
        raise NotFound("tenant", tenant)
    run = _Run(principal, tenant, dry_run)
    run.specs()
    run.templates()
    run.workflows()
    run.cron_jobs()
    return run.done


class _Run:
    def __init__(self, principal: Principal, tenant: str, dry_run: bool) -> None:
        self._principal, self._tenant, self._dry_run = principal, tenant, dry_run
        self._of = {"tenant__name": tenant} if tenant else {}
        self.done = ErasedValues()

    def specs(self) -> None:
        rows = query("SELECT coalesce(max(id), 0) FROM scheduling_jobspec")
        for after in range(0, rows[0][0], _IDS_AT_ONCE):
            values = {"after": after, "last": after + _IDS_AT_ONCE, "tenant": self._tenant}
            parts: dict[tuple[int, str], list[int]] = defaultdict(list)
            for pk, cell_id, cell, owner, name, version, spec, used in query(_IN_RANGE, values):
                count = without_secrets(msgspec.json.decode(spec))[1]
                if count and used:
                    self.done.add_left(f"job {cell}/{owner}/{name}, version {version}")
                elif count and self._dry_run:
                    self.done.values, self.done.specs = self.done.values + count, self.done.specs + 1
                elif count:
                    parts[cell_id, owner].append(pk)
            for (cell_id, owner), ids in parts.items():
                for begin in range(0, len(ids), AT_ONCE):
                    self._erase_specs(cell_id, owner, ids[begin : begin + AT_ONCE])

    def _erase_specs(self, cell_id: int, owner: str, ids: list[int]) -> None:
        with self._part(cell_id, owner) as counted:
            changed = []
            for pk, _, cell, _, name, version, spec, used in query(_OF_IDS, {"ids": ids, "tenant": self._tenant}):
                file, count = without_secrets(msgspec.json.decode(spec))
                if used:  # since it was found
                    self.done.add_left(f"job {cell}/{owner}/{name}, version {version}")
                    continue
                counted["values"], counted["specs"] = counted["values"] + count, counted["specs"] + 1
                # With the digest of the spec, a reader could check guesses of the value.
                changed.append(JobSpec(pk=pk, spec=file, digest=""))
            JobSpec.objects.bulk_update(changed, ["spec", "digest"])

    def templates(self) -> None:
        rows = JobTemplateVersion.objects.select_related("template__tenant", "template__cell")
        rows = rows.defer("template__content").order_by("id")
        if self._tenant:
            rows = rows.filter(template__tenant__name=self._tenant)
        parts: dict[tuple[int, str], list[int]] = defaultdict(list)
        for version in rows.iterator(AT_ONCE):
            row, count = version.template, _content_without_secrets(version.content)[1]
            if count and version.version == row.version:
                self.done.add_left(f"template {row.cell.name}/{row.tenant.name}/{row.name}")
            elif count and self._dry_run:
                self.done.values, self.done.templates = self.done.values + count, self.done.templates + 1
            elif count:
                parts[row.cell_id, row.tenant.name].append(version.pk)
        for (cell_id, owner), ids in parts.items():
            for begin in range(0, len(ids), AT_ONCE):
                with self._part(cell_id, owner) as counted:
                    changed = list(JobTemplateVersion.objects.filter(pk__in=ids[begin : begin + AT_ONCE]))
                    for version in changed:
                        version.content, count = _content_without_secrets(version.content)
                        counted["values"], counted["templates"] = counted["values"] + count, counted["templates"] + 1
                    JobTemplateVersion.objects.bulk_update(changed, ["content"])

    def workflows(self) -> None:
        """Erase values from ended workflows. A retry of a node that needs them fails."""
        rows = Workflow.objects.filter(**self._of).select_related("tenant", "cell").order_by("id")
        for row in rows.iterator(AT_ONCE):
            hidden = _hidden(row.parameters)
            count = len(hidden) + sum(_node_without_secrets(node, hidden) for node in _nodes(row))
            if not count:
                continue
            if row.ended_at is None:
                self.done.add_left(f"workflow {row.cell.name}/{row.tenant.name}/{row.name}")
            elif self._dry_run:
                self.done.values, self.done.workflows = self.done.values + count, self.done.workflows + 1
            else:
                self._erase_workflow(row, hidden)

    def _erase_workflow(self, row: Workflow, hidden: set[str]) -> None:
        """Erase values from the nodes of an ended workflow in parts, and then from its parameters."""
        after = 0
        while after >= 0:
            with self._part(row.cell_id, row.tenant.name) as counted:
                nodes = list(_nodes(row).filter(pk__gt=after)[:AT_ONCE]) if _has_ended(row) else []
                changed = []
                for node in nodes:
                    if count := _node_without_secrets(node, hidden):
                        counted["values"] += count
                        changed.append(node)
                WorkflowNode.objects.bulk_update(changed, ["template", "variables"])
                after = nodes[-1].pk if nodes else -1
        with self._part(row.cell_id, row.tenant.name) as counted:
            if not _has_ended(row):  # it was retried meanwhile
                return
            row.parameters = {name: ERASED if name in hidden else value for name, value in row.parameters.items()}
            row.digest = ""
            row.save(update_fields=["parameters", "digest"])
            counted["values"], counted["workflows"] = len(hidden), 1

    def cron_jobs(self) -> None:
        for row in CronJob.objects.filter(**self._of).select_related("tenant", "cell").order_by("id").iterator(AT_ONCE):
            if without_secrets(row.template)[1]:
                self.done.add_left(f"cron job {row.cell.name}/{row.tenant.name}/{row.name}")

    @contextmanager
    def _part(self, cell_id: int, owner: str) -> Iterator[dict[str, int]]:
        """Lock the row of a cell for the `with` block, and record what it has erased from job files of the tenant
        `owner`. Yield the numbers to record, as in `ErasedValues`.
        """
        counted = dict.fromkeys(("values", "specs", "templates", "workflows"), 0)
        with transaction.atomic():
            Cell.objects.select_for_update().get(pk=cell_id)
            yield counted
            if any(counted.values()):
                with records.write(self._principal) as entry:
                    entry.append("secret.env-erased", tenant=owner, **counted)
        for name, number in counted.items():
            setattr(self.done, name, getattr(self.done, name) + number)


def _content_without_secrets(content: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the content of a version of a template without values that look like secrets, also in the defaults and
    choices of its parameters, and their number.
    """
    job, count = without_secrets(content["job"])
    properties = {}
    for name, parameter in content["parameters"].get("properties", {}).items():
        found = [one for one in (parameter.get("default"), *parameter.get("enum", ())) if _is_secret(name, one)]
        count += len(found)
        shown = dict(parameter)
        if _is_secret(name, parameter.get("default")):
            shown["default"] = ERASED
        if "enum" in parameter:
            shown["enum"] = [ERASED if _is_secret(name, one) else one for one in parameter["enum"]]
        properties[name] = shown
    parameters = content["parameters"] | ({"properties": properties} if properties else {})
    return content | {"job": job, "parameters": parameters}, count


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and value != ERASED and looks_secret(name, value)


def _hidden(parameters: dict[str, str]) -> set[str]:
    """Return the names of the parameters of a workflow that look like secrets."""
    return {name for name, value in parameters.items() if _is_secret(name, value)}


def _nodes(workflow: Workflow) -> Any:
    return WorkflowNode.objects.filter(workflow=workflow, branch=-1).only("id", "template", "variables").order_by("id")


def _node_without_secrets(node: WorkflowNode, hidden: set[str]) -> int:
    """Erase values from the job of a node, and from the variables that its branches share, in memory. Return their
    number. `hidden`: names of parameters of the workflow, which these variables contain.
    """
    node.template, count = without_secrets(node.template)
    gone = {name for name, value in node.variables.items() if name in hidden and value != ERASED}
    if gone:
        node.variables = {name: ERASED if name in gone else value for name, value in node.variables.items()}
    return count + len(gone)


def _has_ended(row: Workflow) -> bool:
    return Workflow.objects.filter(pk=row.pk, ended_at__isnull=False).exists()
