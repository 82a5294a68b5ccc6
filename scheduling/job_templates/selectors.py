"""Reads templates. The functions return only rows that the caller may see."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.label_filters import with_labels
from scheduling.access.selectors import of_tenants
from scheduling.models import Cell, JobTemplate, JobTemplateVersion
from scheduling.spec.masking import MASK, looks_secret, masked


def templates_visible(
    principal: Principal, cell: Cell, *, tenant: str = "", selector: str = ""
) -> QuerySet[JobTemplate]:
    """Return the templates of a cell, without their contents. `selector`: a label selector."""
    rows = of_tenants(JobTemplate.objects.select_related("cell", "tenant").defer("content"), principal, cell)
    if tenant:
        rows = rows.filter(tenant__name=tenant)
    return with_labels(rows, (), selector).order_by("id")


def template_named(principal: Principal, cell: Cell, tenant: str, name: str) -> JobTemplate:
    """Return the template of this name. Raises `NotFound` if it does not exist or the caller may not see it."""
    row = templates_visible(principal, cell, tenant=tenant).filter(name=name).first()
    if row is None:
        raise NotFound("template", name)
    return row


def at_version(template: JobTemplate, number: int) -> JobTemplate:
    """Return the template with the content of an earlier version. Raises `NotFound` if the version is not kept."""
    row = JobTemplateVersion.objects.filter(template=template, version=number).first()
    if row is None:
        raise NotFound("version", str(number))
    template.content, template.version = row.content, row.version
    template.description, template.labels = row.content["description"], row.content.get("labels", {})
    return template


def content_shown(principal: Principal, template: JobTemplate) -> dict[str, Any]:
    """Return the content of a template. Values that look secret, also those of parameters, are masked if the caller may
    not change the template.
    """
    content: dict[str, Any] = template.content
    if may(principal, Action.JOB_WRITE, tenant=template.tenant.name, cell=template.cell.name):
        return content
    return content_masked(content)


def content_masked(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a template in which masks replace values that look secret."""
    parameters = content["parameters"]
    properties = {name: _masked(name, one) for name, one in parameters["properties"].items()}
    return content | {"job": masked(content["job"]), "parameters": parameters | {"properties": properties}}


def _masked(name: str, parameter: dict[str, Any]) -> dict[str, Any]:
    def shown(value: Any) -> Any:
        return MASK if isinstance(value, str) and looks_secret(name, value) else value

    masks = {"default": shown(parameter["default"])} if "default" in parameter else {}
    return parameter | masks | ({"enum": [shown(one) for one in parameter["enum"]]} if "enum" in parameter else {})
