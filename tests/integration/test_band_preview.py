"""Tests of the preview of a change of a priority band, which shows the effects before the change is made."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.admission import published_capacity
from quota.admission.band_changes import bands_ensure
from quota.models import Order, OrderState, PriorityBand, Quota, QuotaUse, Tenant
from quota.pricing.band_preview import band_preview
from quota.pricing.price_lists import price_list_at
from quota.vocabulary.bands import BATCH, BEST_EFFORT, PRODUCTION
from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Principal, Role, system
from tests.integration import rows

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
ME = system("test")


@pytest.fixture(autouse=True)
def world():
    bands_ensure(principal=ME)
    published_capacity.publish(cell="cc", capacity=(10_000, 2**30, 0, 0, 0, 0), revision=1)
    with clock.at(NOON):
        yield


def given(tenant: str, milli: int, begin: int = 0, end: int | None = None, *, band: str = "batch") -> Quota:
    ends_at = None if end is None else NOON + end * DAY
    return Quota.objects.create(
        tenant=rows.a_tenant(tenant),
        cell="cc",
        band=PriorityBand.objects.get(name=band),
        amounts=[milli, 0, 0, 0, 0, 0],
        starts_at=NOON + begin * DAY,
        ends_at=ends_at,
        grace_until=ends_at,
    )


def ordered(tenant: str, milli: int, begin: int, end: int, *, state: OrderState = OrderState.PENDING) -> Order:
    return Order.objects.create(
        tenant=rows.a_tenant(tenant),
        cell="cc",
        band=PriorityBand.objects.get(name="batch"),
        amounts=[milli, 0, 0, 0, 0, 0],
        starts_at=NOON + begin * DAY,
        ends_at=NOON + end * DAY,
        state=state.value,
        price=1,
        prices=price_list_at("cc", NOON),
        placed_by="ann",
        created_at=NOON,
    )


def test_less_overselling_tells_what_would_be_over_sold_from_when_and_whose_it_is() -> None:
    early = given("early", 9_000, 0, 5)
    order = ordered("late", 4_000, 3, 9)
    ordered("never", 8_000, 0, 9, state=OrderState.REJECTED)
    given("other", 9_000, band="best-effort")
    told = band_preview(principal=ME, band=BATCH, oversell_milli=1_000)
    assert told["changes"] == {"oversell_milli": [1_500, 1_000]}
    (cell,) = told["cells"]
    assert (cell["sold"]["cpu"], cell["sellable_before"]["cpu"], cell["sellable_after"]["cpu"]) == (
        13_000,
        15_000,
        10_000,
    )
    (over,) = cell["over"]
    assert (over["begins_at"], over["ends_at"]) == ((NOON + 3 * DAY).isoformat(), (NOON + 5 * DAY).isoformat())
    assert over["short"]["cpu"] == 3_000
    assert (over["orders"], over["grants"], over["tenants"]) == ([order.pk], [early.pk], ["early", "late"])
    assert told["leaving"] == []


def test_a_change_that_takes_nothing_away_says_so() -> None:
    given("early", 9_000)
    told = band_preview(principal=ME, band=BATCH, price_milli=500)
    assert told["changes"] == {"price_milli": [400, 500]}
    assert told["cells"][0]["over"] == told["leaving"] == []


def test_a_band_that_becomes_prod_is_counted_with_prod() -> None:
    given("web", 8_000, band="production")
    given("sums", 3_000)
    told = band_preview(principal=ME, band=BATCH._replace(prod=True), oversell_milli=1_000)
    (over,) = told["cells"][0]["over"]
    assert over["ends_at"] is None
    assert over["short"]["cpu"] == 11_000 - 9_500
    assert over["tenants"] == ["sums", "web"]


def test_a_prod_band_held_below_what_it_has_sold_names_its_own_alone() -> None:
    given("web", 4_000, band="production")
    given("watch", 1_000, band="monitoring")
    told = band_preview(principal=ME, band=PRODUCTION, oversell_milli=300)
    (over,) = told["cells"][0]["over"]
    assert (over["short"]["cpu"], over["tenants"]) == (1_000, ["web"])


def test_a_narrower_range_tells_which_live_jobs_it_may_lose() -> None:
    for tenant, used in (("busy", [500, 0, 0, 0, 0, 0]), ("idle", [0] * 6)):
        QuotaUse.objects.create(
            tenant=rows.a_tenant(tenant), cell="cc", band=PriorityBand.objects.get(name="batch"), used=used
        )
    told = band_preview(principal=ME, band=BATCH._replace(low=105))
    assert [(row["tenant"], row["in_use"]["cpu"]) for row in told["leaving"]] == [("busy", 500)]
    assert band_preview(principal=ME, band=BATCH)["leaving"] == []


def test_a_new_band_has_sold_nothing() -> None:
    PriorityBand.objects.filter(name="best-effort").update(low=50)
    told = band_preview(principal=ME, band=BEST_EFFORT._replace(name="scavenger", low=0, high=49))
    assert told["changes"]["low"] == [None, 0]
    assert told["cells"][0]["over"] == []
    assert not PriorityBand.objects.filter(name="scavenger").exists()


def test_only_who_runs_the_platform_looks_and_queries_do_not_grow_with_rows(django_assert_max_num_queries) -> None:
    with pytest.raises(Forbidden):
        band_preview(principal=Principal(name="ann", roles={"ubar": Role.OWNER}), band=BATCH)
    for number in range(30):
        given(f"t{number}", 1_000, number, number + 1 + number % 3)
    band_preview(principal=ME, band=BATCH)  # this call creates the market of the cell
    with django_assert_max_num_queries(13):
        told = band_preview(principal=ME, band=BATCH, oversell_milli=100)
    assert len({name for over in told["cells"][0]["over"] for name in over["tenants"]}) > 20
    assert Tenant.objects.count() == 30
