"""Tests of sizing: what jobs used of their tenant's quota, summed over jobs per hour and ranked over hours."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.admission.suggested_quota import ResourceUse, UsageOf, usage_of
from quota.models import MeteredHour, PriorityBand
from quota.vocabulary.errors import Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Role, system
from quota.vocabulary.resources import NAMES, ZERO
from tests.integration import rows, world
from tests.integration.money_rows import a_metered_hour

pytestmark = pytest.mark.django_db(transaction=True)
NOW = dt.datetime(2026, 3, 10, 12, 30, tzinfo=dt.UTC)
ME = system("test")


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant()
    rows.grant(tenant, cell, "production", (10_000, 2**33, 0, 0, 0, 0))
    return tenant


@pytest.fixture(autouse=True)
def _at():
    with clock.at(NOW):
        yield


def metered(tenant, hours_ago: int, cpu: int, *, job: str = "a", cell: str = "cc", band: str = "production") -> None:
    """Create a metered hour of a job that asked for `cpu` milli-cores, reserved three quarters and used half."""
    hour = NOW.replace(minute=0) - dt.timedelta(hours=hours_ago)
    vector = (cpu * 3600, *ZERO[1:])
    a_metered_hour(
        tenant=tenant,
        cell=cell,
        band=PriorityBand.objects.get(name=band),
        job_uid=job * 32,
        job=job,
        hour=hour,
        limit=list(vector),
        reserved=[v * 3 // 4 for v in vector],
        used=[v // 2 for v in vector],
    )


def resource(use: UsageOf, name: str) -> ResourceUse:
    return next(one for one in use.resources if one.name == name)


def test_jobs_are_summed_by_hour_and_hours_are_ranked(cell, tenant) -> None:
    for hours_ago in range(1, 101):
        metered(tenant, hours_ago, 100 * hours_ago)
    metered(tenant, 100, 4_000, job="b")
    told = usage_of(ME, tenant, cell.name, "production", days=14)
    cpu = resource(told, "cpu")
    assert told.hours == 100
    assert (cpu.granted, cpu.asked, cpu.reserved) == (10_000, 14_000, 10_500)
    assert (cpu.used_p50, cpu.used_p95, cpu.used_max) == (2_500, 4_750, 7_000)
    assert (cpu.suggested, cpu.leaner) == (14_000, 8_750)
    assert [one.name for one in told.resources] == [name for name in NAMES if name != "ports"]


def test_other_bands_cells_tenants_and_older_hours_are_left_out(cell, tenant) -> None:
    metered(tenant, 1, 100)
    metered(tenant, 24 * 15, 9_000)
    metered(tenant, 1, 9_000, band="batch")
    metered(tenant, 1, 9_000, cell="dd")
    metered(rows.a_tenant("other"), 1, 9_000, job="c")
    assert resource(usage_of(ME, tenant, cell.name, "production"), "cpu").asked == 100


def test_without_jobs_there_is_only_what_is_granted(cell, tenant) -> None:
    told = usage_of(ME, tenant, cell.name, "production")
    assert (told.hours, resource(told, "ram").granted, resource(told, "ram").suggested) == (0, 2**33, 0)


def test_sums_beyond_64_bits_are_reported(cell, tenant) -> None:
    for job in "abc":
        metered(tenant, 1, 0, job=job)
    MeteredHour.objects.update(limit=[2**63 - 1] * 6)
    assert resource(usage_of(ME, tenant, cell.name, "production"), "disk").asked == -(-3 * (2**63 - 1) // 3600)


def test_it_takes_three_queries(cell, tenant, django_assert_num_queries) -> None:
    for hours_ago in range(1, 50):
        metered(tenant, hours_ago, 100)
    with django_assert_num_queries(3):
        usage_of(ME, tenant, cell.name, "production")


def test_strangers_days_and_bands_are_refused(cell, tenant) -> None:
    with pytest.raises(Forbidden):
        usage_of(world.principal("eve", tenant=rows.a_tenant("e"), role=Role.OWNER), tenant, "cc", "production")
    with pytest.raises(Rejected, match="give 1 to 366"):
        usage_of(ME, tenant, cell.name, "production", days=0)
    with pytest.raises(NotFound, match="monitoring"):
        usage_of(ME, tenant, cell.name, "silver")


def test_rest_tells_members_and_nobody_else(cell, tenant) -> None:
    metered(tenant, 1, 100)
    asked = {"tenant": "ubar", "cell": "cc", "band": "production", "days": 7}
    viewer = world.bearer(world.a_user("ann", tenant=tenant, role=Role.VIEWER))
    answer = viewer.get("/api/v1/quota/usage/", asked)
    assert answer.status_code == 200
    assert (answer.json()["hours"], answer.json()["band"]) == (1, "production")
    assert answer.json()["resources"][0] == {
        "name": "cpu",
        "granted": 10_000,
        "asked": 100,
        "reserved": 75,
        "used_p50": 50,
        "used_p95": 50,
        "used_max": 50,
        "suggested": 100,
        "leaner": 63,
    }
    stranger = world.bearer(world.a_user("eve", tenant=rows.a_tenant("e")))
    assert stranger.get("/api/v1/quota/usage/", asked).status_code == 404


@pytest.mark.parametrize(
    "change, field",
    [({"days": "0"}, "days"), ({"days": "x"}, "days"), ({"cell": "../x"}, "cell"), ({"bond": "1"}, "bond")],
    ids=["no-day", "no-number", "no-name", "unknown"],
)
def test_rest_names_the_field_that_is_wrong(cell, tenant, change, field) -> None:
    asked = {"tenant": "ubar", "cell": "cc", "band": "production"} | change
    answer = world.bearer(world.a_user("root", sre=True)).get("/api/v1/quota/usage/", asked)
    assert answer.status_code in (400, 422)
    assert list(answer.json()["fields"]) == [field]
