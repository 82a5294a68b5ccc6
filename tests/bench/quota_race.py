"""`quota-race`: 32 buyers order the last free core of a cell at the same time (§2.5). Each is a thread with a
connection.

In each round every buyer orders the same core, through the services, with durable commits. There are five kinds of
rounds, in turn: the quota begins at once (`at-once`); it begins tomorrow (`tomorrow`); an SRE must approve the order
and rejects it (`refused`); the order has a quote (`quoted`); the winner cancels its order at once while others still
try (`handed-round`). After each round the winner returns the core. The core must have a buyer in each round, and never
two at once. At the end no credits may be reserved, and the ledger must balance.

`value`: attempts per second. `attempts`, `won`, `rounds`: counts. `order_ms_p50`, `order_ms_p99`: the time of one
attempt, including the wait for the lock of the cell's market. `load`: the load average before.

    BENCH_ATTEMPTS=1000 python -m tests.bench quota-race      fewer attempts than 10,000
"""

from __future__ import annotations

import datetime as dt
import os
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.databases import databases

BUYERS = 32
ATTEMPTS = 10_000
KINDS = ("at-once", "tomorrow", "refused", "quoted", "handed-round")
CELL = "race"
CORE = (1_000, 0, 0, 0, 0, 0)
# Capacity and sold amount in milli-cores. 5 % of the capacity are not sold, so one core is left.
ROOM_MILLI, SOLD_MILLI = 10_000, 8_500
_BEGIN = dt.datetime(2027, 5, 1, tzinfo=dt.UTC)
_WAIT_S = 60.0
_CORE_MOVES = ("order.placed", "order.cancelled", "order.rejected")


