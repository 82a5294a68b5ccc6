"""Approval rules, by rank. The first rule that matches an order decides who approves it (`order_steps.rule_of`)."""

from __future__ import annotations

from quota import records
from quota.models import ApprovalRule, PriorityBand, Tenant
from quota.pricing.market import cell_require
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.money import MOST, format_credits
from quota.vocabulary.permissions import Action, Principal, require

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


def _valid(rank: int, approver: str, most_price: int | None) -> None:
    if isinstance(rank, bool) or not 0 <= rank <= MOST_RANK:
        raise invalid("rank", f"the rank {rank} is out of range; give a whole number from 0 to {MOST_RANK}")
    if approver not in APPROVERS:
        raise invalid("approver", f"the approver {approver!r} is unknown; give one of {', '.join(APPROVERS)}")
    if most_price is not None and not 0 <= most_price <= MOST:
        raise invalid("most_price", f"the maximum price is out of range; give 0 to {format_credits(MOST)} credits")
