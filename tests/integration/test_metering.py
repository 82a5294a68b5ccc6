"""Tests of metered usage on real PostgreSQL: reported late or twice, but charged once, in the tenant's days."""

from __future__ import annotations

import datetime as dt
import threading
from zoneinfo import ZoneInfoNotFoundError

import pytest
from django.db import DatabaseError, connection
from hypothesis import given
from hypothesis import strategies as st

from quota import clock
from quota.admission.suggested_quota import usage_of
from quota.billing import ledger
from quota.billing.ledger_check import ledger_check
from quota.billing.metering import MeteredRow, meter, usage_charge, usage_price
from quota.billing.planning import hours_of
from quota.models import LedgerEntry, MeteredHour, Posting, metered_months
from quota.vocabulary.errors import Rejected
from tests.integration import money_rows as market
from tests.integration import rows

pytestmark = pytest.mark.django_db
CORE_HOUR = (1000 * 3600, 0, 0, 0, 0, 0)
NONE = (0,) * 6
NOON = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def _balanced():
    rows.a_cell()
    market.a_price_list(usage={"cpu": 100})
    yield
    assert ledger_check() == []


def row(tenant, *, job="web", band="production", used=CORE_HOUR, uid="1" * 32) -> MeteredRow:
    return MeteredRow(tenant.pk, band, uid, job, {"app": "shop"}, CORE_HOUR, CORE_HOUR, used)


def charge(moment) -> list[Posting]:
    with clock.at(moment):
        return usage_charge()


def test_usage_is_priced_by_tariff_and_band_and_charged_the_day_after() -> None:
    tenant = market.funded(amount=1000)
    meter(cell="cc", hour=NOON, rows=[row(tenant), row(tenant, band="", uid="2" * 32)])
    assert charge(NOON + HOUR) == []
    assert charge(NOON.replace(hour=0) + DAY + HOUR) == [], "reports of the last hour may still come"
    (posting,) = charge(NOON + DAY)
    price = 100 * MeteredHour.objects.get(band__name="production").band.price_milli // 1000
    assert ledger.balance_of(tenant).available == 1000 - price
    assert posting.occurred_at == dt.datetime(2026, 3, 10, 23, 59, 59, 999999, tzinfo=dt.UTC)
    assert set(MeteredHour.objects.values_list("band__name", "price", "posting")) == {
        ("production", price, posting.pk),
        (None, 0, None),
    }
    assert charge(NOON + DAY) == charge(NOON + 2 * DAY) == []


def test_a_repeated_report_replaces_until_it_is_charged_and_never_after() -> None:
    tenant = market.funded(amount=10_000)
    meter(cell="cc", hour=NOON, rows=[row(tenant)])
    twice = tuple(2 * value for value in CORE_HOUR)
    assert meter(cell="cc", hour=NOON, rows=[row(tenant, used=CORE_HOUR), row(tenant, used=twice)]) == 1
    assert tuple(MeteredHour.objects.get().used) == twice
    charge(NOON + DAY)
    left = ledger.balance_of(tenant)
    assert meter(cell="cc", hour=NOON, rows=[row(tenant)]) == 0
    assert charge(NOON + 2 * DAY) == []
    assert (ledger.balance_of(tenant), tuple(MeteredHour.objects.get().used)) == (left, twice)


def test_what_is_reported_late_is_charged_with_the_next_day() -> None:
    tenant = market.funded(amount=10_000)
    meter(cell="cc", hour=NOON, rows=[row(tenant)])
    charge(NOON + DAY)
    meter(cell="cc", hour=NOON - HOUR, rows=[row(tenant)])
    assert charge(NOON + DAY + HOUR) == []
    assert len(charge(NOON + 2 * DAY)) == 1
    assert Posting.objects.filter(kind="usage").count() == 2


def test_after_an_outage_each_month_gets_what_is_its_own() -> None:
    tenant = market.funded(amount=10_000)
    tenant.time_zone = "Europe/Berlin"
    tenant.save()
    end_of_march = dt.datetime(2026, 3, 31, 22, tzinfo=dt.UTC)  # summer time: April begins now
    for hour in (end_of_march - HOUR, end_of_march):
        meter(cell="cc", hour=hour, rows=[row(tenant)])
    march, april = charge(end_of_march + 3 * DAY + 3 * HOUR)
    assert march.occurred_at == end_of_march - dt.timedelta(microseconds=1)
    assert april.occurred_at == end_of_march + 3 * DAY - dt.timedelta(microseconds=1)


