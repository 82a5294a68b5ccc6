"""Functions that read members, service accounts and capabilities. They return only what the principal may see."""

from __future__ import annotations

from django.db.models import OuterRef, Q, QuerySet, Subquery

from quota.models import Capability, CapabilityRequest, Invitation, Membership, ServiceAccount, Tenant, Token
from quota.vocabulary.permissions import Action, Principal, may, require


def administered(principal: Principal) -> list[str]:
    """Return the names of the tenants that the principal owns, directly or through an organisation."""
    return sorted(name for name in principal.roles if may(principal, Action.TENANT_ADMIN, tenant=name))


def members_of(principal: Principal, tenant: Tenant) -> QuerySet[Membership]:
    """Return the members of a tenant, but not people who have a role only through the organisation."""
    require(principal, Action.TENANT_VIEW, tenant=tenant.name)
    return tenant.memberships.select_related("user", "user__service_account").order_by("id")


def invitations_of(principal: Principal, tenant: Tenant) -> QuerySet[Invitation]:
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    return tenant.invitations.select_related("accepted_by", "tenant").order_by("id")


def service_accounts_of(principal: Principal, tenant: Tenant) -> QuerySet[ServiceAccount]:
    """Return the service accounts of a tenant, each with its `role`."""
    require(principal, Action.TENANT_VIEW, tenant=tenant.name)
    member = Membership.objects.filter(tenant=tenant, user_id=OuterRef("user_id")).values("role")[:1]
    rows = ServiceAccount.objects.filter(tenant=tenant).select_related("user", "tenant")
    return rows.annotate(role=Subquery(member)).order_by("id")


def tokens_of_account(principal: Principal, account: ServiceAccount) -> QuerySet[Token]:
    require(principal, Action.TENANT_ADMIN, tenant=account.tenant.name)
    return (
        Token.objects.filter(user_id=account.user_id)
        .select_related("tenant", "user", "parent", "successor")
        .order_by("id")
    )


def capabilities_visible(principal: Principal) -> QuerySet[Capability]:
    """Return the capabilities that the principal may see, including ended ones.

    All users see their own capabilities. Owners also see the capabilities of their members. SREs see all
    capabilities.
    """
    rows = Capability.objects.select_related("user").order_by("id")
    if may(principal, Action.PLATFORM_ADMIN):
        return rows
    theirs = Membership.objects.filter(tenant__name__in=administered(principal)).values("user_id")
    return rows.filter(Q(user_id=principal.user_id) | Q(user_id__in=theirs))


def requests_visible(principal: Principal) -> QuerySet[CapabilityRequest]:
    """Return the requests for capabilities that the principal may see.

    All users see their own requests. Owners also see the requests of their tenants. SREs see all requests.
    """
    rows = CapabilityRequest.objects.select_related("user", "tenant", "capability").order_by("id")
    if may(principal, Action.PLATFORM_ADMIN):
        return rows
    if principal.tenant is not None:
        rows = rows.filter(tenant__name=principal.tenant)
    return rows.filter(Q(user_id=principal.user_id) | Q(tenant__name__in=administered(principal)))
