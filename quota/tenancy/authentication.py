"""Authentication: reads the `Principal` (the caller with its rights) of a user or of a token. A wrong token raises
`InvalidToken`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import connection

from quota import clock
from quota.models import Token
from quota.vocabulary.errors import Forbidden, NotFound
from quota.vocabulary.permissions import GENERAL_SCOPES, CapabilityKind, Principal, Role, Scope

# The time of a token's last use is written at most this often, because otherwise every request would write a row.
LAST_USED_EVERY = dt.timedelta(minutes=5)
# Each request runs one of these queries. They are SQL, because the ORM needs more time than PostgreSQL for a query.
# One row per right of the token's user, or one row with NULLs for a user without rights.
_CALLER = """
    SELECT k.digest, k.scopes, n.name, k.expires_at, k.revoked_at, k.last_used_at, {columns}, r.*
    FROM quota_token AS k JOIN {users} AS u ON u.id = k.user_id LEFT JOIN quota_tenant AS n ON n.id = k.tenant_id
    LEFT JOIN LATERAL ({rights}) AS r ON true WHERE k.key = %(key)s"""
_TOKEN_COLUMNS = 6
# Rows of memberships (one per team of an organisation), then rows of capabilities, then the time zone that the user
# chose: a row with only a time zone.
_RIGHTS = """
    SELECT t.name, t.time_zone, m.role, team.name, NULL AS kind, NULL AS cell
    FROM quota_membership AS m JOIN quota_tenant AS t ON t.id = m.tenant_id
    LEFT JOIN quota_tenant AS team ON team.parent_id = t.id WHERE m.user_id = {user}
    UNION ALL SELECT NULL, NULL, NULL, NULL, c.kind, c.cell FROM quota_capability AS c
    WHERE c.user_id = {user} AND (c.expires_at IS NULL OR c.expires_at > %(now)s)
    UNION ALL SELECT NULL, p.time_zone, NULL, NULL, NULL, NULL FROM quota_preferences AS p
    WHERE p.user_id = {user} AND p.time_zone <> ''"""


class InvalidToken(Exception):
    """The error for a bearer token that is unknown, expired or revoked. The message says what to do."""


def principal_of_token(
    secret: str, *, request_id: str = "", dispatching: bool = False
) -> tuple[AbstractBaseUser, Principal]:
    """Return the user and the principal of a token. `dispatching`: whether the request dispatches a template, or reads
    the state of a job that was dispatched.

    Raises `InvalidToken` if the token is unknown, expired or revoked, or if its user is not active. Raises `Forbidden`
    if the token may only dispatch, and the request does something else.
    """
    parts = secret.split("_", 2)
    if len(parts) != 3 or parts[0] != "borg":
        raise InvalidToken("this is not a token of Borg Portal; get one with `borgctl login`")
    now = clock.now()
    with connection.cursor() as cursor:
        cursor.execute(_token_query(), {"key": parts[1], "now": now})
        rows = cursor.fetchall()
    if not rows or not hmac.compare_digest(rows[0][0], token_digest(secret)):
        raise InvalidToken("unknown token; get one with `borgctl login`")
    end = _TOKEN_COLUMNS + len(_user_fields())
    _, scopes, tenant, expires_at, revoked_at, last_used_at = rows[0][:_TOKEN_COLUMNS]
    user = get_user_model().from_db(connection.alias, _user_fields(), rows[0][_TOKEN_COLUMNS:end])
    if revoked_at is not None:
        raise InvalidToken(f"this token was revoked at {revoked_at:%Y-%m-%d %H:%M} UTC; get a new one")
    if expires_at is not None and expires_at <= now:
        raise InvalidToken(f"this token expired at {expires_at:%Y-%m-%d %H:%M} UTC; get a new one")
    if not user.is_active:
        raise InvalidToken(
            "the user of this token is disabled; ask an owner of the tenant or an SRE to enable the user"
        )
    scope_set = frozenset(Scope(scope) for scope in scopes)
    if Scope.DISPATCH in scope_set and not dispatching:
        detail = (
            f"token {parts[1]} may only dispatch its templates and read the state of the jobs that it has dispatched"
        )
        raise Forbidden("token.use", f"{detail}; use another token for this request")
    if last_used_at is None or now - last_used_at > LAST_USED_EVERY:
        Token.objects.filter(key=parts[1]).update(last_used_at=now)
    rights = [row[end:] for row in rows]
    principal = _principal(user, rights, request_id=request_id, tenant=tenant, scopes=scope_set)
    return user, replace(principal, token=parts[1])


def principal_of_user(
    user: AbstractBaseUser | AnonymousUser,
    *,
    request_id: str = "",
    tenant: str | None = None,
    scopes: frozenset[Scope] = frozenset(GENERAL_SCOPES),
) -> Principal:
    """Return the principal of a signed-in user.

    A role in an organisation also applies in all its teams. `tenant`, `scopes`: the limits of the token that the user
    signs in with. Makes one query.
    """
    with connection.cursor() as cursor:
        cursor.execute(_RIGHTS.format(user="%(user)s"), {"user": user.pk, "now": clock.now()})
        rights = cursor.fetchall()
    return _principal(user, rights, request_id=request_id, tenant=tenant, scopes=scopes)


def principals_of_users(user_ids: Iterable[int]) -> dict[int, Principal]:
    """Return the principals of active users by the id of the user, with all scopes. Users that do not exist or are
    disabled are left out. Makes two queries.
    """
    users = get_user_model().objects.filter(pk__in=set(user_ids), is_active=True).in_bulk()
    rights: dict[int, list[Sequence[Any]]] = {pk: [] for pk in users}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT u.id, r.* FROM unnest(%(users)s::bigint[]) AS u(id) CROSS JOIN LATERAL"
            f" ({_RIGHTS.format(user='u.id')}) AS r",
            {"users": list(users), "now": clock.now()},
        )
        for user_id, *columns in cursor.fetchall():
            rights[user_id].append(columns)
    scopes = frozenset(GENERAL_SCOPES)
    return {pk: _principal(user, rights[pk], request_id="", tenant=None, scopes=scopes) for pk, user in users.items()}


def _principal(
    user: AbstractBaseUser | AnonymousUser,
    rights: Iterable[Sequence[Any]],
    *,
    request_id: str,
    tenant: str | None,
    scopes: frozenset[Scope],
) -> Principal:
    """Return the principal of a user. `rights`: the result rows of the query `_RIGHTS`; rows of NULLs are ignored."""
    own: dict[str, Role] = {}
    inherited: dict[str, Role] = {}
    zones: dict[str, str] = {}
    capabilities = set()
    chosen = ""
    for name, zone, role, team, kind, cell in rights:
        if kind is not None:
            capabilities.add((CapabilityKind(kind), cell))
        elif name is not None:
            zones[name] = zone
            own[name] = Role(role)
            if team is not None:
                inherited[team] = Role(role)
        elif zone is not None:
            chosen = zone
    return Principal(
        name=user.get_username(),
        request_id=request_id,
        user_id=user.pk,
        sre=bool(user.is_staff),  # type: ignore[union-attr]
        roles=inherited | own,
        inherited=inherited,
        capabilities=frozenset(capabilities),
        tenant=tenant,
        time_zone=chosen,
        tenant_zone=zones[min(zones)] if zones else "UTC",
        scopes=scopes,
    )


def user_named(username: str) -> AbstractBaseUser:
    """Return the user with this user name. Raises `NotFound` if the user does not exist."""
    user = get_user_model().objects.filter(username=username).first()
    if user is None:
        raise NotFound("user", username)
    return user


@cache
def _user_fields() -> list[str]:
    return [field.attname for field in get_user_model()._meta.concrete_fields]


@cache
def _token_query() -> str:
    columns = ", ".join(f"u.{field.column}" for field in get_user_model()._meta.concrete_fields)
    rights = _RIGHTS.format(user="k.user_id")
    return _CALLER.format(columns=columns, users=get_user_model()._meta.db_table, rights=rights)


def token_digest(secret: str) -> str:
    """Return the SHA-256 of a token's secret, hex. Only this digest is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()
