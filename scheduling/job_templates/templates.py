"""Changes of templates, and dispatches, which submit a job from a template with arguments. Each change is one
transaction that locks the cell's row. A dispatch takes a number, and then submits the job as any caller does.

    template file ─► template_apply ─► JobTemplate, version N ─ arguments ─► template_dispatch ─► an ordinary job
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from quota.models import Tenant
from quota.vocabulary.errors import Conflict, NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, Scope
from scheduling.access.tenant_permission import own_tenant, require_tenant
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import JobState
from scheduling.job_templates import template_spec
from scheduling.job_templates.template_spec import TemplateSpecification
from scheduling.jobs import job_name_rules
from scheduling.jobs.submission import revisions
from scheduling.jobs.submission.outcomes import Submission
from scheduling.jobs.submit_and_kill import job_submit, spec_for, spec_limits
from scheduling.journal import journal
from scheduling.models import Cell, Job, JobTemplate, JobTemplateVersion

NEW = "new"
KEPT_VERSIONS = 20
_UID_DIGITS = 12
# Columns that an apply writes.
_APPLIED = ("description", "labels", "content", "digest", "version", "changed_by", "changed_at")
# How often a dispatch takes another number, if a job with its name was submitted at the same moment.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """The result of an apply. `outcome`: submitted, updated or unchanged. `template`: as it is now."""

    outcome: str
    template: JobTemplate


def template_spec_for(
    *, principal: Principal, cell: Cell, file: bytes | Mapping[str, Any], tenant: str = "", name: str = ""
) -> TemplateSpecification:
    """Read a job file of kind `Template` for this cell, tenant and name. Raises `Rejected`, which names the wrong
    field.
    """
    read = template_spec.parse(file, limits=spec_limits(cell))
    job_name_rules.check_same(cell=(read.cell, cell.name), tenant=(read.tenant, tenant), name=(read.name, name))
    return read.at(cell=cell.name, tenant=read.tenant or tenant or own_tenant(principal))


def template_apply(
    *, principal: Principal, cell: Cell, spec: TemplateSpecification, if_revision: str = ""
) -> TemplateChange:
    """Create the template, or change it to `spec`. Idempotent.

    `if_revision`: the revision that the template must have (`revision_of`). Raises `Rejected` if the tenant has
    too many templates or the revision is another one, and `NotFound` if the caller may not see the tenant.
    """
    require_tenant(principal, Action.JOB_WRITE, spec.tenant, cell.name)
    tenant = Tenant.objects.filter(name=spec.tenant).first()
    if tenant is None:
        raise NotFound("tenant", spec.tenant)
    digest = spec.digest()
    with journal.write(cell.pk, principal) as entry:
        row = JobTemplate.objects.filter(cell=cell, tenant=tenant, name=spec.name).first()
        _check_revision(row, if_revision, spec.name)
        if row is not None and row.digest == digest:
            return TemplateChange("unchanged", row)
        outcome = "submitted" if row is None else "updated"
        if row is None:
            _check_number(cell, tenant, spec.name)
            row = JobTemplate(cell=cell, tenant=tenant, name=spec.name, version=0, created_at=entry.time)
        row.content, row.digest, row.version = spec.stored, digest, row.version + 1
        row.description, row.labels = spec.description, spec.labels
        row.changed_by, row.changed_at = principal.name, entry.time
        # A dispatch may take a number at the same time.
        row.save(update_fields=None if row.pk is None else _APPLIED)
        JobTemplateVersion.objects.create(
            template=row, version=row.version, content=row.content, actor=principal.name, created_at=entry.time
        )
        JobTemplateVersion.objects.filter(template=row, version__lte=row.version - KEPT_VERSIONS).delete()
        entry.append(events.TemplateSet(template_id=row.pk, tenant=tenant.name, name=row.name, version=row.version))
    return TemplateChange(outcome, row)


def template_delete(*, principal: Principal, template: JobTemplate, reason: str = "") -> None:
    """Delete a template with its versions. The jobs that were submitted from it stay."""
    require_tenant(principal, Action.JOB_WRITE, template.tenant.name, template.cell.name)
    with journal.write(template.cell_id, principal) as entry:
        row = _read_again(template)
        entry.append(
            events.TemplateDeleted(template_id=row.pk, tenant=template.tenant.name, name=row.name, reason=reason)
        )
        row.delete()


def templates_remove(entry: journal.JournalEntry, cell: Cell, reason: str) -> None:
    """Delete all templates of a cell, in the caller's transaction."""
    rows = list(JobTemplate.objects.filter(cell=cell).select_related("tenant").defer("content").order_by("id"))
    for row in rows:
        entry.append(events.TemplateDeleted(template_id=row.pk, tenant=row.tenant.name, name=row.name, reason=reason))
    JobTemplateVersion.objects.filter(template__cell=cell).delete()
    JobTemplate.objects.filter(cell=cell).delete()


