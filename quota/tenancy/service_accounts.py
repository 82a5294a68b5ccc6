"""A service account is an account for programs. It is a member of one tenant. It has no password, but tokens that are
valid only for this tenant.
"""

from __future__ import annotations

import datetime as dt
import re

from django.contrib.auth import get_user_model

from quota import clock, records
from quota.models import Membership, ServiceAccount, Tenant, Token
from quota.models.fields import DNS_LABEL
from quota.notifications.notices import notify
from quota.records import RecordEntry
from quota.tenancy.tenants import tenants_locked
from quota.tenancy.tokens import default_end, token_issue
from quota.vocabulary.errors import Conflict, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, Role, Scope, require

ROLES = tuple(role.value for role in Role if role is not Role.OWNER)
SCOPES = (Scope.READ.value, Scope.WRITE.value)
AT_MOST = 100
TOKEN_LONGEST = dt.timedelta(days=366)
MAX_USERNAME, MAX_DESCRIPTION = 150, 200


def service_account_create(
    *, principal: Principal, tenant: Tenant, name: str, role: str, description: str = ""
) -> ServiceAccount:
    """Create a service account with the user name `name@tenant`. Locks: the tenant's row.

    Raises `Rejected` if a value is not valid, and `Conflict` if the name is taken or the tenant has too many service
    accounts.
    """
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    if not re.match(DNS_LABEL, name):
        raise invalid(
            "name",
            f"the name {name[:63]!r} is not accepted; give at most 63 lower-case letters, digits and hyphens, beginning"
            " with a letter",
        )
    _check(role, description)
    username = f"{name}@{tenant.name}"
    users = get_user_model().objects
    with records.write(principal) as entry:
        tenants_locked(tenant.name)
        if users.filter(username=username).exists():
            raise Conflict(
                "name-taken", f"the user {username} already exists; choose another name", fields={"name": "taken"}
            )
        count = ServiceAccount.objects.filter(tenant=tenant).count()
        if count >= AT_MOST:
            raise Conflict("too-many", f"{tenant.name} has {count} service accounts, which is the maximum; delete one")
        user = users.create_user(username)  # without a password, so that nobody can sign in
        account = ServiceAccount.objects.create(
            user=user, tenant=tenant, description=description.strip(), created_by=principal.name, created_at=clock.now()
        )
        Membership.objects.create(tenant=tenant, user=user, role=role)
        entry.append(
            "service-account.created", tenant=tenant.name, user=username, role=role, description=account.description
        )
        _notify(entry, tenant, f"{principal.name} created service account {username} with role {role}")
    return account


def service_account_set(
    *,
    principal: Principal,
    account: ServiceAccount,
    role: str | None = None,
    description: str | None = None,
    enabled: bool | None = None,
) -> ServiceAccount:
    """Change settings of a service account. None leaves a setting unchanged. Idempotent. Locks: the tenant's row.

    Tokens of a disabled account stop working immediately.
    """
    require(principal, Action.TENANT_ADMIN, tenant=account.tenant.name)
    _check(role or ROLES[0], description or "")
    with records.write(principal) as entry:
        tenants_locked(account.tenant.name)
        account = ServiceAccount.objects.select_related("user", "tenant").get(pk=account.pk)
        member = Membership.objects.get(tenant=account.tenant, user=account.user)
        before = (member.role, account.description, account.user.is_active)
        wanted = tuple(
            old if new is None else new for old, new in zip(before, (role, description, enabled), strict=True)
        )
        if wanted == before:
            return account
        member.role, account.description, account.user.is_active = wanted  # type: ignore[assignment]
        member.save(update_fields=["role"])
        account.save(update_fields=["description"])
        account.user.save(update_fields=["is_active"])
        username = account.user.get_username()
        entry.append(
            "service-account.changed",
            tenant=account.tenant.name,
            user=username,
            role=member.role,
            description=account.description,
            enabled=account.user.is_active,
        )
        if account.user.is_active != before[2]:
            state = "enabled" if account.user.is_active else "disabled"
            _notify(entry, account.tenant, f"{principal.name} {state} service account {username}")
    return account


def service_account_remove(*, principal: Principal, account: ServiceAccount) -> None:
    """Delete a service account and its tokens, immediately and permanently. Records of the account's actions keep its
    name.
    """
    require(principal, Action.TENANT_ADMIN, tenant=account.tenant.name)
    with records.write(principal) as entry:
        tenants_locked(account.tenant.name)
        username, keys = (account.user.get_username(), sorted(account.user.borg_tokens.values_list("key", flat=True)))
        if not ServiceAccount.objects.filter(pk=account.pk).exists():
            raise NotFound("service account", username)
        account.user.delete()
        entry.append("service-account.removed", tenant=account.tenant.name, user=username, tokens=keys)
        _notify(entry, account.tenant, f"{principal.name} deleted service account {username}")


def service_account_token(
    *,
    principal: Principal,
    account: ServiceAccount,
    name: str,
    scopes: list[str] | None = None,
    expires_at: dt.datetime | None = None,
) -> tuple[Token, str]:
    """Return a new token for a service account, and its secret, which is not stored.

    The token ends at `expires_at`; without `expires_at`, it ends at `default_end`. If the caller uses a token, the
    new token never ends later than the caller's token.
    """
    require(principal, Action.TENANT_ADMIN, tenant=account.tenant.name)
    wide = sorted(set(scopes or ()) - {*SCOPES, Scope.DISPATCH.value})
    if wide:
        raise invalid(
            "scopes",
            f"a service account cannot have the scopes {', '.join(wide)}; give some of {', '.join(SCOPES)}",
            "invalid-scopes",
        )
    expires_at = expires_at or default_end(principal)
    if expires_at is not None and expires_at > clock.now() + TOKEN_LONGEST:
        raise invalid("expires_at", f"the expiry time is too far ahead; give a time within {TOKEN_LONGEST.days} days")
    if not account.user.is_active:
        raise Conflict("disabled", f"the service account {account.user.get_username()} is disabled; enable it first")
    return token_issue(
        principal=principal,
        user=account.user,
        name=name,
        scopes=list(SCOPES) if scopes is None else scopes,
        tenant=account.tenant,
        expires_at=expires_at,
    )


def service_account_named(tenant: Tenant, name: str) -> ServiceAccount:
    """Return a service account of a tenant. `name`: its name with or without `@tenant`. Raises `NotFound` if there is
    none.
    """
    username = name if "@" in name else f"{name}@{tenant.name}"
    rows = ServiceAccount.objects.select_related("user", "tenant")
    account = rows.filter(tenant=tenant, user__username=username).first()
    if account is None:
        raise NotFound("service account", name)
    return account


def _check(role: str, description: str) -> None:
    if role not in ROLES:
        raise invalid("role", f"a service account cannot have the role {role[:50]!r}; give one of {', '.join(ROLES)}")
    if len(description) > MAX_DESCRIPTION or "\x00" in description:
        raise invalid(
            "description", f"the description is too long or contains NUL; give at most {MAX_DESCRIPTION} characters"
        )


def _notify(entry: RecordEntry, tenant: Tenant, subject: str) -> None:
    url = f"/tenants/{tenant.name}/service-accounts/"
    notify(entry, tenant, "service-account.changed", subject, subject + ".", url=url)
