"""Tenants, their members, and capabilities: every change recorded in the platform's stream."""

from __future__ import annotations

import datetime as dt

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.utils import timezone

from quota import records
from quota.errors import Conflict, Refused
from quota.models import Capability, Membership, Tenant
from quota.permissions import Action, CapabilityKind, Principal, Role, require

# Labels that the zone of a cell uses for itself: `<host>.machine.<cell>.<zone>`.
RESERVED_NAMES = frozenset({"machine"})


def tenant_create(*, principal: Principal, name: str, title: str = "", contact: str = "") -> Tenant:
    """A new tenant. Raises `Refused` naming the field; `Conflict` when the name is taken."""
    require(principal, Action.PLATFORM_ADMIN)
    tenant = Tenant(name=name, title=title, contact=contact)
    validated(tenant, exclude=["created_at"])
    if name in RESERVED_NAMES:
        told = f"{name!r} is a name that the zone uses itself; choose another"
        raise Refused("reserved-name", f"name: {told}", fields={"name": told})
    with records.write(principal) as entry:
        if Tenant.objects.filter(name=name).exists():
            raise Conflict("tenant-exists", f"tenant {name} exists already", fields={"name": "taken"})
        tenant.save()
        entry.append("tenant.created", tenant=name, title=title)
    return tenant


def tenant_set(
    *,
    principal: Principal,
    tenant: Tenant,
    title: str,
    contact: str,
    max_jobs: int | None = None,
    task_api: str | None = None,
) -> Tenant:
    """Change what may change of a tenant. Its name may not: it is in DNS names, and on bills."""
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    tenant.title, tenant.contact = title, contact
    if max_jobs is not None and max_jobs != tenant.max_jobs:
        require(principal, Action.PLATFORM_ADMIN)
        tenant.max_jobs = max_jobs
    if task_api is not None:
        tenant.task_api = task_api
    validated(tenant)
    with records.write(principal) as entry:
        tenant.save(update_fields=["title", "contact", "max_jobs", "task_api"])
        entry.append(
            "tenant.changed",
            tenant=tenant.name,
            title=title,
            max_jobs=tenant.max_jobs,
            task_api=tenant.task_api,
        )
    return tenant


def membership_set(
    *, principal: Principal, tenant: Tenant, user: AbstractBaseUser, role: str | None
) -> Membership | None:
    """Give `user` a role in `tenant`, change it, or take it away with None. Idempotent."""
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    if role is not None and role not in {known.value for known in Role}:
        known = ", ".join(known.value for known in Role)
        raise Refused("invalid", f"role: {role!r} is none of {known}", fields={"role": f"one of {known}"})
    with records.write(principal) as entry:
        if role is None:
            gone, _ = Membership.objects.filter(tenant=tenant, user_id=user.pk).delete()
            if gone:
                entry.append("member.removed", tenant=tenant.name, user=user.get_username())
            return None
        before = Membership.objects.filter(tenant=tenant, user_id=user.pk).first()
        if before is not None and before.role == role:
            return before
        membership, _ = Membership.objects.update_or_create(
            tenant=tenant, user_id=user.pk, defaults={"role": role}
        )
        entry.append("member.set", tenant=tenant.name, user=user.get_username(), role=role)
    return membership


def capability_grant(
    *,
    principal: Principal,
    user: AbstractBaseUser,
    kind: str,
    reason: str,
    cell: str = "",
    expires_at: dt.datetime | None = None,
) -> Capability:
    """A special privilege (§2.5), with a reason. Raises `Refused` naming the field."""
    require(principal, Action.PLATFORM_ADMIN)
    if kind not in {known.value for known in CapabilityKind}:
        known = ", ".join(known.value for known in CapabilityKind)
        raise Refused("invalid", f"kind: {kind!r} is none of {known}", fields={"kind": f"one of {known}"})
    if not reason.strip():
        raise Refused("invalid", "reason: say why, for the audit", fields={"reason": "empty"})
    if expires_at is not None and expires_at <= timezone.now():
        raise Refused("invalid", "expires_at lies in the past", fields={"expires_at": "not in the future"})
    with records.write(principal) as entry:
        capability = Capability.objects.create(
            user_id=user.pk, kind=kind, cell=cell, reason=reason.strip(), granted_by=principal.name,
            expires_at=expires_at,
        )  # fmt: skip
        entry.append(
            "capability.granted", user=user.get_username(), capability=kind, cell=cell, reason=reason
        )
    return capability


def capability_revoke(*, principal: Principal, capability: Capability) -> None:
    """Take a privilege back at once."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        if Capability.objects.filter(pk=capability.pk).delete()[0]:
            entry.append(
                "capability.revoked",
                user=capability.user.get_username(),
                capability=capability.kind,
                cell=capability.cell,
            )


def validated(instance: Tenant, *, exclude: list[str] | None = None) -> None:
    """Django's field checks as a `Refused` that names the fields."""
    try:
        instance.clean_fields(exclude=exclude)
    except ValidationError as error:
        fields = {name: " ".join(messages) for name, messages in error.message_dict.items()}
        raise Refused(
            "invalid", "; ".join(f"{name}: {what}" for name, what in fields.items()), fields=fields
        ) from error
