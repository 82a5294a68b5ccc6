"""Approval rules, and who may approve an order. The first rule that matches an order, by rank, decides."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q, QuerySet

from quota import records
from quota.models import ApprovalRule, Membership, Order, OrderState, PriorityBand, ServiceAccount, Tenant
from quota.pricing.capacity_for_sale import cell_require
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.money import MOST, format_credits
from quota.vocabulary.permissions import Action, Principal, Role, require

APPROVERS = ("auto", "owner", "sre")
MOST_RANK = 1_000_000


def rule_set(
    *,
    principal: Principal,
    rank: int,
    approver: str,
    cell: str = "",
    band: PriorityBand | None = None,
    tenant: Tenant | None = None,
    most_price: int | None = None,
) -> ApprovalRule:
    """Create the rule with the number `rank`, or replace the existing one.

    The conditions are `cell`, `band`, `tenant` and `most_price` (the maximum price in micro-credits). A condition that
    is omitted matches all orders. Pending orders keep their approver. Raises `Rejected` if a value is not valid.
    """
    require(principal, Action.PLATFORM_ADMIN)
    _valid(rank, approver, most_price)
    if cell:
        cell_require(cell)
    given = {"cell": cell, "band": band, "tenant": tenant, "most_price": most_price, "approver": approver}
    with records.write(principal) as entry:
        rule, _ = ApprovalRule.objects.update_or_create(rank=rank, defaults=given)
        entry.append(
            "approval-rule.set",
            rank=rank,
            approver=approver,
            cell=cell,
            band=band.name if band else "",
            of=tenant.name if tenant else "",
            most_price=most_price,
        )
    return rule


def rule_remove(*, principal: Principal, rank: int) -> None:
    """Remove the rule with this rank. Raises `NotFound` if the rule does not exist."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        if not ApprovalRule.objects.filter(rank=rank).delete()[0]:
            raise NotFound("approval rule", str(rank))
        entry.append("approval-rule.removed", rank=rank)


def rule_of(*, cell: str, band: PriorityBand, tenant: Tenant, price: int) -> tuple[str, str]:
    """Return the approver (auto, owner or sre) and the name of the first matching rule, by rank.

    If no rule matches, the approver is an SRE.
    """
    rule = (
        ApprovalRule.objects.filter(
            Q(cell="") | Q(cell=cell),
            Q(band=None) | Q(band=band),
            Q(tenant=None) | Q(tenant=tenant),
            Q(most_price=None) | Q(most_price__gte=price),
        )
        .order_by("rank")
        .first()
    )
    return (rule.approver, f"rule {rule.rank}") if rule is not None else ("sre", "")


def deciders() -> QuerySet[Membership]:
    """Return the owners who may approve or reject an order, as a subquery for `Exists` in queries of `Order`.

    These are the owners of the order's tenant or of its organisation. The person who placed the order is excluded. If a
    service account placed the order, the account's creator is excluded.
    """
    own_account = ServiceAccount.objects.filter(
        user__username=OuterRef(OuterRef("placed_by")), created_by=OuterRef("user__username")
    )
    return (
        Membership.objects.filter(
            Q(tenant=OuterRef("tenant")) | Q(tenant=OuterRef("tenant__parent")),
            role=Role.OWNER.value,
            user__is_active=True,
        )
        .exclude(user__username=OuterRef("placed_by"))
        .exclude(Exists(own_account))
    )


def waiting_without_owner() -> QuerySet[Order]:
    """Return the pending orders that need an owner's approval although no owner may approve them."""
    waiting = Order.objects.filter(state=OrderState.PENDING.value, approver="owner")
    return waiting.filter(~Exists(deciders()))


def _valid(rank: int, approver: str, most_price: int | None) -> None:
    if isinstance(rank, bool) or not 0 <= rank <= MOST_RANK:
        raise invalid("rank", f"the rank {rank} is out of range; give a whole number from 0 to {MOST_RANK}")
    if approver not in APPROVERS:
        raise invalid("approver", f"the approver {approver!r} is unknown; give one of {', '.join(APPROVERS)}")
    if most_price is not None and not 0 <= most_price <= MOST:
        raise invalid("most_price", f"the maximum price is out of range; give 0 to {format_credits(MOST)} credits")