def measure() -> Iterator[dict[str, Any]]:
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        load = round(os.getloadavg()[0], 1)
        rounds = -(-int(os.environ.get("BENCH_ATTEMPTS", ATTEMPTS)) // BUYERS)
        yield {"case": f"last-core-{BUYERS}-buyers", "load": load, **Race(BUYERS).run(rounds)}


class Race:
    """A cell with one core left to sell, and `buyers` teams that have enough credits for it."""

    def __init__(self, buyers: int) -> None:
        from django.db import transaction

        from quota import clock
        from quota.admission import published_capacity
        from quota.admission.band_changes import bands_ensure
        from quota.billing import ledger
        from quota.models import ApprovalRule, PriorityBand, Quota, Tenant
        from quota.pricing import capacity_for_sale
        from quota.vocabulary.permissions import system

        self.sre = system("race")
        with clock.at(_BEGIN), transaction.atomic():
            bands_ensure(principal=self.sre)
            published_capacity.publish(cell=CELL, capacity=(ROOM_MILLI, 0, 0, 0, 0, 0), revision=1)
            capacity_for_sale.market_set(principal=self.sre, cell=CELL, headroom_milli=50)
            ApprovalRule.objects.create(rank=1, band=PriorityBand.objects.get(name="monitoring"), approver="sre")
            self.teams = [Tenant.objects.create(name=f"buyer-{number}") for number in range(buyers)]
            for team in self.teams:
                ledger.budget_grant(principal=self.sre, tenant=team, amount=10**12)
            Quota.objects.create(
                tenant=self.teams[0],
                cell=CELL,
                band=PriorityBand.objects.get(name="production"),
                amounts=[SOLD_MILLI, 0, 0, 0, 0, 0],
                starts_at=_BEGIN,
            )
        self.problems: list[str] = []
        self.took_s: list[float] = []
        self._results: list[tuple[str, Any]] = [("", None)] * buyers
        self._quotes: list[Any] = [None] * buyers
        # All buyers and the main thread begin and end each round together.
        self._gate = threading.Barrier(buyers + 1, timeout=_WAIT_S)
        self._kind, self._now = KINDS[0], _BEGIN
        self._done = False

    def run(self, rounds: int) -> dict[str, Any]:
        threads = [threading.Thread(target=self._buyer, args=(i,), daemon=True) for i in range(len(self.teams))]
        for thread in threads:
            thread.start()
        spent, won = 0.0, 0
        for number in range(rounds):
            self._kind = KINDS[number % len(KINDS)]
            self._now = _BEGIN + dt.timedelta(seconds=2 * (number + 1))
            self._prepare()
            began = time.monotonic()
            self._gate.wait()
            self._gate.wait()
            spent += time.monotonic() - began
            won += self._settle(number)
        self._done = True
        self._gate.wait()
        for thread in threads:
            thread.join(_WAIT_S)
        self._check()
        attempts = rounds * len(self.teams)
        cuts = statistics.quantiles(self.took_s, n=100)
        return {
            "value": round(attempts / spent, 1),
            "unit": "attempts/s",
            "attempts": attempts,
            "won": won,
            "rounds": rounds,
            "order_ms_p50": round(1000 * cuts[49], 1),
            "order_ms_p99": round(1000 * cuts[98], 1),
            **({"failed": "; ".join(self.problems[:5])} if self.problems else {}),
        }

    def _wish(self) -> dict[str, Any]:
        begin = self._now if self._kind == "at-once" else self._now + dt.timedelta(days=1)
        band = "monitoring" if self._kind == "refused" else "production"
        return {
            "cell": CELL,
            "band": band,
            "amounts": CORE,
            "starts_at": begin,
            "ends_at": begin + dt.timedelta(days=7),
        }

    def _prepare(self) -> None:
        from quota import clock
        from quota.pricing.price_lists import quote_make

        self._results = [("", None)] * len(self.teams)
        if self._kind == "quoted":
            with clock.at(self._now):
                self._quotes = [quote_make(principal=self.sre, tenant=team, **self._wish()).pk for team in self.teams]

    def _buyer(self, number: int) -> None:
        from django.db import connection

        try:
            while True:
                self._gate.wait()
                if self._done:
                    return
                self._results[number] = self._attempt(number)
                self._gate.wait()
        except threading.BrokenBarrierError:
            self.problems.append(f"buyer {number} was left behind")
        finally:
            connection.close()

    def _attempt(self, number: int) -> tuple[str, Any]:
        from django.db import DatabaseError

        from quota import clock
        from quota.market.orders import order_cancel, order_place
        from quota.vocabulary.errors import Rejected

        quote = self._quotes[number] if self._kind == "quoted" else None
        began = time.monotonic()
        with clock.at(self._now):
            try:
                order = order_place(principal=self.sre, tenant=self.teams[number], quote=quote, **self._wish())
                if self._kind == "handed-round":
                    order_cancel(principal=self.sre, order=order)
                return ("won", order)
            except Rejected as refused:
                return (refused.code, None)
            except DatabaseError as error:
                return (f"{type(error).__name__}: {error}", None)
            finally:
                self.took_s.append(time.monotonic() - began)

    def _settle(self, number: int) -> int:
        """Check the results of a round, and end its orders so that the core is for sale again. Return the number of
        winners.
        """
        from quota import clock
        from quota.market.orders import order_cancel, order_reject
        from quota.models import OrderState

        here = f"round {number} ({self._kind})"
        strange = {code for code, _ in self._results} - {"won", "sold-out"}
        if strange:
            self.problems.append(f"{here}: {', '.join(sorted(strange))}")
        winners = [order for code, order in self._results if code == "won"]
        if not winners or (len(winners) > 1 and self._kind != "handed-round"):
            self.problems.append(f"{here}: {len(winners)} got the core")
        if (sold := _sold_milli(self._now)) > ROOM_MILLI * 95 // 100:
            self.problems.append(f"{here}: {sold} milli-cores are sold")
        expected = {
            "at-once": OrderState.ACTIVE,
            "tomorrow": OrderState.APPROVED,
            "quoted": OrderState.APPROVED,
            "refused": OrderState.PENDING,
            "handed-round": OrderState.CANCELLED,
        }[self._kind]
        with clock.at(self._now + dt.timedelta(seconds=1)):
            for order in winners:
                order.refresh_from_db()
                if order.state != expected.value:
                    self.problems.append(f"{here}: order {order.pk} is {order.state}")
                if self._kind == "refused":
                    order_reject(principal=self.sre, order=order, reason="the race goes on")
                elif self._kind != "handed-round":
                    order_cancel(principal=self.sre, order=order)
        return len(winners)

    def _check(self) -> None:
        """Check that no order is open, no credits are reserved, the ledger balances, and the core never had two
        owners."""
        from django.db.models import F, Sum

        from quota.billing.ledger_check import ledger_check
        from quota.models import Account, Order, OrderState, Record

        self.problems += ledger_check()
        # Records are in the order of commits. Between an order and its end, no other order may get the core.
        owner = None
        for kind, data in Record.objects.filter(kind__in=_CORE_MOVES).order_by("revision").values_list("kind", "data"):
            if kind == "order.placed" and owner is not None:
                self.problems.append(f"order {data['order']} was sold what order {owner} had")
            owner = data["order"] if kind == "order.placed" else None
        if stuck := Account.objects.filter(kind="held").exclude(balance=0).count():
            self.problems.append(f"{stuck} teams have something held")
        ended = [OrderState.CANCELLED.value, OrderState.REJECTED.value]
        if live := Order.objects.exclude(state__in=ended).count():
            self.problems.append(f"{live} orders are alive")
        spent = (
            Order.objects.filter(postings__kind="charge").aggregate(spent=Sum(F("price") - F("refunded")))["spent"] or 0
        )
        has = Account.objects.filter(kind="available").aggregate(has=Sum("balance"))["has"]
        if has != len(self.teams) * 10**12 - spent:
            self.problems.append(f"teams have {has} and spent {spent}")


def _sold_milli(now: dt.datetime) -> int:
    """Return the largest number of milli-cores that are sold at any moment from `now` on, according to the rows."""
    from quota.models import Order, OrderState, Quota

    waiting = [OrderState.PENDING.value, OrderState.APPROVED.value]
    spans = [
        *Quota.objects.filter(cell=CELL).values_list("starts_at", "grace_until", "amounts"),
        *Order.objects.filter(cell=CELL, state__in=waiting).values_list("starts_at", "grace_until", "amounts"),
    ]
    live = [(begin, end, amounts[0]) for begin, end, amounts in spans if end is None or end > now]
    return max(
        sum(milli for begin, end, milli in live if begin <= moment and (end is None or moment < end))
        for moment in {now, *(begin for begin, _, _ in live if begin > now)}
    )
