"""Refunds of the part of an order's price that is for time without the bought quota."""

from __future__ import annotations

import datetime as dt

from quota.billing import ledger
from quota.models import Order
from quota.records import RecordEntry

MICROSECOND = dt.timedelta(microseconds=1)


def give_back(entry: RecordEntry, order: Order, amount: int, *, text: str) -> None:
    """Refund `amount`, but at most the part of the price that was not refunded yet.

    The caller must save `order.refunded`.
    """
    back = min(amount, order.price - order.refunded)
    if back > 0:
        ledger.refund(entry, order, back, text)
        order.refunded += back


def share(order: Order, begins_at: dt.datetime, ends_at: dt.datetime) -> int:
    """Return the share of the order's price for the time from `begins_at` to `ends_at`, rounded down to a
    micro-credit.
    """
    whole = (order.ends_at - order.starts_at) // MICROSECOND
    part = min(max(0, (ends_at - begins_at) // MICROSECOND), whole)
    return order.price * part // whole
