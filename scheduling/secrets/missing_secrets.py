"""Sentences about tasks that wait because a secret is missing."""

from __future__ import annotations

from borglet.messages import Phase
from quota.vocabulary.errors import Rejected
from scheduling.models import Job, JobSpec, SecretVersion, Task
from scheduling.secrets import known_secrets
from scheduling.secrets.key_ring import key_ring
from scheduling.secrets.known_secrets import KnownSecret, SecretName
from scheduling.spec import parser
from scheduling.spec.schema import SecretUse


def sentences(job: Job, task: Task) -> list[str]:
    """Return why a task that has a machine waits for secrets. Return an empty list if it does not wait for any. Makes
    at most three queries.
    """
    if task.phase != Phase.INSTALLING.value:
        return []
    row = JobSpec.objects.filter(job=job, version=task.spec_version).first()
    if row is None:
        return []
    try:
        uses = parser.load(row.spec, extra=tuple(job.cell.extra_resources)).task(task.index).secrets
    except Rejected:  # this release cannot read the spec, which the link logs
        return []
    names = {(job.tenant.name, use.name) for use in uses}
    known = known_secrets.read_known(names)
    found = [_problem(job, use, known) for use in uses]
    problems = [problem for problem in found if problem] or (_unreadable(job, uses, known) if uses else [])
    return [f"It waits for a secret: {problem}." for problem in problems]


def _problem(job: Job, use: SecretUse, known: dict[SecretName, KnownSecret]) -> str:
    tenant, cell = job.tenant.name, job.cell.name
    problem = known_secrets.problem_of(use, known.get((tenant, use.name)), tenant=tenant, job=job.name, cell=cell)
    return problem[1] if problem is not None else ""


def _unreadable(job: Job, uses: tuple[SecretUse, ...], known: dict[SecretName, KnownSecret]) -> list[str]:
    """Return a problem for each secret that no key of this installation decrypts."""
    tenant, ring = job.tenant.name, key_ring()
    wanted = {(use.name, known[tenant, use.name].version_for(use, job.name, job.cell.name)) for use in uses}
    rows = SecretVersion.objects.filter(
        secret__tenant=job.tenant_id, secret__name__in={use.name for use in uses}
    ).values_list("secret__name", "version", "key_id")
    return [
        f"the key {identity} of secret {name} is missing in this installation; set the secret again, or ask an SRE"
        for name, version, identity in rows
        if (name, version) in wanted and identity not in ring
    ]
