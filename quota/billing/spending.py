"""Balances of a tenant, how far it has spent its budget, and what it can afford (pure). Amounts are micro-credits."""

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
    """The balances of one tenant. `owed`: at most 0, metered usage that its money did not cover.

    `spendable`: what may be bought for: the available, as far as nothing is owed, and the overdraft.
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
    """Return `amount` if it fits 64 bits. Raises `Rejected("too-large")`, which names the field."""
    if not LEAST <= amount <= MOST:
        raise invalid(
            field,
            f"{format_credits(amount)} credits are more than an account can hold, {format_credits(MOST)}",
            "too-large",
        )
    return amount


def over_budget(tenant: str, price: int, has: Balances) -> Rejected | None:
    """Return why `price` can't be paid, None when it can."""
    missing = price - has.spendable
    if missing <= 0:
        return None
    owes = f" and owes {format_credits(-has.owed)}" if has.owed else ""
    return Rejected(
        "over-budget",
        f"{format_credits(price)} credits are wanted, and {tenant} has {format_credits(has.available)}"
        f" available{owes}: {format_credits(missing)}"
        " credits are missing. Order less, for a shorter time or at a cheaper band or cell, or ask an owner of the"
        f" organisation or an SRE for a budget of {format_credits(missing)} more.",
        fields={"price": f"{format_credits(missing)} credits more than may be spent"},
        figures={**has.as_json(), "price": price, "missing": missing},
    )


@dataclass(frozen=True, slots=True)
class Spending:
    """The spending of one tenant in one month.

    `spent`: what revenue got, less refunds; `usage`: the part of it that was metered. `waiting`: the prices of orders
    that hold money and begin by the end of the month. `monthly`: the limit, None for whatever is available.
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
        """Return what may be spent: the monthly limit, otherwise all money of the month."""
        if self.monthly is not None:
            return self.monthly
        return max(0, self.spent) + self.waiting + max(0, self.has.available)

    @property
    def committed(self) -> int:
        return self.spent + self.waiting

    @property
    def percent(self) -> int:
        """Return the committed share of the limit in percent, rounded down; 100 if the limit is zero."""
        if self.committed <= 0:
            return 0
        return FULL * self.committed // self.limit if self.limit else FULL

    @property
    def alert(self) -> int | None:
        """Return the highest alert that is reached and was not sent this month."""
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
        """Return whether the budget's action is due. Submitting stops only if *usage* took part in the spending:
        bought quota stays usable for a tenant that has spent all on it."""
        if self.action == "none" or not self.spent_up:
            return False
        return self.action not in STOPS_SUBMITTING or self.usage > 0 or self.has.owed < 0

    def as_json(self) -> dict[str, Any]:
        shown = ("spent", "usage", "waiting", "limit", "percent", "exhausted")
        return {"month": self.key, **{name: getattr(self, name) for name in shown}}


def beyond_month(spending: Spending, price: int) -> Rejected | None:
    """Return why an order of the month can't be paid under a monthly limit that stops buying; None when it can."""
    if spending.action == "none" or spending.monthly is None:
        return None
    left = max(0, spending.monthly - spending.committed)
    missing = price - left
    if missing <= 0:
        return None
    return Rejected(
        "over-budget",
        f"{format_credits(price)} credits are wanted, and of the {format_credits(spending.monthly)} that"
        f" {spending.tenant} means to spend in {spending.key} {format_credits(left)} are left:"
        f" {format_credits(missing)} credits are missing. Order less, for a shorter time or"
        " from next month on, or ask an owner to raise the monthly budget.",
        fields={"price": f"{format_credits(missing)} credits more than the month's budget has left"},
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