def test_usage_beyond_the_budget_is_owed() -> None:
    tenant = market.funded(amount=30)
    meter(cell="cc", hour=NOON, rows=[row(tenant)])
    (posting,) = charge(NOON + DAY)
    has = ledger.balance_of(tenant)
    assert (has.available, has.owed) == (0, 30 - LedgerEntry.objects.get(posting=posting, amount__gt=0).amount)
    assert has.owed < 0


def test_a_tenant_that_can_not_be_charged_does_not_keep_the_others() -> None:
    first, second = market.funded("broken", amount=1000), market.funded("sound", amount=1000)
    for number, tenant in enumerate((first, second)):
        meter(cell="cc", hour=NOON, rows=[row(tenant, uid=f"{number}" * 32)])
    type(first).objects.filter(pk=first.pk).update(time_zone="Nowhere/At-All")
    with pytest.raises(ZoneInfoNotFoundError):
        charge(NOON + DAY)
    assert [posting.tenant_id for posting in Posting.objects.filter(kind="usage")] == [second.pk]


def test_without_a_usage_price_nothing_is_charged() -> None:
    tenant = market.funded()
    market.a_price_list("dd")
    meter(cell="dd", hour=NOON, rows=[row(tenant)])
    assert charge(NOON + DAY) == []


def test_sums_beyond_64_bits_are_kept_shown_and_priced_exactly() -> None:
    tenant = market.funded()
    hours = NOON, NOON + HOUR
    for hour in hours:
        meter(cell="cc", hour=hour, rows=[row(tenant, used=(3600, 3600 * 2**60, 0, 0, 0, 0))])
    found = MeteredHour.objects.first()
    assert found.used[1] == 3600 * 2**60
    assert found.price == 100 * found.band.price_milli // 1_000_000
    with clock.at(NOON + 2 * HOUR):
        ram = usage_of(market.ME, tenant, cell="cc", band="production", days=1).resources[1]
        with hours_of(market.ME, tenant, since=NOON, until=NOON + 2 * HOUR) as metered:
            (step,) = metered.planned("cc", found.band, step=2 * HOUR)
    assert (ram.name, ram.used_max, step.used[1]) == ("ram", 2**60, 2**60)


@pytest.mark.parametrize(
    "hour, change, field",
    [
        (NOON.replace(minute=1), {}, "hour"),
        (NOON.replace(tzinfo=None), {}, "hour"),
        (NOON, {"band": "gold"}, "band"),
        (NOON, {"used": (-1, 0, 0, 0, 0, 0)}, "rows.0"),
        (NOON, {"used": (2**90, 0, 0, 0, 0, 0)}, "rows.0"),
        (NOON, {"used": (0, 10**30, 0, 0, 0, 0)}, "rows.0"),
    ],
    ids=["minute", "naive", "band", "negative", "too-dear", "too-large"],
)
def test_a_bad_report_is_refused_whole(hour, change, field) -> None:
    tenant = market.funded()
    with pytest.raises(Rejected) as refused:
        meter(cell="cc", hour=hour, rows=[row(tenant, **change)])
    assert field in refused.value.fields
    assert not MeteredHour.objects.exists()


def test_queries_do_not_grow_with_rows(django_assert_max_num_queries) -> None:
    tenant = market.funded()
    given = [row(tenant, uid=f"{n:032x}") for n in range(300)]
    metered_months.ensure(NOON)
    with clock.at(NOON + HOUR), django_assert_max_num_queries(5):
        assert meter(cell="cc", hour=NOON, rows=given) == 300


@pytest.mark.django_db(transaction=True)
def test_usage_charged_by_many_at_once_while_it_is_reported_again_is_charged_once() -> None:
    tenant = market.funded(amount=10**9)
    given = [row(tenant, uid=f"{n:032x}") for n in range(50)]
    meter(cell="cc", hour=NOON, rows=given)
    wrong: list[Exception] = []

    def run(what) -> None:
        try:
            what()
        except (DatabaseError, Rejected) as error:
            wrong.append(error)
        finally:
            connection.close()

    def report() -> None:
        meter(cell="cc", hour=NOON, rows=given)

    threads = [threading.Thread(target=run, args=(what,)) for what in [lambda: charge(NOON + DAY), report] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    posting = Posting.objects.get(kind="usage")
    assert MeteredHour.objects.filter(posting=posting).count() == 50
    assert sum(MeteredHour.objects.values_list("price", flat=True)) == 10**9 - ledger.balance_of(tenant).available


@given(st.lists(st.integers(0, 2**80), min_size=6, max_size=6), st.integers(0, 10**15), st.integers(0, 10**6))
def test_a_price_is_never_more_than_what_was_used_and_less_than_one_micro_credit_below(used, price, milli) -> None:
    charged = usage_price(used, {"cpu": price}, milli)
    assert 0 <= used[0] * price * milli - charged * 3_600_000_000 < 3_600_000_000
