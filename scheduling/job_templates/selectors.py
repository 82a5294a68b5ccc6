"""Reads templates. The functions return only rows that the caller may see."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import of_tenants
from scheduling.models import Cell, JobTemplate
from scheduling.spec.masking import masked


def templates_visible(principal: Principal, cell: Cell, *, tenant: str = "") -> QuerySet[JobTemplate]:
    """Return the templates of a cell."""
    rows = of_tenants(JobTemplate.objects.select_related("cell", "tenant"), principal, cell)
    return (rows.filter(tenant__name=tenant) if tenant else rows).order_by("id")


def template_named(principal: Principal, cell: Cell, tenant: str, name: str) -> JobTemplate:
    """Return the template of this name. Raises `NotFound` if it does not exist or the caller may not see it."""
    row = templates_visible(principal, cell, tenant=tenant).filter(name=name).first()
    if row is None:
        raise NotFound("template", name)
    return row


def job_shown(principal: Principal, template: JobTemplate) -> dict[str, Any]:
    """Return the job of a template. Values that look secret are masked if the caller may not change the template."""
    writes = may(principal, Action.JOB_WRITE, tenant=template.tenant.name, cell=template.cell.name)
    job: dict[str, Any] = template.content["job"]
    return job if writes else masked(job)
