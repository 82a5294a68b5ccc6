"""Sentences about tasks that wait because a config file is missing."""

from __future__ import annotations

from borglet.messages import Phase
from quota.vocabulary.errors import Rejected
from scheduling.config_files import known_files
from scheduling.models import Job, JobSpec, Task
from scheduling.spec import parser


def sentences(job: Job, task: Task) -> list[str]:
    """Return why a task that has a machine waits for config files. Return an empty list if it does not wait for any.
    Makes at most two queries.
    """
    if task.phase != Phase.INSTALLING.value:
        return []
    row = JobSpec.objects.filter(job=job, version=task.spec_version).exclude(configs=[]).first()
    if row is None:
        return []
    try:
        uses = parser.load(row.spec, extra=tuple(job.cell.extra_resources)).task(task.index).configs
    except Rejected:  # this release cannot read the spec, which the link logs
        return []
    tenant = job.tenant.name
    known = known_files.read_known({(tenant, use.name) for use in uses})
    problems = (known_files.problem_of(use, known.get((tenant, use.name)), tenant=tenant) for use in uses)
    return [f"It waits for a config file: {problem[1]}." for problem in problems if problem is not None]
