"""Links that open the submit form with the job file of a job, and the text that such a link asks for.

The URL parameters are the interface between the page of a job and the submit form: `from=CELL/TENANT/JOB`, and
optionally `uid` (of a job that has ended) and `again=yes` (the new job has the same name, and not a new one).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.sigma.jobs.specs.spec_changes import job_file_text
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import job_current_spec, spec_shown
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Job

LONGEST_NAME = 63


def submit_link(job: Job, *, again: bool = False) -> str:
    """Return the address of the submit form with the job file of `job`. `again`: whether the job keeps its name. If
    not, the form suggests a name that no live job has at this moment.
    """
    given = {"from": f"{job.cell.name}/{job.tenant.name}/{job.name}", "uid": str(job.uid)}
    return f"{reverse('sigma:submit')}?{urlencode(given | ({'again': 'yes'} if again else {}), safe='/')}"


def new_name(job: Job) -> str:
    """Return a name like that of `job` which no live job of its tenant in its cell has, such as `web-2`. Makes one
    query.
    """
    base = re.sub(r"-\d+$", "", job.name)[: LONGEST_NAME - 7]
    same = Job.objects.filter(cell_id=job.cell_id, tenant_id=job.tenant_id, name__startswith=f"{base}-")
    taken = set(same.exclude(state=JobState.DEAD.value).values_list("name", flat=True)) | {job.name}
    number = 2
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"


def prefilled_form(principal: Principal, given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the submit form's fields `text` (YAML), `cell` and `tenant` for the URL parameters `given`.
    Return {} if they name no job. Values that the caller may not see are masked.

    Raises `Rejected` if `from` is not the full name of a job, and `NotFound` if there is no such job, or the caller
    may not see it.
    """
    source = given.get("from", "")
    if not source:
        return {}
    parts = source.split("/")
    if len(parts) != 3:
        raise invalid("from", _("%r is not the full name of a job; write cell/tenant/job") % source[:200])
    job = job_named(principal, *parts, uid=given.get("uid", ""))
    file = {**spec_shown(principal, job, job_current_spec(job)), "cell": job.cell.name, "tenant": job.tenant.name}
    if given.get("again") != "yes":
        file["name"] = new_name(job)
    return {"text": job_file_text(file), "cell": job.cell.name, "tenant": job.tenant.name}
