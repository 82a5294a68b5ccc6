"""Links that open the submit form with the job file of a job.

The page of a job and the submit form share these URL parameters: `from=CELL/TENANT/JOB`, and optionally `uid` (of a job
that has ended) and `again=yes` (the new job has the same name, and not a new one).
"""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse

from scheduling.models import Job


def submit_link(job: Job, *, again: bool = False) -> str:
    """Return the address of the submit form with the job file of `job`. `again`: whether the job keeps its name. If
    not, the form suggests a name that no live job has at this moment.
    """
    given = {"from": f"{job.cell.name}/{job.tenant.name}/{job.name}", "uid": str(job.uid)}
    return f"{reverse('sigma:submit')}?{urlencode(given | ({'again': 'yes'} if again else {}), safe='/')}"
