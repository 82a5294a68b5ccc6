"""Reads of secrets for people: names, versions, grants and jobs, but no values."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Prefetch, QuerySet

from quota.models import Tenant
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.tenant_permission import require_tenant
from scheduling.models import Secret, SecretGrant, SecretVersion
from scheduling.secrets import job_uses
from scheduling.secrets.job_uses import UsingJob
from scheduling.secrets.secrets import secret_named


def secrets_of(principal: Principal, tenant: Tenant) -> QuerySet[Secret]:
    """Return the secrets of a tenant with their grants and their newest versions first. The rows have no values. Makes
    three queries when it is read.
    """
    require_tenant(principal, Action.SECRET_VIEW, tenant.name, "")
    versions = SecretVersion.objects.defer("sealed").order_by("-version")
    rows = Secret.objects.filter(tenant=tenant, deleted_at=None)
    return rows.prefetch_related(
        Prefetch("versions", versions, to_attr="shown_versions"),
        Prefetch("grants", SecretGrant.objects.order_by("jobs", "cell"), to_attr="shown_grants"),
    ).order_by("name")


def secret_shown(principal: Principal, tenant: Tenant, name: str) -> Secret:
    """Return one secret as `secrets_of` does. Raises `NotFound` if there is none."""
    secret_named(tenant, name)
    return secrets_of(principal, tenant).get(name=name)


def using_jobs(principal: Principal, secret: Secret, users: Sequence[UsingJob] | None = None) -> list[UsingJob]:
    """Return the live jobs, cron jobs and live workflows that use a secret and that the caller may see. `users`: all
    of them, if the caller has read them.
    """
    tenant = secret.tenant.name
    require_tenant(principal, Action.SECRET_VIEW, tenant, "")
    found = job_uses.jobs_using(secret.tenant_id, secret.name) if users is None else users
    return [job for job in found if may(principal, Action.JOB_VIEW, tenant=tenant, cell=job.cell)]
