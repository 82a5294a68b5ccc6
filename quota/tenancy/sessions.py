"""Lists and ends the sessions of people: the browsers in which they are signed in to the portal.

The library allauth records each session (`UserSession`). A session ends when its row of Django's table of sessions is
deleted. Open shells check this row every few seconds, and live pages every minute; then they close.
"""

from __future__ import annotations

import ipaddress

from allauth.usersessions.models import UserSession
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.http import HttpRequest

from quota import clock, records
from quota.records import RecordEntry
from quota.tenancy.sign_in_limits import address_of
from quota.tenancy.tokens import admin_needed
from quota.vocabulary.errors import Forbidden, NotFound
from quota.vocabulary.permissions import Action, Principal, Scope, may

# The time of a session's last request is written at most this often by each web process.
SEEN_EVERY_S = 300
_MOST_AGENT = 200  # characters


def session_seen(request: HttpRequest) -> None:
    """Record that the session of a signed-in request is in use, with the address and the browser of the request."""
    key = request.session.session_key
    if key is None or not cache.add(f"session-seen:{key}", True, SEEN_EVERY_S):
        return
    row = UserSession(
        session_key=key,
        user_id=request.user.pk,
        ip=recorded_address(request),
        user_agent=request.headers.get("User-Agent", "")[:_MOST_AGENT],
        last_seen_at=clock.now(),
    )
    UserSession.objects.bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["session_key"],
        update_fields=["user", "ip", "user_agent", "last_seen_at"],
    )


def recorded_address(request: HttpRequest) -> str:
    """Return the address of the client, or 0.0.0.0 if the server or a proxy gives none that is an IP address."""
    try:
        return str(ipaddress.ip_address(address_of(request)))
    except ValueError:
        return "0.0.0.0"  # noqa: S104 - it is stored, and nothing listens there


def sessions_of(principal: Principal, user: AbstractBaseUser) -> list[UserSession]:
    """Return the sessions of `user` that are valid now. The session that was used last comes first.

    People see their own sessions, and SREs see all. Raises `Forbidden` for other callers.
    """
    _check(principal, user)
    rows = list(UserSession.objects.filter(user_id=user.pk).order_by("-last_seen_at", "-id"))
    stored = Session.objects.filter(session_key__in=[row.session_key for row in rows], expire_date__gt=clock.now())
    # After a change of the password, older sessions are stored but no longer valid.
    hashes = {user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()}
    valid = {one.session_key for one in stored if one.get_decoded().get(HASH_SESSION_KEY) in hashes}
    return [row for row in rows if row.session_key in valid]


def session_end(*, principal: Principal, number: int) -> UserSession:
    """End one session, and return what is known about it. Raises `NotFound` if the caller may not see it, and
    `Forbidden` if the caller is a token without scope admin, or bound to a tenant.
    """
    row = UserSession.objects.select_related("user").filter(pk=number).first()
    if row is None or (row.user_id != principal.user_id and not may(principal, Action.PLATFORM_ADMIN)):
        raise NotFound("session", str(number))
    _check(principal, row.user, ending=True)
    with records.write(principal) as entry:
        if not _end(entry, row.user, [row]):
            raise NotFound("session", str(number))
    return row


def sessions_end(*, principal: Principal, user: AbstractBaseUser, keep: str | None = None) -> int:
    """End all sessions of `user`, except the one with the key `keep`. Return the number of ended sessions."""
    _check(principal, user, ending=True)
    rows = [row for row in sessions_of(principal, user) if row.session_key != keep]
    with records.write(principal) as entry:
        return _end(entry, user, rows)


def _check(principal: Principal, user: AbstractBaseUser, *, ending: bool = False) -> None:
    own = principal.user_id is not None and principal.user_id == user.pk
    if principal.tenant is not None or not (own or may(principal, Action.PLATFORM_ADMIN)):
        raise Forbidden(
            "session.see",
            f"{principal.name} may not see or end sessions here: sessions belong to a person and to no tenant. Use the"
            " page Sign-in of the portal, or a token of this person that is not bound to a tenant.",
        )
    if ending and Scope.ADMIN not in principal.scopes:
        raise admin_needed(principal, "session.end", "end a session")


def _end(entry: RecordEntry, user: AbstractBaseUser, rows: list[UserSession]) -> int:
    """Delete the sessions `rows` in the caller's transaction. Return how many of them still existed."""
    keys = [row.session_key for row in rows]
    _, deleted = Session.objects.filter(session_key__in=keys).delete()
    UserSession.objects.filter(session_key__in=keys).delete()
    for row in rows:
        entry.append("session.ended", user=user.get_username(), address=row.ip)
    return deleted.get("sessions.Session", 0)
