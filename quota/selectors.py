"""Functions that read tenants, tokens and quota. They return only rows that the principal may see."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection
from django.db.models import QuerySet

from quota import clock
from quota.models import Quota, Tenant, Token
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, Scope, may
from quota.vocabulary.resources import SIZE, ZERO, Vector, add


def tenants_visible(principal: Principal) -> QuerySet[Tenant]:
    rows = Tenant.objects.order_by("id")
    if Scope.READ not in principal.scopes:
        return rows.none()
    if not principal.sre:
        rows = rows.filter(name__in=list(principal.roles))
    return rows.filter(name=principal.tenant) if principal.tenant is not None else rows


def tenant_named(principal: Principal, name: str) -> Tenant:
    """Return a tenant. Raises `NotFound` if the tenant does not exist, or if the principal may not see it."""
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None or not may(principal, Action.TENANT_VIEW, tenant=name):
        raise NotFound("tenant", name)
    return tenant


def tokens_of(principal: Principal) -> QuerySet[Token]:
    """Return the tokens of the principal. If the principal uses a token that is limited to a tenant, return only the
    tokens that are limited to the same tenant.
    """
    rows = (
        Token.objects.filter(user_id=principal.user_id)  # type: ignore[misc]
        .select_related("tenant", "user", "parent", "successor")
        .order_by("id")
    )
    return rows.filter(tenant__name=principal.tenant) if principal.tenant is not None else rows


def grants_visible(principal: Principal) -> QuerySet[Quota]:
    tenants = tenants_visible(principal)
    return Quota.objects.filter(tenant__in=tenants).select_related("tenant", "band").order_by("id")


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """The granted quota of a tenant in a band of a cell, and the quota that its live jobs use."""

    tenant: str
    cell: str
    band: str
    granted: Vector
    used: Vector


def standings(principal: Principal, *, tenant: str | None = None) -> list[QuotaStanding]:
    """Return granted and used quota by tenant, cell and band. Granted quota includes grants in their grace period.

    Makes two queries.
    """
    values = {"now": clock.now(), "tenants": _names_visible(principal, tenant)}
    granted: dict[tuple[str, str, str], Vector] = {}
    with connection.cursor() as cursor:
        cursor.execute(_GRANTED, values)
        for *key, amounts in cursor.fetchall():
            granted[tuple(key)] = add(granted.get(tuple(key), ZERO), amounts[:SIZE])
        cursor.execute(_USED, values)
        used = {tuple(key): tuple(vector) for *key, vector in cursor.fetchall()}
    return [
        QuotaStanding(*key, granted=granted.get(key, ZERO), used=used.get(key, ZERO))  # type: ignore[misc]
        for key in sorted(granted.keys() | used.keys())
    ]


def _names_visible(principal: Principal, tenant: str | None) -> list[str] | None:
    """Return the names of the tenants that the principal may see, or None if it may see all tenants.

    If `tenant` is given, return only this name, or an empty list if the principal may not see the tenant.
    """
    if Scope.READ not in principal.scopes:
        return []
    limits = [name for name in (tenant, principal.tenant) if name is not None]
    if principal.sre:
        return limits[:1] if len(set(limits)) == 1 else [] if limits else None
    return [name for name in principal.roles if all(name == limit for limit in limits)]


# These statements are SQL, because the ORM needs more time than PostgreSQL for them.
_OWNERS = """
    JOIN quota_tenant AS t ON t.id = q.tenant_id JOIN quota_priorityband AS b ON b.id = q.band_id
    WHERE (%(tenants)s::text[] IS NULL OR t.name = ANY(%(tenants)s))"""
_GRANTED = f"""
    SELECT t.name, q.cell, b.name, q.amounts FROM quota_quota AS q {_OWNERS}
    AND q.starts_at <= %(now)s AND (q.ends_at IS NULL OR q.ends_at > %(now)s OR q.grace_until > %(now)s)"""
_USED = f"SELECT t.name, q.cell, b.name, q.used FROM quota_quotause AS q {_OWNERS}"