def template_dispatch(
    *,
    principal: Principal,
    template: JobTemplate,
    given: Mapping[str, Any],
    suffix: str = "",
    key: str = "",
    if_revision: str = "",
    dry_run: bool = False,
) -> Submission:
    """Submit a job from the newest version of a template. It is an ordinary job with the permissions of the caller.

    `given`: the arguments by name. `suffix`: the job is named NAME-SUFFIX; by default, the suffix is the next number
    that no live job has. A number is used at most once; a rejected dispatch uses one up. `key`: idempotency key; a
    request with a known key returns the job of the first one, whatever the arguments. `if_revision`: the revision that
    the template must have. Raises `Rejected`, which names each wrong argument, and the errors of `job_submit`.
    """
    require_tenant(principal, Action.JOB_WRITE, template.tenant.name, template.cell.name)
    row = _read_again(template)
    token = principal.token if Scope.DISPATCH in principal.scopes else ""
    if known := _of_key(row, key, token):
        return known
    _check_revision(row, if_revision, row.name)
    for attempt in range(_TRIES):
        number = "" if suffix else str(_next_number(row, take=not dry_run))
        file = template_spec.dispatched(row.name, row.content, given, suffix or number, token=token)
        try:
            job_spec = spec_for(principal=principal, cell=template.cell, file=file, tenant=template.tenant.name)
            done = job_submit(principal=principal, cell=template.cell, job_spec=job_spec, key=key, dry_run=dry_run)
        except Rejected as problem:
            if problem.code == "key-used" and (known := _of_key(row, key, token)):  # a repetition at the same moment
                return known
            if suffix or problem.code != "job-exists" or attempt == _TRIES - 1:
                raise _named(problem, row) from None
        else:
            if suffix or done.outcome == "submitted":
                return done
    raise Conflict("job-exists", f"cannot find a free name for a job of template {row.name}; give a suffix")


def _next_number(row: JobTemplate, *, take: bool) -> int:
    """Return the next number whose name no live job has. `take`: no other dispatch gets this number."""
    while True:
        last = JobTemplate.objects.values_list("last_number", flat=True).get(pk=row.pk)
        live = Job.objects.filter(cell_id=row.cell_id, tenant_id=row.tenant_id).exclude(state=JobState.DEAD.value)
        names = set(live.filter(name__startswith=f"{row.name}-").values_list("name", flat=True))
        number = next(one for one in itertools.count(last + 1) if f"{row.name}-{one}" not in names)
        rows = JobTemplate.objects.filter(pk=row.pk, last_number=last)
        if not take or rows.update(last_number=number):
            return number
        _read_again(row)  # another dispatch has taken a number, or the template was deleted


def _of_key(row: JobTemplate, key: str, token: str) -> Submission | None:
    """Return the submission that an earlier request with this key has made from this template, or None if the key is
    new. `token`: the key of a token that may only dispatch, or "". Raises `Conflict` if the key was used for something
    else, or if `token` has not dispatched the job. Such a token does not learn the names of other jobs.
    """
    jobs = Job.objects.select_related("cell", "tenant").filter(cell_id=row.cell_id, tenant_id=row.tenant_id, key=key)
    job = jobs.first() if key else None
    if job is None:
        return None
    own = not token or job.labels.get(template_spec.DISPATCHED_BY) == token
    if own and job.labels.get(template_spec.LABEL) == row.name:
        return Submission(job.name, job.tenant.name, "submitted", job=job)
    named = f", {job.name}" if own else ""
    raise Conflict(
        "key-used",
        f"Idempotency-Key: tenant {job.tenant.name} has already used this key for another job{named}; use a new"
        " key for each dispatch",
        fields={"Idempotency-Key": "used for another job"},
    )


def _named(problem: Rejected, row: JobTemplate) -> Rejected:
    """Return the rejection of a job file with the template and version that it comes from. Fields of the job are those
    of the template's `job`.
    """
    if problem.code != "invalid-spec":
        return problem
    own = ("parameters", "suffix")
    fields = {path if path.startswith(own) else f"job.{path}": text for path, text in problem.fields.items()}
    detail = f"template {row.name}, version {row.version}: {problem.detail}"
    return Rejected(problem.code, detail, fields=fields, figures=problem.figures, status=problem.status)


def revision_of(template: JobTemplate | None) -> str:
    """Return the revision of a template, or "new" if there is none. It changes with each version."""
    return NEW if template is None else f"{template.uid.hex[:_UID_DIGITS]}-{template.version}"


def _read_again(template: JobTemplate) -> JobTemplate:
    row = JobTemplate.objects.filter(pk=template.pk).first()
    if row is None:
        raise NotFound("template", template.name)
    return row


def _check_revision(row: JobTemplate | None, wanted: str, name: str) -> None:
    found = revision_of(row)
    now = "no template has this name now" if row is None else f"the template has revision {found} now"
    if problem := revisions.refusal(f"template {name}", wanted, found, now):
        raise problem


def _check_number(cell: Cell, tenant: Tenant, name: str) -> None:
    found, most = JobTemplate.objects.filter(cell=cell, tenant=tenant).count(), settings.BORG_MAX_TEMPLATES_PER_TENANT
    if found >= most:
        raise Rejected(
            "too-many-templates",
            f"cannot create template {name}: tenant {tenant.name} has {found} templates in cell {cell.name}, and at"
            f" most {most} are possible; delete some, or ask an SRE for a higher limit",
            figures={"templates": found, "most": most},
            status=403,
        )
