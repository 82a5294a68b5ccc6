"""Tests of rejections for lack of quota: they name who holds the quota, and an order that would help."""

from __future__ import annotations

import datetime as dt
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota import clock
from quota.models import CellCapacity, PriceList, PriorityBand, Quota, Tenant
from quota.pricing.capacity_for_sale import capacity_of, market_set
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Role, Scope, system
from scheduling.jobs import submit_and_kill, updates
from scheduling.jobs.quota_rejections import CURED, HOLDERS, TOLD
from scheduling.models import Job
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
ME = system("test")
GIB = 2**30


@pytest.fixture
def cell():
    cell = rows.a_cell()
    CellCapacity.objects.create(cell=cell.name, capacity=[100_000, 400 * GIB, 2**42, 0, 0, 0], revision=1)
    return cell


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production", (1000, GIB, 2 * GIB, 0, 0, 0))
    return tenant


@pytest.fixture
def ann(tenant):
    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)


def file(name: str, *, tasks: int = 1, cpu: int = 100, tenant: str = "ubar", **more: object) -> dict:
    return world.with_task(name, tasks=tasks, limit={"cpu": f"{cpu}m", "ram": "64Mi"}) | {"tenant": tenant, **more}


def refused(who, cell, given) -> Rejected:
    with pytest.raises(Rejected) as caught:
        world.submit(who, cell, given)
    return caught.value


def bulk(who, cell, files, **how) -> list[Rejected | None]:
    return [one.problem for one in submit_and_kill.jobs_submit_bulk(principal=who, cell=cell, files=files, **how)]


def test_the_largest_holders_are_named_with_what_they_hold(cell, tenant, ann) -> None:
    for name, cpu in (("small", 100), ("large", 500), ("middling", 300)):
        world.submit(ann, cell, file(name, cpu=cpu))
    rows.grant(tenant, cell, "batch")
    world.submit(ann, cell, file("other-band", cpu=9000) | {"priority": 100})
    world.submit(ann, cell, file("free", cpu=9000) | {"priority": 0})
    problem = refused(ann, cell, file("web", cpu=200))
    assert [one["job"] for one in problem.figures["holders"]] == ["large", "middling", "small"]
    assert problem.figures["holders"][0] == {
        "job": "large",
        "priority": 120,
        "tasks": 1,
        "holds": {"cpu": 500, "ram": 2**26, "disk": 100 * 2**20},
    }
    assert problem.figures["holding_jobs"] == 3


def test_only_the_ten_largest_are_named_and_all_are_counted(cell, tenant, ann) -> None:
    for number in range(HOLDERS + 3):
        world.submit(ann, cell, file(f"j{number}", cpu=10 + number))
    problem = refused(ann, cell, file("web", cpu=2000))
    assert problem.figures["holding_jobs"] == HOLDERS + 3
    assert [one["job"] for one in problem.figures["holders"]][:2] == ["j12", "j11"]
    assert len(problem.figures["holders"]) == HOLDERS


def test_the_cure_is_an_order_of_what_is_missing_with_price_link_and_command(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web", cpu=800))
    with clock.at(dt.datetime(2026, 12, 5, 22, 30, tzinfo=dt.UTC)):
        tenant.time_zone = "Asia/Tokyo"
        tenant.save()
        problem = refused(ann, cell, file("more", tasks=2, cpu=1000))
    cure = problem.figures["cure"]
    assert (cure["tenant"], cure["cell"], cure["band"]) == ("ubar", "cc", "production")
    assert (cure["amounts"], cure["sizes"]) == ({"cpu": 1800}, {"cpu": "1800m"})
    assert (cure["from"], cure["until"]) == ("2026-12-06", "2027-01-04")
    assert (cure["starts_at"], cure["ends_at"]) == ("2026-12-05T22:30:00+00:00", "2027-01-04T15:00:00+00:00")
    assert cure["price"] > 0
    assert (cure["available"], cure["left"], cure["problem"]) == (True, {}, "")
    link = urlsplit(cure["path"])
    assert link.path == "/shop/"
    assert parse_qs(link.query) == {
        "tenant": ["ubar"],
        "cell": ["cc"],
        "band": ["production"],
        "cpu": ["1800m"],
        "from": ["2026-12-06"],
        "until": ["2027-01-04"],
    }
    assert cure["command"].startswith("borgctl quota buy --tenant ubar --cell cc --band production --cpu 1800m ")


def test_with_what_the_cure_names_all_of_a_request_is_admitted(cell, tenant, ann) -> None:
    files = [file(f"j{number}", tasks=3, cpu=333) for number in range(4)]
    first, *others = bulk(ann, cell, files)
    assert first is None
    assert all(one is not None for one in others)
    assert "cure" in others[0].figures
    assert all("cure" not in one.figures and "holders" not in one.figures for one in others[1:])
    amounts = others[0].figures["cure"]["amounts"]
    rows.grant(tenant, cell, "production", (amounts["cpu"], amounts.get("ram", 0), 0, 0, 0, 0))
    assert bulk(ann, cell, files) == [None] * 4
    assert Job.objects.count() == 4


def test_an_update_that_grows_too_far_is_reported_the_same(cell, tenant, ann) -> None:
    job = world.submit(ann, cell, file("web", cpu=800))
    with pytest.raises(Rejected) as caught:
        updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file("web", tasks=2, cpu=800)))
    assert caught.value.figures["cure"]["amounts"] == {"cpu": 600}
    assert [one["job"] for one in caught.value.figures["holders"]] == ["web"]


