"""Tests of costs on real PostgreSQL: each micro-credit paid belongs to a job, or to quota that no job asked for."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.api.money import CostSerializer
from quota.billing.costs import Cost, costs
from quota.billing.metering import MeteredRow, meter
from quota.models import Order, Quota
from quota.vocabulary.errors import Rejected
from tests.integration import money_rows as market
from tests.integration import rows

pytestmark = pytest.mark.django_db
BEGIN = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
TEN_CORES = (10_000, 0, 0, 0, 0, 0)


@pytest.fixture
def tenant():
    rows.a_cell()
    market.a_price_list(usage={"cpu": 1000})
    with clock.at(BEGIN - DAY):
        return market.funded(amount=10**15)


def bought(tenant, price: int, *, amounts=TEN_CORES, days: int = 1, parts=None, band="production") -> Order:
    order = market.charged(tenant, price, amounts=amounts, days=days, begin=BEGIN, band=band)
    Order.objects.filter(pk=order.pk).update(parts=parts or [{"resource": "cpu", "amount": price}])
    Quota.objects.create(
        tenant=tenant,
        cell="cc",
        band=order.band,
        amounts=list(amounts),
        starts_at=order.starts_at,
        ends_at=order.ends_at,
        grace_until=order.ends_at,
        order=order,
    )
    return order


def ran(tenant, job: str, milli: int, *, hours=range(24), labels=None, used: int = 0, band="production") -> None:
    """Report metered hours of a job that asked for `milli` and used `used` milli-cores in each of these hours."""
    limit, use = (milli * 3600, 0, 0, 0, 0, 0), (used * 3600, 0, 0, 0, 0, 0)
    for hour in hours:
        meter(
            cell="cc",
            hour=BEGIN + hour * HOUR,
            rows=[MeteredRow(tenant.pk, band, f"{sum(job.encode()):032x}", job, labels or {}, limit, limit, use)],
        )


def split(tenant, by="job", *, days: int = 1, **more) -> dict[str, tuple[int, int, int]]:
    return {
        cost.key: (cost.quota, cost.unused, cost.usage)
        for cost in costs([tenant], since=BEGIN, until=BEGIN + days * DAY, by=by, **more)
    }


def test_a_charge_is_split_by_limits_and_the_rest_was_not_asked_for(tenant) -> None:
    bought(tenant, 2400)
    ran(tenant, "web", 5000)
    ran(tenant, "db", 2500, hours=range(12))
    assert split(tenant) == {"ubar/cc/web": (1200, 0, 0), "": (0, 900, 0), "ubar/cc/db": (300, 0, 0)}
    assert split(tenant, "band") == {"production": (1500, 900, 0)}
    assert split(tenant, "team") == {"ubar": (1500, 900, 0)}
    assert split(tenant, "cell") == {"cc": (1500, 900, 0)}


def test_jobs_beyond_the_bought_quota_share_it(tenant) -> None:
    bought(tenant, 2400)
    ran(tenant, "web", 15_000)
    ran(tenant, "db", 5_000)
    assert split(tenant) == {"ubar/cc/web": (1800, 0, 0), "ubar/cc/db": (600, 0, 0)}


def test_resources_are_split_each_by_itself(tenant) -> None:
    parts = [{"resource": "cpu", "amount": 1800}, {"resource": "ram", "amount": 600}]
    bought(tenant, 2400, amounts=(10_000, 2**30, 0, 0, 0, 0), parts=parts)
    ran(tenant, "web", 10_000)
    assert split(tenant) == {"ubar/cc/web": (1800, 0, 0), "": (0, 600, 0)}


def test_labels_and_usage_and_the_free_priority(tenant) -> None:
    bought(tenant, 2400)
    ran(tenant, "web", 5000, labels={"team": "shop"}, used=1000, hours=range(2))
    ran(tenant, "db", 5000, hours=range(2))
    ran(tenant, "cheap", 5000, band="")
    usage = 2 * 1000 * market.an_order(tenant, 0).band.price_milli // 1000
    assert split(tenant, "label", label="team") == {"shop": (100, 0, usage), "": (100, 2200, 0)}


def test_a_refund_makes_hours_cheaper_and_only_the_time_of_the_grant_costs(tenant) -> None:
    order = bought(tenant, 4800, days=2)
    with clock.at(BEGIN + DAY):
        market.refunded(order, 2400)
    Quota.objects.filter(order=order).update(ends_at=BEGIN + DAY, grace_until=BEGIN + DAY)
    assert split(tenant, days=1) == {"": (0, 2400, 0)}
    assert split(tenant, days=3) == {"": (0, 2400, 0)}


def test_every_micro_credit_is_somewhere(tenant) -> None:
    bought(tenant, 1_000_003, days=30)
    bought(tenant, 77, days=7, band="batch")
    ran(tenant, "web", 3333, hours=range(100))
    ran(tenant, "db", 4444, hours=range(50, 80))
    for by in ("job", "band", "label"):
        found = split(tenant, by, days=30, label="x")
        assert sum(map(sum, found.values())) == 1_000_080


def test_odd_periods_add_up_to_the_whole(tenant) -> None:
    bought(tenant, 86_400)
    cut = BEGIN + dt.timedelta(hours=5, minutes=45)
    first = costs([tenant], since=BEGIN, until=cut)
    second = costs([tenant], since=cut, until=BEGIN + DAY)
    assert ([c.total for c in first], [c.total for c in second]) == ([20_700], [65_700])


def test_other_tenants_cost_nothing(tenant) -> None:
    bought(tenant, 2400)
    assert costs([rows.a_tenant("other")], since=BEGIN, until=BEGIN + DAY) == []
    assert costs([], since=BEGIN, until=BEGIN + DAY) == []


@pytest.mark.parametrize(
    "given, field",
    [({"by": "colour"}, "by"), ({"by": "label"}, "label"), ({"days": 0}, "until"), ({"days": 500}, "until")],
    ids=["by", "label", "empty", "long"],
)
def test_a_bad_question_names_the_field(tenant, given, field) -> None:
    with pytest.raises(Rejected) as refused:
        split(tenant, **given)
    assert list(refused.value.fields) == [field]


def test_json_has_the_total() -> None:
    assert CostSerializer(Cost("web", 1, 2, 3)).data == {"key": "web", "quota": 1, "unused": 2, "usage": 3, "total": 6}
