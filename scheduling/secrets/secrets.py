"""Changes of secrets: set, grant, revoke and delete. No function returns or records a value.

    set ─► cells of the jobs that use it: lock, events ─► row of the secret: lock ─► version, record
                     └─► machines look at their desired state again, and fetch the new version

Owners of the tenant change grants and delete secrets. Members who may change jobs may set values of secrets too.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.db.models import Count, Q

from quota import clock
from quota.models import Tenant
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.journal.journal import JournalEntry
from scheduling.models import Cell, Secret, SecretGrant, SecretVersion
from scheduling.secrets import grant_rules, job_uses
from scheduling.secrets.key_ring import key_ring_for_writes
from scheduling.secrets.locked_users import write_with_users
from scheduling.secrets.sealing import CannotOpen, KeyRing, Place
from scheduling.spec.schema import LATEST

MAX_SECRETS, MAX_NAMES = 1_000, 10_000
MAX_GRANTS = 200
# Versions of one secret that are kept. Older ones are deleted, unless a live job, a cron job or a live workflow
# names them by their number.
KEPT_VERSIONS = 20


@dataclass(frozen=True, slots=True)
class SecretChange:
    """The result of a change. `secret`: as it is now. `users`: what uses it: live jobs, cron jobs, live workflows."""

    secret: Secret
    users: list[job_uses.UsingJob]


def secret_set(*, principal: Principal, tenant: Tenant, name: str, value: bytes) -> SecretChange:
    """Store a new version of a secret, and create the secret if it does not exist.

    Running tasks that use the newest version as a file get it within seconds. An equal value changes nothing. Raises
    `Rejected` if the name or the value is not valid, there are too many secrets, or the installation has no key. Locks:
    the rows of the cells of jobs that use it, then the rows of the tenant and of the secret.
    """
    _require(principal, Action.SECRET_WRITE, tenant)
    grant_rules.check_name(name)
    grant_rules.check_value(value)
    ring = key_ring_for_writes()

    def write(entry: RecordEntry, users: list[job_uses.UsingJob]) -> Secret:
        secret = Secret.objects.filter(tenant=tenant, name=name).first()
        if secret is None or secret.deleted_at is not None:
            _check_number(tenant)
        elif _equals_newest(ring, secret, value):
            raise _Unchanged(secret)
        if secret is None:
            secret = Secret(tenant=tenant, name=name, created_by=principal.name, created_at=clock.now())
        secret.newest_version, secret.deleted_at = secret.newest_version + 1, None
        secret.save()
        sealed = ring.seal(value, Place(tenant.name, name, secret.newest_version))
        SecretVersion.objects.create(
            secret=secret,
            version=secret.newest_version,
            key_id=sealed.key_id,
            sealed=sealed.sealed,
            fingerprint=sealed.fingerprint,
            size_bytes=len(value),
            is_text=grant_rules.is_text(value),
            created_by=principal.name,
            created_at=clock.now(),
        )
        _delete_old(secret, users)
        entry.append("secret.set", tenant=tenant.name, name=name, version=secret.newest_version, size_bytes=len(value))
        return secret

    return _change(principal, tenant, name, "set", write)


def secret_grant(*, principal: Principal, tenant: Tenant, name: str, jobs: str, cell: str = "") -> SecretChange:
    """Let jobs of the tenant use a secret. Idempotent. `jobs`: the name of a job, or the beginning of names and `*`.
    `cell`: the only cell of these jobs; empty for all cells. Locks as `secret_set`.
    """
    _require(principal, Action.SECRET_GRANT, tenant)
    grant_rules.check_jobs(jobs)
    if cell and not Cell.operated.filter(name=cell).exists():
        raise invalid("cell", f"there is no cell {cell[:63]!r}; leave the cell out for all cells")

    def write(entry: RecordEntry, users: list[job_uses.UsingJob]) -> Secret:
        secret = secret_named(tenant, name)
        if SecretGrant.objects.filter(secret=secret, jobs=jobs, cell=cell).exists():
            raise _Unchanged(secret)
        count = SecretGrant.objects.filter(secret=secret).count()
        if count >= MAX_GRANTS:
            detail = f"secret {name} has {count} grants, which is the maximum; grant it to names with *, or revoke one"
            raise Conflict("too-many-grants", detail)
        SecretGrant.objects.create(
            secret=secret, jobs=jobs, cell=cell, created_by=principal.name, created_at=clock.now()
        )
        entry.append("secret.granted", tenant=tenant.name, name=name, jobs=jobs, cell=cell)
        return secret

    return _change(principal, tenant, name, "granted", write)


def secret_revoke(*, principal: Principal, tenant: Tenant, name: str, jobs: str, cell: str = "") -> SecretChange:
    """Delete a grant. Running tasks keep the value that they have; new starts wait. Raises `NotFound` if there is no
    such grant. Locks as `secret_set`.
    """
    _require(principal, Action.SECRET_GRANT, tenant)

    def write(entry: RecordEntry, users: list[job_uses.UsingJob]) -> Secret:
        secret = secret_named(tenant, name)
        if not SecretGrant.objects.filter(secret=secret, jobs=jobs, cell=cell).delete()[0]:
            raise NotFound("grant", str(grant_rules.JobGrant(jobs[:64], cell[:63])))
        entry.append("secret.revoked", tenant=tenant.name, name=name, jobs=jobs, cell=cell)
        return secret

    return _change(principal, tenant, name, "revoked", write)


def secret_delete(*, principal: Principal, tenant: Tenant, name: str, force: bool = False) -> SecretChange:
    """Delete a secret with all versions and grants. Running tasks keep the value that they have; new starts wait.

    Raises `Conflict` if live jobs, cron jobs or live workflows use the secret, unless `force`. Locks as `secret_set`.
    """
    _require(principal, Action.SECRET_GRANT, tenant)

    def write(entry: RecordEntry, users: list[job_uses.UsingJob]) -> Secret:
        secret = secret_named(tenant, name)
        if users and not force:
            some = ", ".join(f"{job.cell}/{job.name}" for job in users[:5])
            more = f" and {len(users) - 5} more" if len(users) > 5 else ""
            cure = "change or end these jobs, cron jobs and workflows, or delete it with force"
            detail = f"secret {name} is used by {some}{more}; {cure}"
            raise Conflict("secret-in-use", detail, figures={"jobs": len(users)})
        SecretVersion.objects.filter(secret=secret).delete()
        SecretGrant.objects.filter(secret=secret).delete()
        secret.deleted_at = clock.now()
        secret.save(update_fields=["deleted_at"])
        entry.append("secret.deleted", tenant=tenant.name, name=name, version=secret.newest_version)
        return secret

    return _change(principal, tenant, name, "deleted", write)


def secret_named(tenant: Tenant, name: str) -> Secret:
    """Return a secret of a tenant. Raises `NotFound` if there is none, or if it was deleted."""
    secret = Secret.objects.select_related("tenant").filter(tenant=tenant, name=name, deleted_at=None).first()
    if secret is None:
        raise NotFound("secret", name[:63])
    return secret


def _require(principal: Principal, action: Action, tenant: Tenant) -> None:
    """Check that the caller may change secrets of the tenant. A caller that is limited to one cell, such as a task, may
    not, because a secret belongs to all cells.
    """
    require_tenant(principal, action, tenant.name, "")
    if principal.cell is not None:
        detail = f"{principal.name} is limited to cell {principal.cell}, and secrets belong to all cells of"
        raise Forbidden(action, f"{detail} {tenant.name}; use a user or a service account without such a limit")


class _Unchanged(Exception):
    """Raised to undo the locks of a change that changes nothing."""

    def __init__(self, secret: Secret) -> None:
        super().__init__("nothing changes")
        self.secret = secret
        self.users: list[job_uses.UsingJob] = []


def _change(
    principal: Principal,
    tenant: Tenant,
    name: str,
    change: str,
    write: Callable[[RecordEntry, list[job_uses.UsingJob]], Secret],
) -> SecretChange:
    """Run `write` in one transaction with the events of all live jobs that use the secret."""

    def write_all(
        entry: RecordEntry, entries: Mapping[int, JournalEntry], users: list[job_uses.UsingJob]
    ) -> SecretChange:
        try:
            secret = write(entry, users)
        except _Unchanged as unchanged:
            unchanged.users = users
            raise
        job_uses.append_events(entries, users, secret, change)
        return SecretChange(secret, users)

    try:
        return write_with_users(
            principal,
            tenant,
            users=lambda: job_uses.jobs_using(tenant.pk, name),
            lock=lambda: Secret.objects.select_for_update().filter(tenant=tenant, name=name),
            write=write_all,
        )
    except _Unchanged as unchanged:
        return SecretChange(unchanged.secret, unchanged.users)


def _check_number(tenant: Tenant) -> None:
    """Raise `Conflict` if the tenant has too many secrets. Deleted ones count too, up to a higher limit."""
    counts = Secret.objects.filter(tenant=tenant).aggregate(all=Count("pk"), live=Count("pk", Q(deleted_at=None)))
    if counts["live"] >= MAX_SECRETS:
        detail = f"tenant {tenant.name} has {counts['live']} secrets, which is the maximum; delete one"
        raise Conflict("too-many-secrets", detail)
    if counts["all"] >= MAX_NAMES:
        detail = (
            f"tenant {tenant.name} has used {counts['all']} names of secrets,"
            " which is the maximum; use a name again that it has used before"
        )
        raise Conflict("too-many-secrets", detail)


def _equals_newest(ring: KeyRing, secret: Secret, value: bytes) -> bool:
    """Return whether the newest version of a secret has this value, and the newest key encrypts it."""
    row = SecretVersion.objects.filter(secret=secret, version=secret.newest_version, key_id=ring.newest).first()
    if row is None:
        return False
    place = Place(secret.tenant.name, secret.name, row.version)
    try:
        return hmac.compare_digest(ring.open_value(row.key_id, bytes(row.sealed), place), value)
    except CannotOpen:
        return False


def _delete_old(secret: Secret, users: list[job_uses.UsingJob]) -> None:
    """Delete the oldest versions of a secret, except those that live jobs, cron jobs and live workflows
    name.
    """
    pinned = {int(version) for job in users for version in job.versions if version != LATEST}
    old = secret.newest_version - KEPT_VERSIONS
    SecretVersion.objects.filter(secret=secret, version__lte=old).exclude(version__in=pinned).delete()
