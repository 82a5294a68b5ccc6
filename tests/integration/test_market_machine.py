"""Tests of the whole market with random orders, decisions, losses of machines and waits.

After every step:

* Sold prod quota fits the capacity less the headroom at every instant, or a shortfall names the orders it touches.
* Each other band fits what may be sold of it.
* The ledger adds up to zero, and holds exactly the price of open orders.
* No team spends beyond its overdraft.
* Invoices equal the ledger.

The tests count from rows alone, by slow code of their own.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quota import clock
from quota.admission import published_capacity
from quota.admission.band_changes import bands_ensure
from quota.billing.budgets import budget_set
from quota.billing.invoices import invoices_close_due
from quota.billing.ledger import budget_grant
from quota.billing.ledger_check import ledger_check
from quota.market.order_sweep import orders_advance
from quota.market.orders import (
    order_approve,
    order_cancel,
    order_change,
    order_place,
    order_reject,
    order_renewal_set,
    order_transfer,
)
from quota.market.shortfalls import shortfalls_examine_all
from quota.models import (
    Account,
    ApprovalRule,
    CellCapacity,
    Invoice,
    LedgerEntry,
    Order,
    OrderState,
    PriorityBand,
    Quota,
    Quote,
    Shortfall,
    Tenant,
)
from quota.pricing.capacity_for_sale import market_set
from quota.pricing.price_lists import price_list_set, quote_make
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import CPU, NAMES, RAM, SIZE, Vector
from tests.examples import SEARCH, examples
from tests.integration.money_rows import invoice_check

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(600)]

SRE = system("sre")
BEGIN = dt.datetime(2027, 12, 28, 21, 30, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
CREDIT = 1_000_000
GIB = 2**30
ROOM: Vector = (10_000, 40 * GIB, 0, 0, 0, 0)
HEADROOM_MILLI = 50
TEAMS = {"poor": ("UTC", 0), "rich": ("America/New_York", 0), "deep": ("Pacific/Auckland", 40 * CREDIT)}
WAITING = (OrderState.PENDING.value, OrderState.APPROVED.value)

teams = st.sampled_from(sorted(TEAMS))
cores = st.sampled_from([100, 1_000, 3_000, 4_750, 6_000, 9_500])
gibs = st.sampled_from([0, 1, 2, 19])
which = st.integers(0, 30)


class Wish(NamedTuple):
    """A random order of a team. `lead` is the time until it begins, and `length` its duration, both in hours."""

    team: str
    cpu: int
    ram: int
    band: str
    lead: int
    length: int
    renew: bool


wishes = st.builds(
    Wish,
    teams,
    cores,
    gibs,
    st.sampled_from(["production", "production", "monitoring", "batch"]),
    st.sampled_from([0, 0, 5, 24, 24, 300]),
    st.sampled_from([1, 5, 24, 24, 72, 24 * 30]),
    st.booleans(),
)


class Held(NamedTuple):
    """An amount of quota that a grant or a waiting order takes from what is left to sell."""

    band: str
    order: int | None
    begins_at: dt.datetime
    ends_at: dt.datetime | None
    amounts: tuple[int, ...]
    replaces: int | None  # a waiting order counts only for what exceeds the grant of this order

    def at(self, moment: dt.datetime) -> bool:
        return self.begins_at <= moment and (self.ends_at is None or moment < self.ends_at)


# The number of each outcome over all examples.
outcomes: Counter[tuple[str, str]] = Counter()


class Market(RuleBasedStateMachine):
    """A small cell that sells, three teams in three time zones, an SRE who decides, and a clock that moves forward."""

    @initialize(wishes=st.lists(wishes, min_size=3, max_size=6))
    def begin(self, wishes: list[Wish]) -> None:
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.now = BEGIN
        self.revision = 1
        with self.time():
            bands_ensure(principal=SRE)
            published_capacity.publish(cell="cc", capacity=ROOM, revision=1)
            market_set(principal=SRE, cell="cc", headroom_milli=HEADROOM_MILLI, grace_hours=24)
            price_list_set(
                principal=SRE, cell="cc", base={"cpu": 10_007, "ram": 1_003}, curve=[[0, 1000], [1000, 3333]]
            )
            for name, (zone, overdraft) in TEAMS.items():
                team = Tenant.objects.create(name=name, time_zone=zone)
                budget_set(principal=SRE, tenant=team, overdraft=overdraft)
                budget_grant(principal=SRE, tenant=team, amount=(5 if name == "poor" else 900) * CREDIT)
            ApprovalRule.objects.filter(rank=100).update(most_price=CREDIT // 2)
        self.held_before: list[Held] = []
        self.place(wishes)

    def teardown(self) -> None:
        if hasattr(self, "atomic"):
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    @contextmanager
    def time(self) -> Iterator[None]:
        with clock.at(self.now):
            yield

    @contextmanager
    def step(self, what: str, *expected: str) -> Iterator[None]:
        """Run the block at the present time. A rejection undoes it, and must have one of the `expected` codes."""
        code = "done"
        with self.time():
            try:
                with transaction.atomic():
                    yield
            except Rejected as refused:
                code = refused.code
            shortfalls_examine_all()
        outcomes[what, code] += 1
        assert code in ("done", *expected)

    def order(self, number: int, *states: OrderState) -> Order | None:
        rows = Order.objects.select_related("tenant").filter(state__in=[state.value for state in states])
        ids = list(rows.order_by("id").values_list("id", flat=True))
        return rows.get(pk=ids[-1 - number % len(ids)]) if ids else None

    # -- what people do

    def wanted(self, wish: Wish) -> dict[str, Any]:
        begin = self.now + wish.lead * HOUR
        return {
            "tenant": Tenant.objects.get(name=wish.team),
            "cell": "cc",
            "band": wish.band,
            "amounts": (wish.cpu, wish.ram * GIB, 0, 0, 0, 3),
            "starts_at": begin,
            "ends_at": begin + wish.length * HOUR,
        }

    @rule(wishes=st.lists(wishes, min_size=1, max_size=3))
    def place(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            with self.step("place", "sold-out", "over-budget"):
                order_place(principal=SRE, renew=wish.renew, **self.wanted(wish))

    @rule(wish=wishes)
    def ask(self, wish: Wish) -> None:
        with self.step("ask"):
            quote_make(principal=SRE, **self.wanted(wish))

    @precondition(lambda self: Quote.objects.exists())
    @rule(number=which, late=st.sampled_from([False, False, True]))
    def take(self, number: int, late: bool) -> None:
        quotes = list(Quote.objects.order_by("-id").select_related("tenant", "band"))
        quote = quotes[number % len(quotes)]
        if late:
            self.wait(2, 0)  # longer than any quote is valid; then take the one that begins last
            quote = max(quotes, key=lambda quote: quote.starts_at)
        with self.step("take", "sold-out", "over-budget", "quote-expired", "quote-used", "invalid"):
            order = order_place(
                principal=SRE,
                tenant=quote.tenant,
                cell=quote.cell,
                band=quote.band.name,
                amounts=tuple(quote.amounts),
                starts_at=quote.starts_at,
                ends_at=quote.ends_at,
                quote=quote,
            )
            assert order.price == quote.price

    @rule(number=which, yes=st.sampled_from([True, True, False]))
    def decide(self, number: int, yes: bool) -> None:
        if order := self.order(number, OrderState.PENDING):
            with self.step("decide", "sold-out"):
                if yes:
                    order_approve(principal=SRE, order=order)
                else:
                    order_reject(principal=SRE, order=order, reason="no")

    @rule(number=which)
    def cancel(self, number: int) -> None:
        if order := self.order(number, *OrderState):
            with self.step("cancel", "order-state"):
                order_cancel(principal=SRE, order=order)

    @rule(number=which, cpu=cores, ram=gibs, longer=st.sampled_from([-30, -1, 0, 1, 48]), begin=st.booleans())
    def change(self, number: int, cpu: int, ram: int, longer: int, begin: bool) -> None:
        order = self.order(number, OrderState.PENDING, OrderState.APPROVED, OrderState.ACTIVE, OrderState.EXPIRED)
        if order is not None:
            starts_at = order.starts_at + 2 * HOUR if begin and order.state in WAITING else None
            with self.step("change", "sold-out", "over-budget", "order-state", "order-waits", "invalid"):
                order_change(
                    principal=SRE,
                    order=order,
                    amounts=(cpu, ram * GIB, 0, 0, 0, 0),
                    starts_at=starts_at,
                    ends_at=order.ends_at + longer * HOUR,
                )

    @rule(number=which, team=teams)
    def hand_on(self, number: int, team: str) -> None:
        if order := self.order(number, OrderState.PENDING, OrderState.APPROVED, OrderState.ACTIVE):
            # An order that replaces another counts beside it. After a transfer it needs capacity of its own.
            room = ["sold-out"] if order.replaces_id is not None else []
            with self.step("hand_on", "over-budget", "order-state", "order-waits", "invalid", *room):
                order_transfer(principal=SRE, order=order, tenant=Tenant.objects.get(name=team))

    @rule(number=which, renew=st.booleans())
    def renew(self, number: int, renew: bool) -> None:
        if order := self.order(number, OrderState.APPROVED, OrderState.ACTIVE):
            with self.step("renew"):
                order_renewal_set(principal=SRE, order=order, renew=renew)

    @rule(team=teams, amount=st.sampled_from([None, -1_000, -3, 1, 60]), dear=st.integers(0, 50_000))
    def fund_or_price(self, team: str, amount: int | None, dear: int) -> None:
        with self.step("fund_or_price", "over-budget"):
            if amount is not None:
                budget_grant(principal=SRE, tenant=Tenant.objects.get(name=team), amount=amount * CREDIT)
            else:
                price_list_set(
                    principal=SRE, cell="cc", base={"cpu": dear, "ram": 1_003}, curve=[[500, 1000], [900, 7777]]
                )

    # -- what happens by itself

    @rule(cpu=st.sampled_from([0, 3_000, 7_777, 10_000, 12_000]), ram=st.sampled_from([10, 40]))
    def machines_come_and_go(self, cpu: int, ram: int) -> None:
        self.revision += 1
        with self.step("machines_come_and_go"):
            published_capacity.publish(cell="cc", capacity=(cpu, ram * GIB, 0, 0, 0, 0), revision=self.revision)

    @rule(hours=st.sampled_from([1, 1, 6, 24, 24, 60, 170, 24 * 33]), minutes=st.sampled_from([0, 7]))
    def wait(self, hours: int, minutes: int) -> None:
        self.now += hours * HOUR + dt.timedelta(minutes=minutes)
        with self.step("wait"):
            while orders_advance():
                pass
            invoices_close_due()
            assert not Order.objects.filter(state=OrderState.ACTIVE.value, ends_at__lte=self.now).exists()
            assert not Order.objects.filter(state=OrderState.APPROVED.value, starts_at__lte=self.now).exists()

    # -- what must hold

    @invariant()
    def all_holds(self) -> None:
        if not hasattr(self, "atomic"):
            return
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as a commit would do, which never comes
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        held = self.held()
        self.check_sold(held)
        self.check_shortfalls(held)
        self.check_money()
        self.check_orders()
        self.held_before = held

    def held(self) -> list[Held]:
        grants = Quota.objects.filter(beyond_capacity=False).values_list(
            "band__name", "order_id", "starts_at", "ends_at", "grace_until", "amounts"
        )
        orders = Order.objects.filter(state__in=WAITING).values_list(
            "band__name", "id", "starts_at", "ends_at", "grace_until", "amounts", "replaces_id"
        )
        return [
            *(
                Held(band, order, begin, grace or end, tuple(amounts), None)
                for band, order, begin, end, grace, amounts in grants
            ),
            *(
                Held(band, order, begin, grace or end, tuple(amounts), old)
                for band, order, begin, end, grace, amounts, old in orders
            ),
        ]

    def instants(self, *held: list[Held]) -> list[dt.datetime]:
        edges = {edge for rows in held for row in rows for edge in (row.begins_at, row.ends_at) if edge}
        return sorted({self.now, *(edge for edge in edges if edge > self.now)})

    def sold(self, held: list[Held], names: set[str], moment: dt.datetime) -> list[int]:
        there = [row for row in held if row.band in names and row.at(moment)]
        granted = {row.order: row.amounts for row in held if row.replaces is None and row.order and row.at(moment)}
        total = [0] * SIZE
        for row in there:
            beside = granted.get(row.replaces, (0,) * SIZE) if row.replaces else (0,) * SIZE
            for index in range(SIZE):
                total[index] += max(0, row.amounts[index] - beside[index])
        return total

    def check_sold(self, held: list[Held]) -> None:
        """Check that no step sold beyond the limit. Quota beyond the limit, after machines left, must not grow."""
        has = CellCapacity.objects.get(cell="cc").capacity
        prod = {row.name for row in PriorityBand.objects.all() if row.prod}
        batch = PriorityBand.objects.get(name="batch")
        for names, milli in ((prod, 1000 - HEADROOM_MILLI), ({"batch"}, batch.oversell_milli)):
            for moment in self.instants(held, self.held_before):
                now, before = (self.sold(rows, names, moment) for rows in (held, self.held_before))
                for index in (CPU, RAM):
                    most = max(has[index] * milli // 1000, before[index])
                    assert now[index] <= most, (names, moment, NAMES[index], now[index], most)

    def check_shortfalls(self, held: list[Held]) -> None:
        """Check that each lack of prod quota is in an open shortfall with its orders, and that no other one is open."""
        has = CellCapacity.objects.get(cell="cc").capacity
        rows = list(Shortfall.objects.filter(closed_at=None))
        needed = set()
        for moment in self.instants(held):
            sold = self.sold(held, {"production", "monitoring"}, moment)
            short = [max(0, sold[index] - has[index]) if index in (CPU, RAM) else 0 for index in range(SIZE)]
            if not any(short):
                continue
            (row,) = (row for row in rows if row.begins_at <= moment and (row.ends_at is None or moment < row.ends_at))
            needed.add(row.pk)
            assert all(told >= missing for told, missing in zip(row.short, short, strict=True))
            touched = {
                one.order
                for one in held
                if one.band != "batch"
                and one.order
                and one.at(moment)
                and any(one.amounts[index] and short[index] for index in (CPU, RAM))
            }
            assert touched <= set(row.orders), (moment, touched, row.orders)
        assert {row.pk for row in rows} == needed

    def check_money(self) -> None:
        entries = LedgerEntry.objects.values_list(
            "posting_id",
            "account_id",
            "amount",
            "account__kind",
            "posting__order_id",
            "posting__tenant_id",
            "posting__occurred_at",
        )
        postings: Counter[int] = Counter()
        accounts: Counter[int] = Counter()
        held: Counter[int] = Counter()
        revenue: Counter[int] = Counter()
        months: dict[int, list[tuple[dt.datetime, int]]] = defaultdict(list)
        for posting, account, amount, kind, order, tenant, moment in entries:
            postings[posting] += amount
            accounts[account] += amount
            if kind == "held":
                held[order] += amount
            if kind == "revenue":
                revenue[order] += amount
                months[tenant].append((moment, amount))
        assert not any(postings.values())
        overdraft = {name: amount for name, (_, amount) in TEAMS.items()}
        balances = list(Account.objects.values_list("id", "balance", "kind", "tenant__name", "tenant_id"))
        assert sum(balance for _, balance, *_ in balances) == 0
        open_price: Counter[int] = Counter()
        for pk, state, price, refunded, tenant in Order.objects.values_list(
            "id", "state", "price", "refunded", "tenant_id"
        ):
            waits = state in WAITING
            assert held[pk] == (price if waits else 0), (pk, state)
            open_price[tenant] += price if waits else 0
            if state in (OrderState.ACTIVE.value, OrderState.EXPIRED.value):
                assert revenue[pk] == price - refunded, (pk, state)
            elif state != OrderState.CANCELLED.value:
                assert revenue[pk] == 0, (pk, state)
            assert 0 <= revenue[pk] <= price, (pk, state)
        for pk, balance, kind, name, tenant in balances:
            assert balance == accounts[pk], (kind, name)
            if kind == "available":
                assert balance >= -overdraft[name], name
            if kind == "held":
                assert balance == open_price[tenant], name
        for invoice in Invoice.objects.all():
            in_month = [
                amount for moment, amount in months[invoice.tenant_id] if invoice.begins_at <= moment < invoice.ends_at
            ]
            assert invoice.total == sum(in_month), invoice
            assert invoice.charged == sum(amount for amount in in_month if amount > 0), invoice
            assert invoice_check(invoice) == []
        assert ledger_check() == []

    def check_orders(self) -> None:
        """Check that an active order has its grant until its end, and that grants of cancelled orders have ended."""
        grants = defaultdict(list)
        for order, end, grace, amounts in Quota.objects.values_list("order_id", "ends_at", "grace_until", "amounts"):
            grants[order].append((end, grace, amounts))
        for pk, state, end, amounts, ended in Order.objects.values_list(
            "id", "state", "ends_at", "amounts", "ended_at"
        ):
            if state == OrderState.ACTIVE.value:
                ((until, grace, granted),) = grants[pk]
                assert (until, granted) == (end, amounts), pk
                assert grace >= until, pk
            elif state in (*WAITING, OrderState.REJECTED.value):
                assert grants[pk] == [], pk
            elif state == OrderState.CANCELLED.value:
                assert all(grace <= ended + dt.timedelta(seconds=1) for _, grace, _ in grants[pk]), pk


def test_the_market_keeps_its_promises_whatever_happens() -> None:
    outcomes.clear()
    run_state_machine_as_test(
        Market,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=30,
            deadline=None,
            derandomize=not SEARCH,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    # The examples contain each end of an order, rejections for lack of capacity and money, and lost machines.
    assert {what for what, code in outcomes if code == "done"} >= {
        "ask",
        "cancel",
        "change",
        "decide",
        "fund_or_price",
        "hand_on",
        "machines_come_and_go",
        "place",
        "renew",
        "wait",
    }
    assert {("place", "sold-out"), ("place", "over-budget")} <= outcomes.keys()
