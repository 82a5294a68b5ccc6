"""Invitations of people to tenants.

The portal mails a link to an address. A person who has the link may join the tenant, once.

    invitation_send ─► open ─┬─ invitation_accept ─► accepted ─► Membership
                             ├─ invitation_withdraw ─► withdrawn
                             └─ the time `expires_at` ─► expired

The portal never checks whether the address has an account. So nobody can find out which addresses have accounts. The
database stores only a digest of the link.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import secrets

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.core.mail import send_mail
from django.core.validators import validate_email
from django.db.models import QuerySet

from quota import clock, records
from quota.models import Invitation, Membership, ServiceAccount, Tenant
from quota.notifications.notices import notify, one_line
from quota.tenancy.members import check_role, member_set
from quota.tenancy.tenants import tenants_locked
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require

_LINK = re.compile(r"([0-9a-f]{16})_[\w-]{20,100}", re.ASCII)

LASTS = dt.timedelta(days=7)
LONGEST = dt.timedelta(days=30)
# These limits prevent owners from sending too much mail to strangers.
OPEN_AT_MOST, A_DAY_AT_MOST, A_DAY_PER_ADDRESS = 100, 200, 3


def invitation_send(
    *, principal: Principal, tenant: Tenant, email: str, role: str, expires_at: dt.datetime | None = None
) -> tuple[Invitation, str]:
    """Create an invitation.

    Returns the invitation and the secret of its link. The secret is not stored. The caller then calls
    `invitation_mail`. An open invitation to the same address is withdrawn. Raises `Rejected` if a value is not valid,
    or if too many invitations were sent (status 429). Locks: the tenant's row.
    """
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    check_role(role)
    address, now = _address(email), clock.now()
    ends = expires_at or now + LASTS
    if not now < ends <= now + LONGEST:
        raise invalid(
            "expires_at", f"the expiry time is in the past or too far ahead; give a time within {LONGEST.days} days"
        )
    key = secrets.token_hex(8)
    secret = f"{key}_{secrets.token_urlsafe(32)}"
    with records.write(principal) as entry:
        tenants_locked(tenant.name)
        known = Invitation.objects.filter(tenant=tenant)
        _check_rate(known, address, now)
        waiting = known.filter(email=address, accepted_at=None, withdrawn_at=None, expires_at__gt=now)
        for old in sorted(waiting.values_list("key", flat=True)):
            entry.append("invitation.withdrawn", tenant=tenant.name, keys=[old], because="another was sent")
        waiting.update(withdrawn_at=now)
        invitation = Invitation.objects.create(
            tenant=tenant,
            email=address,
            role=role,
            key=key,
            digest=_digest(secret),
            invited_by=principal.name,
            created_at=now,
            expires_at=ends,
        )
        entry.append("invitation.sent", tenant=tenant.name, key=key, email=address, role=role)
        subject = f"{principal.name} invited {address} as {role} of {tenant.name}"
        notify(entry, tenant, "invitation.sent", subject, subject + ".", url=f"/tenants/{tenant.name}/invitations/")
    return invitation, secret


def link_of(secret: str) -> str:
    return f"{settings.PORTAL_URL.rstrip('/')}/invitations/{secret}/"


def invitation_mail(invitation: Invitation, secret: str) -> str:
    """Mail the link of an invitation.

    Call this function after the commit. Returns the reason if the mail could not be sent, else an empty text.
    """
    name = invitation.tenant.title or invitation.tenant.name
    until = clock.format_time(invitation.expires_at, invitation.tenant.time_zone)
    text = (
        f"{invitation.invited_by} invites you to join {name} ({invitation.tenant.name}) as {invitation.role}.\n\n"
        f"Open this link to accept; it works once, until {until}:\n\n"
        f"{link_of(secret)}\n\n"
        "Any person who has the link can join, so do not share it. "
        "If you did not expect an invitation, ignore this message.\n"
    )
    try:
        send_mail(one_line(f"Invitation to join {name}"), text, None, [invitation.email])
    except (OSError, ValueError) as error:  # errors of SMTP, sockets and TLS, and invalid headers
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def invitation_withdraw(*, principal: Principal, tenant: Tenant, key: str) -> Invitation:
    """Withdraw an invitation, so that its link stops working immediately. A second call has no effect.

    Raises `NotFound` if the invitation does not exist, and `Conflict` if the invitation was already accepted.
    """
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    with records.write(principal) as entry:
        row = Invitation.objects.select_for_update().filter(tenant=tenant, key=key).first()
        if row is None:
            raise NotFound("invitation", key)
        if row.accepted_at is not None:
            raise Conflict("accepted", f"{row.email} has already accepted the invitation; remove the member instead")
        if row.withdrawn_at is None:
            row.withdrawn_at = clock.now()
            row.save(update_fields=["withdrawn_at"])
            entry.append("invitation.withdrawn", tenant=tenant.name, keys=[key], because=f"by {principal.name}")
    return row


def invitation_of(secret: str) -> Invitation:
    """Return the open invitation whose link contains `secret`.

    Raises `Rejected`, with the same text for all links that do not work.
    """
    return _open(Invitation.objects.select_related("tenant"), secret)


def invitation_accept(*, principal: Principal, user: AbstractBaseUser, secret: str) -> Membership:
    """Make the signed-in person a member of the tenant. An invitation can be accepted only once.

    Raises `Rejected` for a link that no longer works, and `Conflict` for a person who is already a member. Locks: the
    tenant's row, then the invitation's row.
    """
    if user.pk is None or principal.user_id != user.pk or principal.tenant is not None:
        raise Forbidden("invitation.accept", "only signed-in people can accept invitations; sign in to the portal")
    if ServiceAccount.objects.filter(user_id=user.pk).exists():
        raise Forbidden(
            "invitation.accept",
            f"{principal.name} is a service account and cannot join another tenant; sign in as a person",
        )
    with records.write(principal) as entry:
        tenant = tenants_locked(invitation_of(secret).tenant.name)
        row = _open(Invitation.objects.select_for_update(of=("self",)).select_related("tenant"), secret)
        own = Membership.objects.filter(tenant=row.tenant, user_id=user.pk).first()
        if own is not None:
            raise Conflict(
                "member-already",
                f"you already have the role {own.role} in {row.tenant.name}; ask an owner for another role",
                fields={"role": f"you already have the role {own.role}"},
            )
        row.accepted_at, row.accepted_by_id = clock.now(), user.pk
        row.save(update_fields=["accepted_at", "accepted_by"])
        entry.append(
            "invitation.accepted",
            tenant=row.tenant.name,
            key=row.key,
            email=row.email,
            role=row.role,
            invited_by=row.invited_by,
        )
        return member_set(entry, tenant[row.tenant.name], user, row.role)


def _open(rows: QuerySet[Invitation], secret: str) -> Invitation:
    known = _LINK.fullmatch(secret)
    row = rows.filter(key=known[1]).first() if known else None
    now = clock.now()
    if (
        row is None
        or not hmac.compare_digest(row.digest, _digest(secret))
        or row.accepted_at is not None
        or row.withdrawn_at is not None
        or row.expires_at <= now
    ):
        raise Rejected(
            "invitation-over",
            "this invitation was used or withdrawn, or has expired; ask for a new invitation",
            status=404,
        )
    return row


def _check_rate(known: QuerySet[Invitation], address: str, now: dt.datetime) -> None:
    rows = known.filter(created_at__gt=now - dt.timedelta(days=1))
    counts = (
        (
            known.filter(accepted_at=None, withdrawn_at=None, expires_at__gt=now).count(),
            OPEN_AT_MOST,
            "the tenant has {count} open invitations, and at most {most} are allowed; withdraw some of them",
        ),
        (
            rows.count(),
            A_DAY_AT_MOST,
            "the tenant has sent {count} invitations in 24 hours, and at most {most} are allowed; wait a day",
        ),
        (
            rows.filter(email=address).count(),
            A_DAY_PER_ADDRESS,
            "the tenant has sent {count} invitations to this address in 24 hours, and at most {most} are allowed; wait"
            " a day",
        ),
    )
    for count, most, text in counts:
        if count >= most:
            detail = text.format(count=count, most=most)
            raise Rejected(
                "too-many-invitations",
                detail,
                fields={"email": detail},
                figures={"count": count, "most": most},
                status=429,
            )


def _address(email: str) -> str:
    address = email.strip()
    try:
        validate_email(address)
    except ValidationError as error:
        raise invalid("email", "the text is not an e-mail address; give one, such as ann@example.org") from error
    if len(address) > 254:
        raise invalid("email", "the e-mail address is too long; give at most 254 characters")
    return address.lower()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
