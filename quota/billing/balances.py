"""Balances of a tenant, and checks of what it can afford (pure). Amounts are micro-credits that fit 64 bits."""

from __future__ import annotations

from typing import NamedTuple

from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.money import MOST, format_credits

LEAST = -MOST - 1


class Balances(NamedTuple):
    """Balances of one tenant. `owed`: never above 0, metered usage that nothing covered.

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
    """`amount`, when it fits 64 bits. Raises `Rejected("too-large")` naming the field."""
    if not LEAST <= amount <= MOST:
        raise invalid(
            field,
            f"{format_credits(amount)} credits are more than an account can hold, {format_credits(MOST)}",
            "too-large",
        )
    return amount


def over_budget(tenant: str, price: int, has: Balances) -> Rejected | None:
    """Why `price` can't be paid, None when it can."""
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
