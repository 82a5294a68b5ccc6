"""A capability is a privilege of a user (§2.5). A tenant requests it. An SRE grants it until a given time, or revokes
it.

capability_ask ─► open ─┬─ capability_answer(grant) ─► granted ─► Capability, until it ends
                        └─ capability_answer(reject) ─► refused
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib.auth.models import AbstractBaseUser

from quota import clock, records
from quota.models import Capability, CapabilityRequest, Membership, Tenant
from quota.models.fields import dns_label
from quota.notifications.notices import notify
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, NotFound, invalid
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, require

# The maximum and the default duration. After that, an SRE must grant the capability again.
LONGEST = dt.timedelta(days=366)
USUAL = dt.timedelta(days=90)


def capability_grant(
    *,
    principal: Principal,
    user: AbstractBaseUser,
    kind: str,
    reason: str,
    cell: str = "",
    expires_at: dt.datetime | None = None,
) -> Capability:
    """Grant a capability to `user`, and store the reason.

    `cell`: empty for all cells. `expires_at`: the end of the capability, by default after the time `USUAL`. If the user
    already has the capability, only its end changes. Raises `Rejected` if a value is not valid.
    """
    require(principal, Action.PLATFORM_ADMIN)
    ends = expires_at or clock.now() + USUAL
    _check(kind, cell, reason, ends, field="expires_at")
    with records.write(principal) as entry:
        return _grant(entry, principal, user, kind, cell, reason.strip(), ends)


def capability_revoke(*, principal: Principal, capability: Capability) -> None:
    """Revoke a capability immediately. A second call has no effect."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        user = capability.user
        # Concurrent grants may have created two rows. Both are deleted.
        same = Capability.objects.filter(user_id=user.pk, kind=capability.kind, cell=capability.cell)
        if not (same.filter(pk=capability.pk).exists() and same.delete()[0]):
            return
        for tenant in _tenants_of(user):
            _note(entry, "capability.revoked", tenant, capability)
            _notify(entry, tenant, f"{user.get_username()} no longer has capability {capability.kind}")


def capability_ask(
    *,
    principal: Principal,
    tenant: Tenant,
    username: str,
    kind: str,
    reason: str,
    cell: str = "",
    until: dt.datetime | None = None,
) -> CapabilityRequest:
    """Request a capability from the SREs.

    Callers request capabilities for themselves; owners may also request capabilities for a member or a service account.
    Raises `NotFound` for a user who is not a member of the tenant or its organisation, even if the user exists. Raises
    `Rejected` if a value is not valid. Raises `Conflict` if the user has already requested this capability and no SRE
    has answered yet.
    """
    require(principal, Action.TENANT_SELF, tenant=tenant.name)
    if username != principal.name:
        require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    homes = [tenant.pk, *([tenant.parent_id] if tenant.parent_id else [])]
    members = Membership.objects.select_related("user").filter(tenant__in=homes, user__username=username)
    member = members.first()
    if member is None:
        raise NotFound("user", username)
    user = member.user
    ends = until or clock.now() + USUAL
    _check(kind, cell, reason, ends, field="until")
    with records.write(principal) as entry:
        asked = CapabilityRequest.objects.filter(user_id=user.pk, kind=kind, cell=cell, state="open")
        if asked.select_for_update().exists():
            raise Conflict(
                "asked-already",
                f"{user.get_username()} has already requested {kind}, and no SRE has answered; wait for the answer",
                fields={"kind": "this capability is already requested; wait for the answer"},
            )
        made = CapabilityRequest.objects.create(
            tenant=tenant,
            user_id=user.pk,
            kind=kind,
            cell=cell,
            reason=reason.strip(),
            until=ends,
            asked_by=principal.name,
            asked_at=clock.now(),
        )
        _note(entry, "capability.asked", tenant, made, reason=made.reason, request=made.pk)
        subject = f"{user.get_username()} requests capability {kind} in {_where(cell)}"
        text, url = f"Tenant {tenant.name}: {made.reason}", "/admin/quota/capabilityrequest/"
        notify(entry, None, "capability.changed", subject, text, url=url)
    return made


