"""Tests of the pages for planning: tenants see only their own figures, SREs see those of cells, and all add up."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota import clock
from quota.billing.planning import Planned, hours_of
from quota.models import CellCapacity, PriorityBand, Quota
from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Principal, Role
from quota.vocabulary.resources import SIZE
from scheduling.models import CapacitySample
from tests.integration import portal_world, rows
from tests.integration.money_rows import a_metered_hour
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)
VIEWER = Principal(name="viewer", roles={"ubar": Role.VIEWER})


@pytest.fixture
def world():
    return portal_world.make()


@pytest.fixture(autouse=True)
def _stands_still() -> Iterator[None]:
    """Stop the clock at half past the hour, because pages would change if an hour began in the middle of a test."""
    with clock.at(at_half_past()):
        yield


def test_the_hour_that_is_not_over_is_not_counted(world) -> None:
    """The chart has a point for each hour since the quota began, up to the last hour that has been metered."""
    now = this_hour()
    Quota.objects.update(starts_at=now - 2 * HOUR)
    for hour in (now - 2 * HOUR, now - HOUR):
        metered(world, hour, milli=57_000)
    band = PriorityBand.objects.get(name="production")
    span = {"since": now - 167 * HOUR, "until": now + HOUR}
    found = planned(world, band, step=HOUR, **span)
    assert [(point.at, point.owned[0], point.asked[0]) for point in found] == [
        (now - 2 * HOUR, 64_000, 57_000),
        (now - HOUR, 64_000, 57_000),
    ]
    with clock.at(now + dt.timedelta(minutes=5)):  # the last hour may not be metered yet
        assert len(planned(world, band, step=HOUR, **span)) == 1


def test_the_page_says_when_it_is_too_early(world) -> None:
    now = this_hour()
    Quota.objects.update(starts_at=now - 2 * HOUR)
    metered(world, now - 2 * HOUR)
    page = signed_in("viewer").get("/planning/?tenant=ubar").text
    assert "The portal needs 6 hours of data to estimate the quota that you do not need. It" in page
    assert " has 2 hours of data." in page
    assert "Quota that could be given back" not in page
    Quota.objects.update(starts_at=now - 30 * HOUR)
    page = signed_in("viewer").get("/planning/?tenant=ubar").text
    assert "These figures are computed from 30 complete hours of data." in page
    assert "Quota that could be given back" in page


def this_hour() -> dt.datetime:
    return clock.now().replace(minute=0, second=0, microsecond=0)


def at_half_past() -> dt.datetime:
    """Return half past the present hour, when the hour before it has been metered."""
    return clock.now().replace(minute=30, second=0, microsecond=0)


def metered(world, hour: dt.datetime, job: str = "jfoo", *, band: str = "production", milli: int = 1_000) -> None:
    """Create a metered hour of a job that asked for `milli` milli-cores, reserved half of them and used a quarter."""
    a_metered_hour(
        tenant=world.tenant,
        cell="cc",
        band=PriorityBand.objects.filter(name=band).first(),
        job_uid=job,
        job=job,
        hour=hour,
        limit=[milli * 3600] + [0] * 5,
        reserved=[milli * 1800] + [0] * 5,
        used=[milli * 900] + [0] * 5,
    )


def planned(world, band: PriorityBand | None, *, step: dt.timedelta, **span: dt.datetime) -> list[Planned]:
    with hours_of(VIEWER, world.tenant, **span) as hours:
        return hours.planned("cc", band, step=step)


def places(world, **span: dt.datetime) -> list[tuple[str, str]]:
    with hours_of(VIEWER, world.tenant, **span) as hours:
        return hours.places()


def a_sample(world, hour: dt.datetime, band: str, cpu: int) -> None:
    vector = [cpu] + [0] * (SIZE - 1)
    names = ("capacity", "sold", "granted", "asked", "limit", "reserved", "used", "stranded")
    CapacitySample.objects.create(
        cell=world.cell, band=band, hour=hour, sampled_at=hour, **dict.fromkeys(names, vector)
    )


def test_planned_means_are_of_grants_and_jobs(world) -> None:
    now = this_hour()
    Quota.objects.update(starts_at=now - HOUR)
    metered(world, now - 2 * HOUR)
    metered(world, now - HOUR, "a")
    metered(world, now - HOUR, "b")
    metered(world, now - HOUR, "free", band="")
    band = PriorityBand.objects.get(name="production")
    span = {"since": now - 3 * HOUR, "until": now}
    found = planned(world, band, step=HOUR, **span)
    assert [point.at for point in found] == [now - 2 * HOUR, now - HOUR]
    assert [point.owned[0] for point in found] == [0, 64_000]
    assert [point.asked[0] for point in found] == [1_000, 2_000]
    assert [(point.reserved[0], point.used[0]) for point in found] == [(500, 250), (1_000, 500)]
    (whole,) = planned(world, band, step=3 * HOUR, **span)
    assert (whole.asked[0], whole.seconds) == (1_500, 2 * 3600)
    (free,) = planned(world, None, step=3 * HOUR, **span)
    assert (free.asked[0], free.owned[0], free.seconds) == (1_000, 0, 3600)
    assert places(world, **span) == [("cc", "production"), ("cc", "")]
    before = {"since": now - 9 * HOUR, "until": now - HOUR}  # only the band with quota has no usage here
    assert places(world, **before) == [("cc", "production")]
    with pytest.raises(Forbidden), hours_of(Principal(name="x"), world.tenant, **span):
        pass


def test_a_tenant_s_page_is_for_its_members(world) -> None:
    metered(world, this_hour() - HOUR)
    page = signed_in("viewer").get("/planning/?tenant=ubar")
    assert page.status_code == 200
    assert "cc/production" in page.text
    assert "64 cores" in page.text
    assert signed_in("stranger").get("/planning/?tenant=ubar").status_code == 404
    assert signed_in("stranger").get("/planning.csv?tenant=ubar").status_code == 404
    portal_world.person("newcomer")
    assert "not a member of any tenant" in signed_in("newcomer").get("/planning/").text


@pytest.mark.parametrize(
    "query", ["days=9999", "days=-1", "days=²", "resource=ports", "place=nowhere/x", "band=<script>"]
)
def test_an_address_that_asks_for_nonsense_shows_the_default(world, query) -> None:
    for path in ("/planning/?tenant=ubar&", "/planning.csv?tenant=ubar&"):
        assert signed_in("viewer").get(path + query).status_code == 200
    for path in ("/admin/capacity/?", "/admin/capacity.csv?"):
        assert signed_in("sre").get(path + query).status_code == 200


def test_the_csv_of_a_tenant_is_exact(world) -> None:
    Quota.objects.update(starts_at=this_hour() - 30 * HOUR)
    metered(world, this_hour() - HOUR, milli=1_234_567)
    answer = signed_in("viewer").get("/planning.csv?tenant=ubar&days=1")
    assert answer["Content-Disposition"] == 'attachment; filename="planning-ubar-cc-production.csv"'
    read = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(read) == 23 * (SIZE - 1)  # the hour that is not over has no figures yet
    (row,) = [row for row in read if row["resource"] == "cpu" and row["asked"] != "0"]
    assert (row["asked"], row["reserved"], row["used"]) == ("1234567", "617284", "308642")


def test_pages_cost_the_same_whatever_there_is_to_show(world) -> None:
    def cost(name: str, path: str) -> int:
        client = signed_in(name)
        client.get(path)
        with CaptureQueriesContext(connection) as captured:
            assert client.get(path).status_code == 200
        return len(captured)

    CellCapacity.objects.update_or_create(cell="cc", defaults={"capacity": list(rows.LARGE), "revision": 1})
    paths = [("viewer", "/planning/?tenant=ubar"), ("sre", "/admin/capacity/?cell=cc")]
    before = [cost(*path) for path in paths]
    for number in range(20):
        metered(world, this_hour() - number * HOUR, f"j{number}")
        a_sample(world, this_hour() - number * HOUR, "", 100 * number)
        a_sample(world, this_hour() - number * HOUR, "production", 100 * number)
        rows.grant(world.tenant, world.cell, "batch")
    assert [cost(*path) for path in paths] == before


def test_the_console_shows_a_cell_and_when_it_is_sold_out(world) -> None:
    CellCapacity.objects.update_or_create(cell="cc", defaults={"capacity": list(rows.LARGE), "revision": 1})
    a_sample(world, this_hour(), "", 64_000)
    a_sample(world, this_hour(), "production", 3_000)
    for name in ("owner", "stranger"):
        assert signed_in(name).get("/admin/capacity/", follow=True).status_code == 403
        assert signed_in(name).get("/admin/capacity.csv", follow=True).status_code == 403
    page = signed_in("sre").get("/admin/capacity/?cell=cc&band=production")
    assert "3 cores" in page.text
    told = {one["band"]: one for one in page.context["forecasts"]}
    # The grant without an end is all that the cell has, which is more than may be sold with the headroom.
    assert told["production"]["sold_out_at"] is not None
    assert told["batch"]["sold_out_at"] is None
    assert "/admin/capacity/" in signed_in("sre").get("/admin/").text


def test_the_csv_of_a_cell_has_every_band(world) -> None:
    a_sample(world, this_hour(), "", 64_000)
    a_sample(world, this_hour(), "production", 3_000)
    read = list(csv.DictReader(io.StringIO(signed_in("sre").get("/admin/capacity.csv?cell=cc").text)))
    assert {(row["band"], row["sold"]) for row in read if row["resource"] == "cpu"} == {
        ("", "64000"),
        ("production", "3000"),
    }
