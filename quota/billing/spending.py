"""Balances and spending of a tenant, and whether the tenant can pay a price (pure). Amounts are micro-credits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.money import MOST, format_credits

ACTIONS = ("none", "stop-buying", "stop-submitting", "drop")
DROP = "drop"
STOPS_SUBMITTING = ("stop-submitting", DROP)
FULL = 100
LEAST = -MOST - 1


class Balances(NamedTuple):
    """The balances of one tenant, in micro-credits.

    `owed`: 0, or the debt for metered usage as a negative number. `spendable`: the largest price that an order may
    have, which is `available` + `owed` + the overdraft, but at least 0.
    """

    available: int
    held: int
    owed: int
    spendable: int

    def as_json(self) -> dict[str, int]:
        return dict(self._asdict())


def balances(*, available: int, held: int, owed: int, overdraft: int) -> Balances:
    return Balances(available, held, owed, max(0, available + owed + overdraft))


def fitting(field: str, amount: int) -> int:
    """Return `amount` if it fits 64 bits. Otherwise raises `Rejected("too-large")` with the field name `field`."""
    if not LEAST <= amount <= MOST:
        detail = f"{format_credits(amount)} credits are too many for an account; give at most {format_credits(MOST)}"
        raise invalid(field, detail, "too-large")
    return amount


def over_budget(tenant: str, price: int, has: Balances) -> Rejected | None:
    """Return the rejection of a price if the tenant cannot pay it, else None. `has`: the tenant's balances."""
    missing = price - has.spendable
    if missing <= 0:
        return None
    owes = f" and owes {format_credits(-has.owed)}" if has.owed else ""
    return Rejected(
        "over-budget",
        f"The price is {format_credits(price)} credits. {tenant} has {format_credits(has.available)} available{owes},"
        f" so {format_credits(missing)} credits are missing. Order less, for a shorter time, or at a cheaper band or"
        f" cell, or ask an owner of the organisation or an SRE for {format_credits(missing)} more credits.",
        fields={"price": f"{format_credits(missing)} credits are missing"},
        figures={**has.as_json(), "price": price, "missing": missing},
    )


@dataclass(frozen=True, slots=True)
class Spending:
    """The spending of one tenant in one month, in micro-credits.

    `spent`: charges less refunds; `usage`: the part of `spent` that is metered usage. `waiting`: the prices of orders
    that hold money and begin before the end of the month. `monthly`: the limit; None for all available money.
    """

    tenant: str
    month: dt.date
    spent: int
    usage: int
    waiting: int
    has: Balances
    monthly: int | None = None
    alerts: Sequence[int] = ()
    action: str = "none"
    told: Mapping[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """Return the amount that may be spent in the month: the monthly limit. If the tenant has no limit, return
        all its money: the money spent in the month, the money held for open orders, and the available money.
        """
        if self.monthly is not None:
            return self.monthly
        return max(0, self.spent) + self.waiting + max(0, self.has.available)

    @property
    def committed(self) -> int:
        return self.spent + self.waiting

    @property
    def percent(self) -> int:
        """Return `spent` plus `waiting` as a percentage of the limit, rounded down; 100 if the limit is zero."""
        if self.committed <= 0:
            return 0
        return FULL * self.committed // self.limit if self.limit else FULL

    @property
    def alert(self) -> int | None:
        """Return the highest alert (a percentage) that the spending has reached and that was not sent this month, or
        None if there is no such alert.
        """
        detail = self.told.get(self.key, 0)
        return max((alert for alert in self.alerts if detail < alert <= self.percent), default=None)

    @property
    def key(self) -> str:
        return f"{self.month:%Y-%m}"

    @property
    def spent_up(self) -> bool:
        """Return whether nothing more can be bought: the month's limit is reached, or no money is left."""
        if self.committed <= 0 and self.has.owed == 0:
            return False
        if self.monthly is not None and self.committed >= self.monthly:
            return True
        return self.has.spendable == 0

    @property
    def exhausted(self) -> bool:
        """Return whether the budget is used up, so that its action must be applied.

        An action that stops submissions is applied only if a part of the spending is metered usage, or if the tenant
        owes money for usage. A tenant that paid only for quota may use that quota.
        """
        if self.action == "none" or not self.spent_up:
            return False
        return self.action not in STOPS_SUBMITTING or self.usage > 0 or self.has.owed < 0

    def as_json(self) -> dict[str, Any]:
        shown = ("spent", "usage", "waiting", "limit", "percent", "exhausted")
        return {"month": self.key, **{name: getattr(self, name) for name in shown}}


def beyond_month(spending: Spending, price: int) -> Rejected | None:
    """Return the rejection of a price if it exceeds the rest of the monthly limit, else None."""
    if spending.action == "none" or spending.monthly is None:
        return None
    left = max(0, spending.monthly - spending.committed)
    missing = price - left
    if missing <= 0:
        return None
    return Rejected(
        "over-budget",
        f"The price is {format_credits(price)} credits. The budget of {spending.tenant} for {spending.key} is"
        f" {format_credits(spending.monthly)} credits, of which {format_credits(left)} are left, so"
        f" {format_credits(missing)} credits are missing. Order less, for a shorter time, or from next month on, or ask"
        " an owner to raise the monthly budget.",
        fields={"price": f"{format_credits(missing)} credits are missing in the monthly budget"},
        figures={
            **spending.has.as_json(),
            "price": price,
            "missing": missing,
            "monthly": spending.monthly,
            "spent": spending.spent,
            "waiting": spending.waiting,
            "month": spending.key,
        },
    )
