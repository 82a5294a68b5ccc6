"""The page that a search for a name opens: that of the only job, task, service or machine with this name."""

from __future__ import annotations

from django.urls import reverse

from naming.table.names import JobName, MachineName, ServiceName, TaskName
from portal.sigma.name_parsing import PartialName, ServicePart
from portal.sigma.reads.jobs import operated_jobs_visible
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Principal


def page_of_name(principal: Principal, sought: object) -> str | None:
    """Return the URL of the page of the job, task, service or machine `sought`. Return None if several jobs or services
    match. Raises `NotFound` if none matches.
    """
    match sought:
        case PartialName(tenant="", job=_, index=None):
            return None
        case PartialName(tenant=tenant, job=job, index=index):
            rows = operated_jobs_visible(principal).exclude(state="dead").filter(name=job)
            rows = rows.filter(tenant__name=tenant) if tenant else rows
            places = list(rows.values_list("cell__name", "tenant__name")[:2])
            if not places:
                raise NotFound("job", f"{tenant}/{job}" if tenant else job)
            if len(places) > 1:
                return None
            return _job_page(JobName(*places[0], job), index)
        case ServicePart(tenant=tenant, service=service):
            rows = operated_jobs_visible(principal).exclude(state="dead").filter(tenant__name=tenant, kind="job")
            cells = set(rows.filter(labels__service=service).values_list("cell__name", flat=True)[:1000])
            if not cells:
                raise NotFound("service", f"{tenant}/service/{service}")
            return reverse("sigma:service", args=[*cells, tenant, service]) if len(cells) == 1 else None
        case JobName():
            return _job_page(sought, None)
        case TaskName():
            return _job_page(sought.of_job, sought.index)
        case ServiceName(cell=cell, tenant=tenant, service=service):
            return reverse("sigma:service", args=[cell, tenant, service])
        case MachineName(cell=cell, host=host):
            return reverse("sigma:machine", args=[cell, host])
    raise AssertionError(sought)


def _job_page(name: JobName, index: int | None) -> str:
    if index is None:
        return reverse("sigma:job", args=[name.cell, name.tenant, name.job])
    return reverse("sigma:task", args=[name.cell, name.tenant, name.job, index])
