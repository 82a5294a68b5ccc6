"""Reads of tenants, tokens and quota, limited to rows that the principal may see."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q, QuerySet

from quota import clock
from quota.models import Quota, QuotaUse, Tenant, Token
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
    """Return a tenant. Raises `NotFound`, also if the principal may not see it."""
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None or not may(principal, Action.TENANT_VIEW, tenant=name):
        raise NotFound("tenant", name)
    return tenant


def tokens_of(principal: Principal) -> QuerySet[Token]:
    """Return the tokens of the caller.

    If the calling token is bound to a tenant, return only the tokens of that tenant.
    """
    rows = (
        Token.objects.filter(user_id=principal.user_id)  # type: ignore[misc]
        .select_related("tenant", "user", "parent")
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
    """Return granted and used quota by tenant, cell and band. Grants in their grace period count. Makes two queries."""
    now = clock.now()
    visible = tenants_visible(principal)
    if tenant is not None:
        visible = visible.filter(name=tenant)
    granted: dict[tuple[str, str, str], Vector] = {}
    rows = Quota.objects.filter(
        Q(ends_at__isnull=True) | Q(ends_at__gt=now) | Q(grace_until__gt=now), starts_at__lte=now, tenant__in=visible
    ).values_list("tenant__name", "cell", "band__name", "amounts")
    for *key, amounts in rows:
        granted[tuple(key)] = add(granted.get(tuple(key), ZERO), amounts[:SIZE])  # type: ignore[arg-type, index]
    uses = QuotaUse.objects.filter(tenant__in=visible).values_list("tenant__name", "cell", "band__name", "used")
    used = {tuple(key): tuple(vector) for *key, vector in uses}
    return [
        QuotaStanding(*key, granted=granted.get(key, ZERO), used=used.get(key, ZERO))  # type: ignore[arg-type, misc]
        for key in sorted(granted.keys() | used.keys())
    ]
