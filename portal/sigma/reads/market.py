"""Queries about the market that only pages need."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from quota.models import ApprovalRule, CellCapacity, Membership, Tenant
from quota.vocabulary.permissions import Action, Principal, Role, may
from scheduling.models import Job


def cells_sold(principal: Principal) -> list[str]:
    """Return the names of the cells that sell quota, as far as the principal may see them. A cell sells no quota until
    it has reported its capacity.
    """
    names = CellCapacity.objects.order_by("cell").values_list("cell", flat=True)[:200]
    return [name for name in names if may(principal, Action.CELL_VIEW, cell=name)]


def zone_of(tenant: Tenant) -> ZoneInfo:
    """Return the time zone in which the tenant's days begin and end."""
    return ZoneInfo(tenant.time_zone)


def approval_words(tenant: Tenant, cell: str, band: str, price: int, *, orderer: str) -> str:
    """Return a sentence that says who must approve an order at this price. `orderer`: the user who orders."""
    rules = ApprovalRule.objects.filter(
        Q(cell="") | Q(cell=cell),
        Q(band=None) | Q(band__name=band),
        Q(tenant=None) | Q(tenant=tenant),
        Q(most_price=None) | Q(most_price__gte=price),
    )
    sentences = {
        "auto": _("The order will be approved automatically."),
        "owner": _("An owner of the tenant has to approve the order."),
        "sre": _("An SRE has to approve the order."),
    }
    approver = rules.order_by("rank").values_list("approver", flat=True).first() or "sre"
    if approver == "owner" and set(owners_of(tenant)) <= {orderer}:
        return _("An SRE has to approve the order, because the tenant has no other owner.")
    return sentences[approver]


def owners_of(tenant: Tenant) -> list[str]:
    """Return the names of at most five owners of the tenant or of its organisation. They can raise the budget."""
    rows = Membership.objects.filter(Q(tenant=tenant) | Q(tenant=tenant.parent_id), role=Role.OWNER.value)
    return sorted(set(rows.values_list("user__username", flat=True)[:5]))


def like_this(jobs: QuerySet[Job], tenant: str) -> list[tuple[int, str]]:
    """Return the ids and titles of the newest live jobs of a tenant that use quota. Jobs in an alloc set and jobs in
    the free band use no quota.
    """
    rows = jobs.filter(tenant__name=tenant, alloc_set__isnull=True, priority__gt=0).exclude(state="dead")
    found = rows.order_by("-id").values_list("id", "name", "cell__name", "band")[:100]
    return [(identity, f"{name} ({cell}, {band})") for identity, name, cell, band in found]