def capability_answer(
    *,
    principal: Principal,
    request: CapabilityRequest,
    granted: bool,
    answer: str = "",
    until: dt.datetime | None = None,
) -> CapabilityRequest:
    """Grant or reject a user's request for a capability.

    `answer`: the text for the user. `until`: the end of the capability; None means the requested end. Raises `Conflict`
    if the request already has an answer, and `Rejected` if a value is not valid. Locks: the request's row.
    """
    require(principal, Action.PLATFORM_ADMIN)
    if not granted and not answer.strip():
        raise invalid("answer", "the answer is empty; give a reason for the rejection")
    if len(answer) > 500:
        raise invalid("answer", "the answer is too long; give at most 500 characters")
    with records.write(principal) as entry:
        row = (
            CapabilityRequest.objects.select_for_update(of=("self",))
            .select_related("user", "tenant")
            .get(pk=request.pk)
        )
        if row.state != "open":
            answer = "granted" if row.state == "granted" else "rejected"
            detail = f"{row.answered_by} has already answered this request, which is now {answer}; reload the page"
            raise Conflict("answered", detail)
        row.state, row.answer = "granted" if granted else "refused", answer.strip()
        row.answered_by, row.answered_at = principal.name, clock.now()
        if granted:
            ends = until or row.until
            _check(row.kind, row.cell, row.reason, ends, field="until")
            row.capability = _grant(entry, principal, row.user, row.kind, row.cell, row.reason, ends)
        else:
            _note(entry, "capability.refused", row.tenant, row, request=row.pk, answer=row.answer)
            _notify(entry, row.tenant, f"{row.user.get_username()} gets no capability {row.kind}: {row.answer}")
        row.save()
    return row


def _grant(
    entry: RecordEntry,
    principal: Principal,
    user: AbstractBaseUser,
    kind: str,
    cell: str,
    reason: str,
    ends: dt.datetime,
) -> Capability:
    held = Capability.objects.select_for_update().filter(user_id=user.pk, kind=kind, cell=cell)
    capability = held.order_by("id").first() or Capability(user_id=user.pk, kind=kind, cell=cell)
    capability.reason, capability.granted_by, capability.expires_at = reason, principal.name, ends
    capability.save()
    days = (ends - clock.now()).days
    for tenant in _tenants_of(user):
        _note(entry, "capability.granted", tenant, capability, reason=reason, expires_at=ends.isoformat())
        _notify(entry, tenant, f"{user.get_username()} has capability {kind} in {_where(cell)} for {days} days")
    return capability


def _where(cell: str) -> str:
    return f"cell {cell}" if cell else "every cell"


def _note(
    entry: RecordEntry, kind: str, tenant: Tenant | None, about: Capability | CapabilityRequest, **more: Any
) -> None:
    known = {"user": about.user.get_username(), "capability": about.kind, "cell": about.cell}
    entry.append(kind, tenant=tenant.name if tenant else "", **known, **more)


def _check(kind: str, cell: str, reason: str, ends: dt.datetime, *, field: str) -> None:
    now = clock.now()
    if kind not in {known.value for known in CapabilityKind}:
        known = ", ".join(known.value for known in CapabilityKind)
        raise invalid("kind", f"the capability {kind[:50]!r} is unknown; give one of {known}")
    if cell and not dns_label.regex.match(cell):  # type: ignore[union-attr]
        raise invalid("cell", f"{cell[:63]!r} is not the name of a cell; give a name, or an empty text for all cells")
    if not reason.strip():
        raise invalid("reason", "the reason is empty; give a reason for the audit log")
    if len(reason) > 500 or "\x00" in reason:
        raise invalid("reason", "the reason is too long or contains a NUL character; give at most 500 characters")
    if ends <= now:
        raise invalid(field, "the end of the capability is in the past; give a time in the future")
    if ends > now + LONGEST:
        raise invalid(field, f"the end of the capability is too far ahead; give a time within {LONGEST.days} days")


def _tenants_of(user: AbstractBaseUser) -> list[Tenant | None]:
    """Return the tenants of the user, or [None] if the user has no tenant.

    The caller of this function writes one audit record for each element of the list.
    """
    return list(Tenant.objects.filter(memberships__user_id=user.pk).order_by("id")) or [None]


def _notify(entry: RecordEntry, tenant: Tenant | None, subject: str) -> None:
    url = f"/tenants/{tenant.name}/capabilities/" if tenant else "/admin/quota/capability/"
    notify(entry, tenant, "capability.changed", subject, subject + ".", url=url)
