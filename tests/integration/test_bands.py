"""Tests of priority bands: what they cost, how far they are oversold, and who is notified of a change."""

from __future__ import annotations

import datetime as dt

import pytest
from django.apps import apps
from django.utils.module_loading import import_string

from quota import clock
from quota.admission.band_changes import band_set, bands_ensure
from quota.models import Notice, PriorityBand, Quota, Record
from quota.vocabulary.bands import BATCH, DEFAULT_FACTORS, PRODUCTION
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import Principal, Role, system
from tests.integration import rows

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)
ME = system("test")
CORE = [1000, 0, 0, 0, 0, 0]


@pytest.fixture(autouse=True)
def noon():
    with clock.at(NOON):
        yield


def factors() -> dict[str, tuple[int, int]]:
    return {row.name: (row.price_milli, row.oversell_milli) for row in PriorityBand.objects.all()}


def test_the_bands_of_the_paper_come_with_what_they_cost() -> None:
    bands_ensure(principal=ME)
    assert factors() == DEFAULT_FACTORS
    band_set(principal=ME, band=BATCH, price_milli=300)
    bands_ensure(principal=ME)
    assert factors() == {**DEFAULT_FACTORS, "batch": (300, 1500)}


def test_bands_from_before_the_market_get_the_same_prices_where_nobody_has_set_any() -> None:
    rows.a_cell()
    PriorityBand.objects.filter(name="batch").update(price_milli=700)
    migration = "quota.migrations.0006_the_bands_of_the_paper_have_prices.set_factors"
    with_schema = type("Editor", (), {"connection": type("Connection", (), {"alias": "default"})})
    import_string(migration)(apps, with_schema)
    assert factors() == {**DEFAULT_FACTORS, "batch": (700, 1000)}


def test_factors_that_are_not_given_stay() -> None:
    band_set(principal=ME, band=BATCH, price_milli=5, oversell_milli=6000)
    row = band_set(principal=ME, band=BATCH._replace(low=101), oversell_milli=0)
    assert (row.low, row.price_milli, row.oversell_milli) == (101, 5, 0)
    assert Record.objects.filter(kind="band.set").latest("revision").data["oversell_milli"] == 0


@pytest.mark.parametrize(
    "given, code, field",
    [
        ({"band": PRODUCTION, "oversell_milli": 1001}, "prod-oversold", "oversell_milli"),
        ({"band": BATCH._replace(prod=True)}, "prod-oversold", "oversell_milli"),
        ({"band": BATCH, "price_milli": -1}, "invalid", "price_milli"),
        ({"band": BATCH, "price_milli": 10**6 + 1}, "invalid", "price_milli"),
        ({"band": BATCH, "oversell_milli": 2**63}, "invalid", "oversell_milli"),
        ({"band": BATCH._replace(low=120)}, "invalid", "low"),
    ],
    ids=["prod", "turned-prod", "negative", "dear", "wide", "backward"],
)
def test_what_a_band_can_not_be_is_refused_by_its_field(given, code, field) -> None:
    bands_ensure(principal=ME)
    before = (factors(), Record.objects.count())
    with pytest.raises(Rejected) as refused:
        band_set(principal=ME, **given)
    assert (refused.value.code, list(refused.value.fields)) == (code, [field])
    assert (factors(), Record.objects.count()) == before


def test_bands_never_overlap_and_only_sres_set_them() -> None:
    bands_ensure(principal=ME)
    with pytest.raises(Conflict, match="overlap"):
        band_set(principal=ME, band=BATCH._replace(low=90))
    with pytest.raises(Forbidden):
        band_set(principal=Principal(name="ann", roles={"ubar": Role.OWNER}), band=BATCH)


def test_owners_of_quota_of_a_band_are_notified_of_its_change() -> None:
    bands_ensure(principal=ME)
    batch = PriorityBand.objects.get(name="batch")
    for name, ended in (("owns", None), ("owned", NOON), ("other", None)):
        band = batch if name != "other" else PriorityBand.objects.get(name="production")
        Quota.objects.create(
            tenant=rows.a_tenant(name),
            cell="cc",
            band=band,
            amounts=CORE,
            starts_at=NOON - dt.timedelta(days=9),
            ends_at=ended,
            grace_until=ended,
        )
    band_set(principal=ME, band=BATCH)
    assert not Notice.objects.exists()  # nothing has changed
    band_set(principal=ME, band=BATCH, price_milli=250)
    (notice,) = Notice.objects.filter(kind="band.changed")
    assert (notice.tenant.name, notice.data["price_milli"]) == ("owns", 250)
    assert "0.25 times the base price" in notice.text
