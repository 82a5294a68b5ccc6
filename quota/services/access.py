"""Tokens: issued, read, revoked. And the `Principal` behind a user or a token."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
from dataclasses import replace

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q

from quota import clock, records
from quota.errors import NotFound, Refused
from quota.models import Capability, Membership, ServiceAccount, Tenant, Token
from quota.permissions import Action, CapabilityKind, Principal, Role, Scope, may

# A token's last use is shown to its owner; writing it more often than this would cost a row a request.
LAST_USED_EVERY = dt.timedelta(minutes=5)


class InvalidToken(Exception):
    """A bearer token that proves nothing; the text says what to do."""


def token_issue(
    *,
    principal: Principal,
    user: AbstractBaseUser,
    name: str,
    scopes: list[str],
    tenant: Tenant | None = None,
    expires_at: dt.datetime | None = None,
) -> tuple[Token, str]:
    """A new token and its secret, which is shown this once. Raises `Refused` naming the field."""
    if user.pk is None:
        raise Refused(
            "no-person",
            f"{principal.name} is no person; tokens are made by people and outlive a task",
            status=403,
        )
    unknown = sorted(set(scopes) - {scope.value for scope in Scope})
    if unknown or not scopes:
        known = ", ".join(scope.value for scope in Scope)
        raise Refused("invalid-scopes", f"scopes are some of {known}", fields={"scopes": f"{scopes!r}"})
    beyond = sorted(set(scopes) - {scope.value for scope in principal.scopes})
    if beyond:
        raise Refused(
            "scopes-too-wide",
            f"you can't give what you don't have: {', '.join(beyond)}",
            fields={"scopes": "wider than your own"},
            status=403,
        )
    if not name.strip():
        raise Refused(
            "invalid", "name: a token needs a name, so that you know it again", fields={"name": "empty"}
        )
    if expires_at is not None and expires_at <= clock.now():
        raise Refused("invalid", "expires_at lies in the past", fields={"expires_at": "not in the future"})
    if principal.tenant is not None and (tenant is None or tenant.name != principal.tenant):
        raise Refused(
            "tenant-bound",
            f"your own token is bound to tenant {principal.tenant}; so must be the ones it makes",
            fields={"tenant": "not yours"},
            status=403,
        )
    if principal.expires_at is not None:
        expires_at = expires_at or principal.expires_at
        if expires_at > principal.expires_at:
            raise Refused(
                "outlives-its-maker",
                f"your own token ends at {principal.expires_at:%Y-%m-%d %H:%M} UTC; so must the ones it makes",
                fields={"expires_at": "after your own token's"},
                status=403,
            )
    account = ServiceAccount.objects.filter(user_id=user.pk).first()
    if account is not None and (expires_at is None or tenant is None or tenant.pk != account.tenant_id):
        raise Refused(
            "service-account",
            f"{user.get_username()} is a service account: its tokens are bound to its tenant and have an end",
            fields={"expires_at": "needed"} if expires_at is None else {"tenant": "its own"},
        )
    key = secrets.token_hex(6)
    secret = f"borg_{key}_{secrets.token_urlsafe(32)}"
    with records.write(principal) as entry:
        token = Token.objects.create(
            user=user, tenant=tenant, name=name.strip(), key=key, digest=_digest(secret),
            scopes=sorted(set(scopes)), expires_at=expires_at,
        )  # fmt: skip
        entry.append(
            "token.issued",
            tenant=tenant.name if tenant else "",
            key=key,
            name=token.name,
            user=user.get_username(),
        )
    return token, secret


def token_revoke(*, principal: Principal, key: str) -> Token:
    """Ends a token at once. One's own, those of one's tenants' service accounts for an owner, or anybody's for an SRE;
    through a token bound to a tenant, only those bound
    to it too. Idempotent. Raises `NotFound`."""
    own = Q() if principal.sre and Scope.ADMIN in principal.scopes else Q(user_id=principal.user_id)
    owned = [name for name in principal.roles if may(principal, Action.TENANT_ADMIN, tenant=name)]
    own |= Q(user__service_account__tenant__name__in=owned) if owned and own else Q()
    if principal.tenant is not None:
        own &= Q(tenant__name=principal.tenant)
    with records.write(principal) as entry:
        token = (
            Token.objects.select_for_update(of=("self",))
            .select_related("tenant")
            .filter(own, key=key)
            .first()
        )
        if token is None:
            raise NotFound("token", key)
        if token.revoked_at is None:
            token.revoked_at = clock.now()
            token.save(update_fields=["revoked_at"])
            entry.append("token.revoked", tenant=token.tenant.name if token.tenant else "", key=key)
    return token


def principal_of_token(secret: str, *, request_id: str = "") -> tuple[AbstractBaseUser, Principal]:
    """Raises `InvalidToken`: unknown, expired, revoked, or of somebody who has left."""
    parts = secret.split("_", 2)
    if len(parts) != 3 or parts[0] != "borg":
        raise InvalidToken("this is no token of Borg Portal; get one with `borgctl login`")
    token = Token.objects.select_related("user", "tenant").filter(key=parts[1]).first()
    if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
        raise InvalidToken("unknown token; get one with `borgctl login`")
    now = clock.now()
    if token.revoked_at is not None:
        raise InvalidToken(f"this token was revoked at {token.revoked_at:%Y-%m-%d %H:%M} UTC; get a new one")
    if token.expires_at is not None and token.expires_at <= now:
        raise InvalidToken(f"this token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC; get a new one")
    if not token.user.is_active:
        raise InvalidToken("the user of this token is not active any more")
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_EVERY:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    principal = principal_of_user(
        token.user,
        request_id=request_id,
        tenant=token.tenant.name if token.tenant else None,
        scopes=frozenset(Scope(scope) for scope in token.scopes),
    )
    principal = replace(principal, expires_at=token.expires_at)
    return token.user, principal


def principal_of_user(
    user: AbstractBaseUser,
    *,
    request_id: str = "",
    tenant: str | None = None,
    scopes: frozenset[Scope] = frozenset(Scope),
) -> Principal:
    """What a signed-in user may do, read afresh: two queries. A role in an organisation holds in all its teams."""
    own: dict[str, Role] = {}
    inherited: dict[str, Role] = {}
    found = Membership.objects.filter(user_id=user.pk).values_list(
        "tenant__name", "role", "tenant__teams__name"
    )
    for name, role, team in found:
        own[name] = Role(role)
        if team is not None:
            inherited[team] = Role(role)
    granted = Capability.objects.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=clock.now()), user_id=user.pk
    )
    return Principal(
        name=user.get_username(),
        request_id=request_id,
        user_id=user.pk,
        sre=bool(user.is_staff),
        roles=inherited | own,
        inherited=inherited,
        capabilities=frozenset(
            (CapabilityKind(kind), cell) for kind, cell in granted.values_list("kind", "cell")
        ),
        tenant=tenant,
        scopes=scopes,
    )


def user_named(username: str) -> AbstractBaseUser:
    """Raises `NotFound`."""
    user = get_user_model().objects.filter(username=username).first()
    if user is None:
        raise NotFound("user", username)
    return user


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
