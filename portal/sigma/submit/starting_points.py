"""What a new job can start from: an example, or the job file of another job."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.cli.origin_labels import without_origin
from portal.sigma.jobs.specs.spec_changes import job_file_text
from portal.sigma.reads.jobs import job_named, jobs_visible
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Job

_LONGEST_NAME = 63


class Example(NamedTuple):
    """An example of a job file."""

    title: str | Promise
    text: str


EXAMPLES = {
    "web": Example(
        gettext_lazy("a web server"),
        """\
name: hello
tasks: 3
priority: production
task:
  command: [python3, -m, http.server, $(port.http)]
  limit: {cpu: 100m, ram: 64Mi, disk: 100Mi}
  ports: [http]
  health: {http: /, port: http}
""",
    ),
    "batch": Example(
        gettext_lazy("a batch job that ends"),
        """\
name: count
tasks: 10
task:
  command: [python3, -c, 'print(sum(range(1_000_000)))']
  limit: {cpu: 100m, ram: 32Mi, disk: 10Mi}
""",
    ),
    "array": Example(
        gettext_lazy("a hundred tasks, ten at a time"),
        """\
name: squares
tasks: 100
max_running: 10
task:
  command: [python3, -c, print($(index) ** 2)]
  limit: {cpu: 50m, ram: 32Mi, disk: 10Mi}
""",
    ),
}


def example_named(name: str) -> str:
    """Return the job file of an example. Raises `NotFound` if there is no such example."""
    if name not in EXAMPLES:
        raise NotFound("example", name[:40])
    return EXAMPLES[name].text


def copy_for_cell(principal: Principal, name: str, cell: str) -> str:
    """Return the job file of the job `cell/tenant/job` for another cell, as YAML. Values that the caller may not see
    are masked. Raises `NotFound` if there is no such job, or the caller may not see it.
    """
    return job_file_text({**without_origin(_file(principal, _job(principal, "copy", name))), "cell": cell})


def copied_job(principal: Principal, name: str, *, uid: str = "", again: bool = False) -> tuple[Job, str]:
    """Return the job `cell/tenant/job`, and its job file as YAML under a name that no live job of its tenant in its
    cell has, or under its own name with `again`. `uid`: the UID of the job, if another job had the same name. Raises
    like `copy_for_cell`.
    """
    job = _job(principal, "from", name, uid=uid)
    file = without_origin(_file(principal, job), same_name=again) | {"cell": job.cell.name, "tenant": job.tenant.name}
    if again:
        return job, job_file_text(file)
    taken = set(
        jobs_visible(principal)
        .filter(cell=job.cell, tenant=job.tenant)
        .exclude(state=JobState.DEAD.value)
        .order_by()
        .values_list("name", flat=True)
    )
    return job, job_file_text({**file, "name": free_name(job.name, taken)})


def free_name(name: str, taken: set[str]) -> str:
    """Return the name of a copy: `web-2` for `web`, and `web-3` for `web-2`, but none of the names `taken`."""
    match = re.fullmatch(r"(.*?)-([0-9]{1,4})", name)
    stem, number = (match[1], int(match[2])) if match else (name, 1)
    while True:
        number += 1
        end = f"-{number}"
        found = stem[: _LONGEST_NAME - len(end)].rstrip("-") + end
        if found not in taken:
            return found


def _job(principal: Principal, field: str, name: str, *, uid: str = "") -> Job:
    parts = name.split("/")
    if len(parts) != 3:
        raise invalid(field, _("%r is not the full name of a job; write cell/tenant/job") % name[:200])
    return job_named(principal, *parts, uid=uid)


def _file(principal: Principal, job: Job) -> dict[str, Any]:
    return dict(selectors.spec_shown(principal, job, selectors.job_current_spec(job)))