def test_what_the_cell_has_not_is_said(cell, tenant, ann) -> None:
    cure = refused(ann, cell, file("huge", cpu=200_000)).figures["cure"]
    assert cure["available"] is False
    assert cure["left"]["cpu"] < cure["amounts"]["cpu"]
    assert cure["price"] is not None
    assert cure["instead"] == []


def test_what_the_cell_can_sell_instead_is_proposed(cell, tenant, ann) -> None:
    other = Tenant.objects.create(name="other")
    now = clock.now()
    capacity = capacity_of(cell.name)
    Quota.objects.create(
        tenant=other,
        cell=cell.name,
        band=PriorityBand.objects.get(name="production"),
        amounts=list(capacity),
        starts_at=now,
        ends_at=now + dt.timedelta(days=3),
        grace_until=now + dt.timedelta(days=3),
    )
    cure = refused(ann, cell, file("web", cpu=2000)).figures["cure"]
    assert cure["available"] is False
    later, *bands = cure["instead"]
    first = dt.date.fromisoformat(later["from"])
    assert (later["band"], first) == ("production", (now + dt.timedelta(days=4)).astimezone(dt.UTC).date())
    assert later["path"].startswith("/shop/?tenant=ubar&cell=cc&band=production&from=" + later["from"])
    assert [one["band"] for one in bands] == ["batch", "best-effort"]
    assert "--band batch --cpu 1" in bands[0]["command"]


def test_more_than_can_be_ordered_has_no_price_but_a_reason(cell, tenant, ann) -> None:
    given = file("absurd", tasks=100)
    given["task"]["limit"]["ram"] = 2**53
    cure = refused(ann, cell, given).figures["cure"]
    assert (cure["price"], cure["available"]) == (None, False)
    assert "one order" in cure["problem"]


def test_thousands_of_refusals_cost_no_more_than_a_few(cell, tenant) -> None:
    tenants = [rows.a_tenant(f"t{number}") for number in range(60)]
    market_set(principal=ME, cell=cell.name, grace_hours=1)
    PriceList.objects.create(
        cell=cell.name,
        version=1,
        base={"cpu": 1},
        valid_from="2020-01-01T00:00:00Z",
        created_by="test",
        created_at="2020-01-01T00:00:00Z",
    )

    def reported(files) -> tuple[int, list[Rejected | None]]:
        with CaptureQueriesContext(connection) as queries:
            problems = bulk(ME, cell, files)
        return len(queries), problems

    few, _ = reported([file(f"f{i}", tenant=one.name) for i, one in enumerate(tenants[:CURED])])
    many, problems = reported([file(f"m{i}", tenant=tenants[i % 60].name) for i in range(1500)])
    assert many - few < few  # there are two transactions instead of one
    assert sum("holders" in one.figures for one in problems if one) == 2 * TOLD
    assert sum("cure" in one.figures for one in problems if one) == 2 * CURED


def test_a_user_who_may_not_see_jobs_does_not_read_of_them(cell, tenant, ann) -> None:
    world.submit(ann, cell, file("web", cpu=800))
    blind = world.principal("ann", tenant=tenant)
    blind = type(blind)(name="ann", roles={"ubar": Role.OPERATOR}, scopes=frozenset({Scope.WRITE}))
    problem = refused(blind, cell, file("more", cpu=1000))
    assert "holders" not in problem.figures
    assert "cure" in problem.figures


def test_the_journal_keeps_the_shortfall_alone(cell, tenant, ann) -> None:
    from scheduling.journal import journal

    refused(ann, cell, file("web", cpu=2000))
    (record,) = journal.tail(cell.id, after=0)
    assert sorted(record.event.figures) == ["band", "cell", "short", "tenant"]


def test_a_rehearsal_is_reported_as_well_and_changes_nothing(cell, tenant, ann) -> None:
    (problem,) = bulk(ann, cell, [file("web", cpu=2000)], dry_run=True)
    assert problem is not None
    assert "cure" in problem.figures
    assert not Job.objects.exists()
    assert Quota.objects.count() == 1
