"""Tests of trial prices: what other prices would have meant for past orders and usage."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.admission import published_capacity
from quota.admission.band_changes import bands_ensure
from quota.models import Order, OrderState, PriceList, PriorityBand
from quota.pricing.price_lists import DEFAULT_BASE, DEFAULT_CURVE, price_list_at, quote_preview
from quota.pricing.what_if import what_if
from quota.vocabulary.errors import Forbidden, Rejected
from quota.vocabulary.permissions import Principal, Role, system
from tests.integration import rows
from tests.integration.money_rows import a_metered_hour

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
ME = system("test")
CORES = (8_000, 0, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def world():
    bands_ensure(principal=ME)
    published_capacity.publish(cell="cc", capacity=(10_000, 2**40, 0, 0, 0, 0), revision=1)
    with clock.at(NOON):
        yield


def ordered(
    tenant: str, band: str = "batch", *, days_ago: int = 1, state: OrderState = OrderState.EXPIRED, cell: str = "cc"
) -> Order:
    with clock.at(NOON - days_ago * DAY):
        quote = quote_preview(
            principal=ME,
            tenant=rows.a_tenant(tenant),
            cell="cc",
            band=band,
            amounts=CORES,
            starts_at=clock.now(),
            ends_at=clock.now() + DAY,
        )
        return Order.objects.create(
            tenant=rows.a_tenant(tenant),
            cell=cell,
            band=PriorityBand.objects.get(name=band),
            amounts=list(CORES),
            starts_at=clock.now(),
            ends_at=clock.now() + DAY,
            state=state.value,
            price=quote.price,
            parts=quote.parts,
            prices=quote.prices,
            placed_by="ann",
            created_at=clock.now(),
        )


def trial(**changed: object) -> dict:
    given: dict = {"principal": ME, "cell": "cc", "base": DEFAULT_BASE, "curve": DEFAULT_CURVE, **changed}
    return what_if(**given)


def test_orders_of_late_and_open_ones_are_priced_again_as_they_were() -> None:
    one = ordered("ubar")
    two = ordered("zoo", "production")
    old = ordered("zoo", days_ago=90, state=OrderState.ACTIVE)
    ordered("zoo", days_ago=31)
    ordered("zoo", state=OrderState.REJECTED)
    ordered("zoo", state=OrderState.CANCELLED)
    ordered("zoo", cell="dd")
    same = trial()
    assert same["orders"] == {
        "name": "",
        "count": 3,
        "before": sum(o.price for o in (one, two, old)),
        "after": same["orders"]["before"],
    }
    told = trial(base={"cpu": 3 * DEFAULT_BASE["cpu"]})
    # Each part is rounded up once, with old and with new prices.
    assert 0 <= 3 * told["orders"]["before"] - told["orders"]["after"] <= 3 * 2
    assert [(row["name"], row["count"], row["before"]) for row in told["by_tenant"]] == [
        ("zoo", 2, two.price + old.price),
        ("ubar", 1, one.price),
    ]
    assert {row["name"]: row["before"] for row in told["by_band"]} == {
        "production": two.price,
        "batch": one.price + old.price,
    }
    assert told["orders_cut"] is False


def test_another_curve_meets_the_share_that_was_sold_then() -> None:
    one = ordered("ubar", "production")  # 8 of 9.5 cores that may be sold
    flat = trial(curve=[])
    assert flat["orders"]["after"] == 24 * 8 * DEFAULT_BASE["cpu"] < one.price == flat["orders"]["before"]


def test_examples_tell_a_core_and_a_gib_empty_half_and_full() -> None:
    told = {
        (row["band"], row["resource"], row["sold_milli"]): (row["before"], row["after"])
        for row in trial(base={"cpu": 1_000_000}, curve=[[0, 1000], [1000, 5000]])["examples"]
    }
    assert len(told) == 4 * 2 * 3
    month, core = 720, DEFAULT_BASE["cpu"]
    assert told["production", "cpu", 0] == (month * core, month * 1_000_000)
    assert told["production", "cpu", 500] == (month * core, 3 * month * 1_000_000)
    assert told["batch", "cpu", 1000] == (month * core * 3 * 2 // 5, 2 * month * 1_000_000)
    assert told["production", "ram", 0] == (month * DEFAULT_BASE["ram"], 0)


def test_what_was_used_is_priced_too_and_the_free_priority_is_free() -> None:
    for band, hours_ago in (("batch", 5), (None, 5), ("batch", 24 * 31)):
        a_metered_hour(
            tenant=rows.a_tenant("ubar"),
            cell="cc",
            band=PriorityBand.objects.filter(name=band).first(),
            job_uid="0" * 32,
            job="web",
            hour=NOON - dt.timedelta(hours=hours_ago),
            limit=[0] * 6,
            reserved=[0] * 6,
            used=[3_600_000, 0, 0, 0, 0, 0],
            price=7,
        )
    told = trial(usage={"cpu": 10_000})
    assert told["usage"] == {"name": "", "count": 1, "before": 7, "after": 4_000}  # a core-hour at 0.4
    assert [row["name"] for row in (*told["usage_by_band"], *told["usage_by_tenant"])] == ["batch", "ubar"]


def test_a_trial_sets_nothing_and_needs_the_right_to_set_prices() -> None:
    price_list_at("cc", NOON)
    trial(base={"cpu": 5})
    assert PriceList.objects.count() == 1
    with pytest.raises(Forbidden):
        trial(principal=Principal(name="ann", roles={"ubar": Role.OWNER}))
    with pytest.raises(Rejected) as refused:
        trial(usage={"ports": 1})
    assert list(refused.value.fields) == ["usage.ports"]
