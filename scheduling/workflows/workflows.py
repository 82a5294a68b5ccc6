"""Changes of workflows by people: submit, pause, resume and cancel. Each is one transaction that locks the cell's row,
and has an event in the journal. `retrying` has the retry, and `turns` does everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import Count, Q

from quota.models import Tenant
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import own_tenant, require_tenant
from scheduling.brakes import confirmation
from scheduling.config_files import known_files, spec_uses
from scheduling.core.vocabulary import events
from scheduling.jobs import job_name_rules
from scheduling.jobs.submit_and_kill import spec_limits
from scheduling.journal import copy_rows, journal
from scheduling.journal.journal import JournalEntry
from scheduling.models import Cell, Job, Workflow, WorkflowNode, WorkflowReader
from scheduling.packages import pinning
from scheduling.secrets import known_secrets, spec_rules
from scheduling.spec.field_errors import rejection
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.privileges import privilege_refusal
from scheduling.workflows import retention, workflow_parser
from scheduling.workflows.graph_rules import NodeState
from scheduling.workflows.node_rows import counters_recompute
from scheduling.workflows.workflow_spec import Node, WorkflowSpecification, job_name

_MOST_PROBLEMS = 20  # with secrets, after which the other nodes are not checked


@dataclass(frozen=True, slots=True)
class WorkflowChange:
    """The result of a submission. `outcome`: submitted, or unchanged. `workflow`: None if an equal workflow has run
    before.
    """

    outcome: str
    workflow: Workflow | None


def workflow_spec_for(
    *, principal: Principal, cell: Cell, file: bytes | Mapping[str, Any], tenant: str = "", name: str = ""
) -> WorkflowSpecification:
    """Read a job file of kind `Workflow` for this cell, tenant and name. Raises `Rejected`, which names the wrong
    field.
    """
    read = workflow_parser.parse(file, limits=spec_limits(cell))
    job_name_rules.check_same(cell=(read.cell, cell.name), tenant=(read.tenant, tenant), name=(read.name, name))
    spec = read.at(cell=cell.name, tenant=read.tenant or tenant or own_tenant(principal))
    _check_names(spec)
    return spec


def workflow_submit(
    *, principal: Principal, cell: Cell, spec: WorkflowSpecification, key: str = "", if_changed: bool = False
) -> WorkflowChange:
    """Submit a workflow. The caller becomes its owner: its jobs have the permissions of the caller. If an equal
    workflow with this name is live, nothing changes.

    `if_changed`: nothing changes either if the last submission of this name with `if_changed` had an equal file, also
    if its workflow has ended or was deleted. `key`: an idempotency key; if an earlier submission had it, its workflow
    is returned, also if it has ended. Raises `Conflict` if the key belongs to another workflow, or if a different one
    is live, `Rejected` if a limit is exceeded, a package does not exist, a job may not use one of its secrets, one of
    its config files does not exist, or a value in its `env` looks like a secret, and `Forbidden` if the caller may not
    submit the jobs. Ended workflows of the same name stay in the history.
    """
    _check_caller(principal, spec)
    tenant = Tenant.objects.filter(name=spec.tenant).first()
    if tenant is None:
        raise NotFound("tenant", spec.tenant)
    _check_packages(cell, tenant, spec)
    digest = spec.digest()
    plain = [spec_rules.plain_secrets(job) for job in spec.jobs]
    with journal.write(cell.pk, principal) as entry:
        if key and (known := Workflow.objects.filter(cell=cell, tenant=tenant, key=key).first()) is not None:
            if known.name == spec.name and known.digest in ("", digest):  # "": it has lost values
                return WorkflowChange("submitted", known)
            detail = f"Idempotency-Key: tenant {spec.tenant} has used this key for another workflow, {known.name}"
            raise Conflict("key-used", f"{detail}; use a new key", fields={"Idempotency-Key": "used before"})
        live = Workflow.objects.filter(cell=cell, tenant=tenant, name=spec.name, ended_at=None).first()
        if live is not None:
            if live.digest == digest:
                if if_changed:  # an equal file must not run again after the end of this workflow either
                    retention.applied_is_new(cell, tenant, spec.name, digest, now=entry.time)
                return WorkflowChange("unchanged", live)
            raise is_live(spec.name)
        if if_changed and not retention.applied_is_new(cell, tenant, spec.name, digest, now=entry.time):
            return WorkflowChange("unchanged", None)
        check_number(cell, tenant, spec.name)
        _check_secrets(cell, spec, plain)
        reader_start(cell.pk, entry)
        row = Workflow.objects.create(
            cell=cell,
            tenant=tenant,
            name=spec.name,
            labels=spec.labels,
            parameters=spec.parameters,
            secrets=_secrets_of(spec),
            configs=spec_uses.versions_of(list(spec.jobs)),
            digest=digest,
            key=key,
            parallel=spec.parallel,
            keep_s=spec.keep_s,
            nodes=len(spec.nodes),
            nodes_left=len(spec.nodes),
            ready=sum(not node.after for node in spec.nodes.values()),
            owner_id=principal.user_id,
            owner_name=principal.name,
            created_at=entry.time,
            changed_at=entry.time,
        )
        copy_rows.rows(WorkflowNode, _node_rows(row, spec.nodes))
        _append_set(entry, row, "submitted")
        return WorkflowChange("submitted", row)


def workflow_pause(*, principal: Principal, workflow: Workflow) -> Workflow:
    """Pause a workflow: no further job is submitted. Live jobs go on. Idempotent."""
    with locked(principal, workflow) as (entry, row):
        require_state(row, "pause", Workflow.RUNNING, Workflow.PAUSED)
        if row.state == Workflow.RUNNING:
            store(entry, row, Workflow.PAUSED, "paused")
    return row


def workflow_resume(*, principal: Principal, workflow: Workflow) -> Workflow:
    """Resume a paused workflow. Idempotent."""
    with locked(principal, workflow) as (entry, row):
        require_state(row, "resume", Workflow.RUNNING, Workflow.PAUSED)
        if row.state == Workflow.PAUSED:
            row.held_until, row.held_s, row.asks = None, 0.0, 0
            store(entry, row, Workflow.RUNNING, "resumed")
    return row


def workflow_cancel(*, principal: Principal, workflow: Workflow, confirm: int | None = None) -> Workflow:
    """Cancel a workflow: no further job is submitted, and its live jobs are killed, at most 5,000 tasks per
    transaction. Idempotent.

    `confirm`: the number of running tasks that this stops. If this number is large and `confirm` is missing or lower,
    raises `Conflict` with code `confirm`. Raises `Conflict` if the workflow has ended.
    """
    with locked(principal, workflow) as (entry, row):
        require_state(row, "cancel", *Workflow.LIVE)
        if row.state == Workflow.CANCELLING:
            return row
        confirmation.require(row.cell, tasks_running(row), confirm, what=f"cancel workflow {row.name}")
        # A node with branches has no job, and ends here. Its live branches end with their jobs.
        WorkflowNode.objects.filter(
            Q(state__in=[NodeState.WAITING.value, NodeState.READY.value])
            | Q(state=NodeState.RUNNING.value, job_id__isnull=True),
            workflow=row,
        ).update(state=NodeState.CANCELLED.value, ended_at=entry.time, code="cancelled", detail="")
        counters_recompute([row.pk])
        row.refresh_from_db()
        row.held_until = None
        store(entry, row, Workflow.CANCELLING, "cancelled")
    return row


def reader_start(cell_id: int, entry: JournalEntry) -> None:
    """Begin to follow the journal at this revision, unless the cell has live workflows, and so follows it already."""
    live = Workflow.objects.filter(cell_id=cell_id, ended_at=None).exists()
    if live and WorkflowReader.objects.filter(cell_id=cell_id).exists():
        return
    WorkflowReader.objects.update_or_create(
        cell_id=cell_id, defaults={"revision": entry.revision, "turned_at": entry.time}
    )


def tasks_running(workflow: Workflow) -> int:
    """Return how many running tasks the live jobs of a workflow have."""
    jobs = WorkflowNode.objects.filter(workflow=workflow, state=NodeState.RUNNING.value, job_id__isnull=False)
    numbers = Job.objects.filter(pk__in=jobs.order_by().values("job_id")).order_by().values_list("tasks_running")
    return sum(number for (number,) in numbers)


def _check_names(spec: WorkflowSpecification) -> None:
    """Check that the DNS names of all tasks are not too long. Raises `Rejected`, which names the node."""
    for name in spec.nodes:
        try:
            job_name_rules.check_lengths(_longest(spec, name))
        except Rejected as problem:
            raise rejection({f"nodes.{name}.job.{path}": text for path, text in problem.fields.items()}) from None


def _longest(spec: WorkflowSpecification, name: str) -> JobSpecification:
    """Return the job of a node with the longest name that it can have."""
    node = spec.nodes[name]
    longest = job_name(spec.name, name, None if node.for_each is None else node.jobs - 1)
    return msgspec.structs.replace(spec.jobs[node.job], name=longest, cell=spec.cell, tenant=spec.tenant)


def _check_secrets(cell: Cell, spec: WorkflowSpecification, plain: Sequence[Mapping[str, str]]) -> None:
    """Check that no value in `env` looks like a secret, that the secrets of all jobs exist and are granted to the jobs,
    and that their config files exist. `plain`: the problems of values in `env`, by job. Raises `Rejected`, which names
    the nodes. Makes at most four queries. No secret and no config file that a job uses changes until the end of the
    transaction.
    """
    using = [spec_rules.uses_any(job) or spec_uses.uses_any(job) for job in spec.jobs]
    jobs = {name: _longest(spec, name) for name, node in spec.nodes.items() if using[node.job]}
    of_secrets = known_secrets.refusals(cell.name, list(jobs.values()))
    of_files = known_files.refusals(list(jobs.values()))
    refusals = dict(zip(jobs, zip(of_secrets, of_files, strict=True), strict=True))
    problems: dict[str, str] = {}
    for name, node in spec.nodes.items():
        found = dict(plain[node.job])
        for refusal in filter(None, refusals.get(name, ())):
            shown = job_name(spec.name, name) if node.for_each is None else f"{job_name(spec.name, name)}-*"
            found |= {path: text.replace(jobs[name].name, shown) for path, text in refusal.fields.items()}
        problems |= {f"nodes.{name}.job.{path}": text for path, text in found.items()}
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise rejection(problems)


def _secrets_of(spec: WorkflowSpecification) -> dict[str, list[str]]:
    """Return the secrets that the jobs use, for `Workflow.secrets`."""
    uses = {(use.name, str(use.version)) for job in spec.jobs for _, use in spec_rules.uses_of(job)}
    found: dict[str, list[str]] = {}
    for name, version in sorted(uses):
        found.setdefault(name, []).append(version)
    return found


def _check_packages(cell: Cell, tenant: Tenant, spec: WorkflowSpecification) -> None:
    """Check that the packages of all jobs exist now. Raises `Rejected`, which names the node. Makes one query."""
    pins = pinning.pin(cell, [(tenant.pk, job) for job in spec.jobs])
    problems: dict[str, str] = {}
    for name, node in spec.nodes.items():
        if isinstance(pin := pins[node.job], Rejected):
            fields = pin.fields or {"task.packages": pin.detail}
            problems |= {f"nodes.{name}.job.{path}": text for path, text in fields.items()}
    if problems:
        raise rejection(problems)


def _check_caller(principal: Principal, spec: WorkflowSpecification) -> None:
    require_tenant(principal, Action.JOB_WRITE, spec.tenant, spec.cell)
    check_user(principal, spec.name)
    for job in spec.jobs:
        if refusal := privilege_refusal(principal, spec.cell, job):
            raise refusal


def check_user(principal: Principal, name: str) -> None:
    if principal.user_id is None:
        detail = f"{principal.name} cannot own workflow {name}, because it is not a user; send the request as a user"
        raise Forbidden("workflow.own", detail)


def check_number(cell: Cell, tenant: Tenant, name: str) -> None:
    live = Workflow.objects.filter(cell=cell, ended_at=None)
    numbers = live.aggregate(all=Count("pk"), own=Count("pk", filter=Q(tenant=tenant)))
    for found, most, who in (
        (numbers["own"], settings.BORG_MAX_WORKFLOWS_PER_TENANT, f"tenant {tenant.name}"),
        (numbers["all"], settings.BORG_MAX_WORKFLOWS_PER_CELL, "all tenants together"),
    ):
        if found >= most:
            raise Rejected(
                "too-many-workflows",
                f"cannot start workflow {name}: cell {cell.name} has {found} live workflows of {who}, and at most"
                f" {most} are possible; wait until some have ended, or ask an SRE for a higher limit",
                figures={"workflows": found, "most": most},
                status=403,
            )


def is_live(name: str) -> Conflict:
    detail = (
        f"workflow {name} is live already, and a live workflow cannot be changed; cancel it with `borgctl workflow"
        f" cancel {name}`, or choose another name"
    )
    return Conflict("workflow-exists", detail)


def _node_rows(row: Workflow, nodes: Mapping[str, Node]) -> list[WorkflowNode]:
    following: dict[str, dict[str, str]] = {name: {} for name in nodes}
    for name, node in nodes.items():
        for before, condition in node.after.items():
            following[before][name] = condition
    return [
        WorkflowNode(
            workflow_id=row.pk,
            cell_id=row.cell_id,
            name=name,
            template=node.template,
            tasks=node.tasks if node.for_each is None else node.jobs,
            size=node.size,
            rules=msgspec.to_builtins({"when": node.when, "for_each": node.for_each}),
            after=node.after,
            next=following[name],
            layer=node.layer,
            state=(NodeState.WAITING if node.after else NodeState.READY).value,
            unmet=len(node.after),
            retries=node.retries,
            retries_left=node.retries,
        )
        for name, node in nodes.items()
    ]


@contextmanager
def locked(principal: Principal, workflow: Workflow) -> Iterator[tuple[JournalEntry, Workflow]]:
    """Check the permission, lock the cell's row, and read the workflow again."""
    require_tenant(principal, Action.JOB_WRITE, workflow.tenant.name, workflow.cell.name)
    with journal.write(workflow.cell_id, principal) as entry:
        # Retention, which deletes ended workflows, locks only the row of the workflow.
        rows = Workflow.objects.select_related("tenant", "cell").select_for_update(of=("self",))
        row = rows.filter(pk=workflow.pk).first()
        if row is None:
            raise NotFound("workflow", workflow.name)
        yield entry, row


def require_state(row: Workflow, verb: str, *allowed: str) -> None:
    if row.state in allowed:
        return
    cures = {
        "retry": "only failed and cancelled workflows can be retried; submit the file again to run all nodes",
        "cancel": "only workflows that have not ended can be cancelled",
    }
    cure = cures.get(verb, "only running and paused workflows can be paused and resumed")
    raise Conflict("workflow-state", f"cannot {verb} workflow {row.name}: its state is {row.state}; {cure}")


def store(entry: JournalEntry, row: Workflow, state: str, change: str) -> None:
    row.state, row.changed_at = state, entry.time
    row.save(
        update_fields=(
            "state",
            "changed_at",
            "ended_at",
            "held_until",
            "held_s",
            "asks",
            "detail",
            "owner",
            "owner_name",
        )
    )
    _append_set(entry, row, change)


def _append_set(entry: JournalEntry, row: Workflow, change: str) -> None:
    entry.append(
        events.WorkflowSet(
            workflow_id=row.pk, tenant=row.tenant.name, name=row.name, change=change, state=row.state, nodes=row.nodes
        )
    )
