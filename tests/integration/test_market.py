"""Tests of the quota that is left to sell, computed from rows: per band, with grace periods and pending changes."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota import clock
from quota.admission import band_changes
from quota.api.market import CalendarDaySerializer
from quota.models import ApprovalRule, CellCapacity, Market, Order, OrderState, PriorityBand, Quota, Tenant
from quota.pricing import capacity_for_sale
from quota.pricing.price_lists import price_list_at
from quota.request_cache import reads_once
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal, system
from quota.vocabulary.resources import ZERO, Vector

pytestmark = pytest.mark.django_db

ME = system("test")
NOW = dt.datetime(2027, 1, 4, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
BIG = 2**63 - 1


def vector(cpu: int = 0, ram: int = 0) -> Vector:
    return (cpu, ram, 0, 0, 0, 0)


@pytest.fixture
def cell() -> str:
    band_changes.bands_ensure(principal=ME)
    CellCapacity.objects.create(cell="cc", capacity=[1000, 1000, 0, 0, 0, 50], revision=1)
    Market.objects.create(cell="cc", headroom_milli=100)
    return "cc"


def sold(
    band: str, amounts: Vector, begin: int = 0, end: int | None = 10, grace: int | None = None, **more: Any
) -> Quota:
    """Grant quota of a band to tenant ubar.

    `begin`, `end` (None: for ever) and `grace` (until when it counts as sold; None: `end`) are days from NOW.
    """
    until = None if end is None else NOW + end * DAY
    return Quota.objects.create(
        tenant=Tenant.objects.get_or_create(name="ubar")[0],
        cell="cc",
        band=PriorityBand.objects.get(name=band),
        amounts=list(amounts),
        starts_at=NOW + begin * DAY,
        ends_at=until,
        grace_until=until if grace is None else NOW + grace * DAY,
        **more,
    )


def ordered(
    band: str, amounts: Vector, begin: int, end: int, state: OrderState = OrderState.PENDING, **more: Any
) -> Order:
    return Order.objects.create(
        tenant=Tenant.objects.get_or_create(name="ubar")[0],
        cell="cc",
        band=PriorityBand.objects.get(name=band),
        amounts=list(amounts),
        starts_at=NOW + begin * DAY,
        ends_at=NOW + end * DAY,
        state=state.value,
        price=0,
        prices=price_list_at("cc", NOW),
        placed_by="test",
        created_at=NOW,
        **more,
    )


def left(band: str, begin: int, end: int | None) -> int:
    """Return how many milli-cores of a band are left to sell from `begin` to `end`, in days from NOW."""
    until = None if end is None else NOW + end * DAY
    return capacity_for_sale.availability("cc", band, NOW + begin * DAY, until)[0]


def test_prod_bands_share_the_capacity_less_the_headroom(cell: str) -> None:
    sold("production", vector(500))
    sold("monitoring", vector(300), 5, 8)
    assert [left("production", 0, 5), left("production", 0, 6), left("monitoring", 8, 10)] == [400, 100, 400]
    assert left("production", 10, None) == 900


def test_other_bands_have_the_capacity_times_their_factor(cell: str) -> None:
    PriorityBand.objects.filter(name="batch").update(oversell_milli=1500)
    PriorityBand.objects.filter(name="best-effort").update(oversell_milli=1000)
    sold("batch", vector(1200))
    sold("production", vector(900))
    assert left("batch", 0, 10) == 300
    assert left("best-effort", 0, 10) == 1000


def test_a_prod_band_may_have_a_share_of_its_own(cell: str) -> None:
    PriorityBand.objects.filter(name="monitoring").update(oversell_milli=200)
    sold("monitoring", vector(150))
    assert [left("monitoring", 0, 1), left("production", 0, 1)] == [50, 750]
    sold("production", vector(740))
    assert left("monitoring", 0, 1) == 10


def test_grants_count_through_their_grace_and_for_ever_when_open(cell: str) -> None:
    sold("production", vector(500), 0, 10, grace=13)
    sold("production", vector(100), 20, None)
    assert [left("production", 12, 14), left("production", 13, 20), left("production", 30, 31)] == [400, 900, 800]
    assert left("production", 13, None) == 800


def test_grants_beyond_capacity_are_left_out(cell: str) -> None:
    sold("production", vector(10**9), beyond_capacity=True)
    assert left("production", 0, 1) == 900


def test_orders_hold_what_they_wait_for(cell: str) -> None:
    ordered("production", vector(100), 0, 5)
    ordered("production", vector(200), 2, 5, OrderState.APPROVED, grace_until=NOW + 6 * DAY)
    for state in (OrderState.ACTIVE, OrderState.EXPIRED, OrderState.REJECTED, OrderState.CANCELLED):
        ordered("production", vector(300), 0, 5, state)
    assert [left("production", 0, 1), left("production", 2, 3), left("production", 5, 6)] == [800, 600, 700]


def test_an_order_that_replaces_counts_only_for_what_it_asks_beyond(cell: str) -> None:
    old = ordered("production", vector(300, 500), 0, 10, OrderState.ACTIVE)
    sold("production", vector(300, 500), 0, 10, grace=12, order=old)
    ordered("production", vector(400, 100), 1, 20, replaces=old, replaced_as="change")
    week = NOW + 5 * DAY
    assert capacity_for_sale.availability("cc", "production", week, week + DAY)[:2] == (500, 400)
    assert capacity_for_sale.availability("cc", "production", NOW + 12 * DAY, NOW + 13 * DAY)[:2] == (500, 800)
    assert left("production", 0, 1) == 600


def test_ports_and_resources_that_a_cell_lacks_are_not_there_to_buy(cell: str) -> None:
    assert capacity_for_sale.availability("cc", "production", NOW, None) == (900, 900, 0, 0, 0, 0)
    assert capacity_for_sale.availability("nowhere", "production", NOW, None) == ZERO


def test_sums_past_64_bits_stay_exact(cell: str) -> None:
    CellCapacity.objects.update(capacity=[BIG, 1000, 0, 0, 0, 0])
    for _ in range(3):
        sold("production", vector(BIG))
    assert left("production", 0, 1) == BIG * 9 // 10 - 3 * BIG


def test_days_are_the_tenants_and_show_the_least_that_is_left(cell: str) -> None:
    sold("production", vector(400), 1, 2)
    zone = ZoneInfo("America/New_York")
    days = capacity_for_sale.calendar_days("cc", "production", dt.date(2027, 1, 3), 4, zone)
    assert [(day.date.day, day.left[0]) for day in days] == [(3, 900), (4, 500), (5, 500), (6, 900)]
    left = CalendarDaySerializer(days[0]).data["left"]
    assert left == {"cpu": 900, "ram": 900, "disk": 0, "disk_bandwidth": 0, "accelerators": 0}


def test_the_first_free_date_is_the_first_from_which_it_fits_throughout(cell: str) -> None:
    sold("production", vector(800), 0, 3)
    sold("production", vector(800), 5, 9)
    first = capacity_for_sale.earliest_start("cc", "production", vector(200), 2 * DAY, NOW)
    assert first == NOW + 3 * DAY
    assert capacity_for_sale.earliest_start("cc", "production", vector(200), 3 * DAY, NOW) == NOW + 9 * DAY
    assert capacity_for_sale.earliest_start("cc", "production", vector(100), None, NOW) == NOW
    assert capacity_for_sale.earliest_start("cc", "production", vector(901), DAY, NOW) is None


def test_a_page_reads_what_is_sold_once_and_cuts_all_periods_from_it(cell: str) -> None:
    sold("production", vector(100), -5, 2)
    sold("production", vector(200), 1, None)
    sold("batch", vector(300), -9, -1, grace=3)
    old = ordered("production", vector(30), 2, 8, OrderState.ACTIVE)
    sold("production", vector(30), 2, 8, grace=9, order=old)
    ordered("production", vector(50), 3, 12, replaces=old, replaced_as="change")
    periods = [(band, a, b) for band in ("production", "batch") for a in (-8, 0, 1, 2, 9) for b in (3, 10, None)]
    periods = [(band, a, b) for band, a, b in periods if b is None or a < b]
    apart = [left(*one) for one in periods]
    with reads_once(), CaptureQueriesContext(connection) as queries:
        assert [left(*one) for one in periods] == apart
    reads = [query["sql"] for query in queries if "FROM quota_quota WHERE" in query["sql"]]
    assert len(reads) < len({(a, b) for _, a, b in periods})


@pytest.mark.parametrize("rows", [3, 300])
def test_it_takes_as_many_queries_however_much_is_sold(cell: str, rows: int) -> None:
    row = PriorityBand.objects.get(name="production")
    tenant = Tenant.objects.create(name="ubar")
    Quota.objects.bulk_create(
        Quota(
            tenant=tenant,
            cell="cc",
            band=row,
            amounts=list(vector(1)),
            starts_at=NOW + n * HOUR,
            ends_at=NOW + (n + 24) * HOUR,
            grace_until=NOW + (n + 24) * HOUR,
        )
        for n in range(rows)
    )
    with CaptureQueriesContext(connection) as queries:
        capacity_for_sale.availability("cc", "production", NOW, NOW + 10 * DAY)
    assert len(queries) == 5


def test_the_first_market_makes_the_rules_of_approval_once(cell: str) -> None:
    Market.objects.all().delete()
    capacity_for_sale.market_of("cc")
    assert [rule.approver for rule in ApprovalRule.objects.all()] == ["auto", "owner", "sre"]
    ApprovalRule.objects.all().delete()
    capacity_for_sale.market_of("dd")
    assert not ApprovalRule.objects.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("headroom_milli", 1001),
        ("grace_hours", -1),
        ("longest_days", 0),
        ("quote_minutes", True),
        ("selling", 1),
        ("after_grace", "kill"),
        ("tax", 3),
    ],
)
def test_rules_out_of_range_are_refused_by_name(cell: str, name: str, value: Any) -> None:
    with pytest.raises(Rejected) as refused:
        capacity_for_sale.market_set(principal=ME, cell="cc", **{name: value})
    assert list(refused.value.fields) == [name]


def test_only_an_sre_sets_rules(cell: str) -> None:
    with pytest.raises(Rejected, match="may not use actions of SREs; ask an SRE"):
        capacity_for_sale.market_set(principal=Principal("ann"), cell="cc", selling=False)
    assert capacity_for_sale.market_set(principal=ME, cell="cc", selling=False, grace_hours=1).grace_hours == 1
    with clock.at(NOW):
        assert not capacity_for_sale.market_of("cc").selling
