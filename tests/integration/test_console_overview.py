"""Tests of the first page of the console: what it shows, who may see it, and how many queries it makes."""

from __future__ import annotations

import copy
import re
from collections import Counter

import msgspec
import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.admin_site import site
from portal.console.attention import LATE_S, Findings, attention
from portal.console.home.figures import FleetFigures
from portal.console.home.findings import prod_evictions
from portal.console.home.page import Sections
from portal.console.navigation import OWN_PAGES, links
from quota import clock
from quota.models import Shortfall
from scheduling.core.vocabulary.reasons import ReasonCode, RuledOut, Why
from scheduling.history.statistics.reports import Statistics
from scheduling.history.statistics.tallies import Figure
from scheduling.master import pass_log
from scheduling.models import CapacitySample, Cell, JournalTally, Machine, PendingVerdict
from scheduling.usage import utilisation
from tests.integration import rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
NAMES = ("cpu", "ram", "disk", "ports")


@pytest.fixture
def world(kept_world):
    return copy.deepcopy(kept_world)


@pytest.fixture
def sre(world) -> Client:
    return signed_in("sre")


def measure(cell: Cell, *, cpu: int = 100_000) -> None:
    """Publish the use of a cell, the passes of its scheduler, a sample of its capacity, and evictions."""
    amounts = {name: dict.fromkeys(NAMES, cpu // part) for name, part in (("capacity", 1), ("limit", 1))}
    amounts |= {"reservation": dict.fromkeys(NAMES, cpu // 2), "usage": dict.fromkeys(NAMES, cpu // 4)}
    at = timezone.now().timestamp()
    utilisation.publish(
        cell.id, utilisation.UtilisationFigures(at=at, setting="medium", running=1, measured=1, short=0, **amounts)
    )
    counts = dict.fromkeys(("revision", "pending", "classes", "placed", "conflicts", "preempted", "unplaced"), 1)
    one = pass_log.Pass(at=at, cache_hits=1, cache_misses=1, pass_ms=12.5, commit_ms=3.25, **counts)
    pass_log.record(cell.id, cell.name, "default", one)
    hour = clock.now().replace(minute=0, second=0, microsecond=0)
    for band in ("", "production"):
        vectors = {name: [cpu // 4] * 6 for name in ("sold", "granted", "asked", "limit", "reserved", "used")}
        CapacitySample.objects.create(
            cell=cell, band=band, hour=hour, sampled_at=hour, capacity=[cpu] * 6, stranded=[0] * 6, **vectors
        )
    for figure, number, total in ((Figure.EVICTIONS, 40, 0.0), (Figure.RUNNING, 0, 7 * 86_400.0)):
        label = "preemption" if figure is Figure.EVICTIONS else ""
        JournalTally.objects.create(
            cell=cell, hour=hour, figure=figure, prod=True, label=label, number=number, total=total, buckets=[]
        )


def test_it_shows_what_needs_an_sre_with_links_to_the_runbook(sre, world) -> None:
    quiet = sre.get("/admin/").text
    assert "1 scheduler of cell cc does not run." in quiet
    assert 'href="/docs/guides/alarms/#borgschedulermissing"' in quiet
    measure(world.cell)
    Shortfall.objects.create(cell="cc", begins_at=clock.now(), short=list(rows.SMALL), found_at=clock.now())
    Machine.objects.update(quarantined=[{"task": "gone"}])
    rows.machine_down(rows.a_machine(world.cell, "m9"))
    page = sre.get("/admin/").text
    for text in (
        "The prod quota that was sold exceeds the capacity of cell cc.",
        "1 machine of cell cc is down.",
        "1 machine of cell cc runs tasks that this cell&#x27;s history does not contain.",
        "prod tasks of cell cc were evicted 40.0 times per task-week.",
    ):
        assert text in page
    for query, host in ((f"state__exact=down&cell__id__exact={world.cell.id}", "m9"), ("quarantine=yes", "m1")):
        found = sre.get(f"{reverse('admin:scheduling_machine_changelist')}?{query}").context["cl"].result_list
        assert [machine.hostname for machine in found] == [host]


def test_it_shows_capacity_passes_evictions_and_the_oldest_job_with_the_reason(sre, world) -> None:
    measure(world.cell)
    why = Why(
        revision=1,
        machines=1,
        code=ReasonCode.RESOURCE,
        ruled_out=(RuledOut(ReasonCode.RESOURCE, "cpu", 1),),
        tasks=((world.job.id, 2),),
    )
    PendingVerdict.objects.create(job=world.job, revision=1, at=timezone.now(), whys=msgspec.to_builtins([why]))
    page = sre.get("/admin/").text
    assert "25% used · 50% reserved · 100% limits" in page
    assert "12.5 · 12.5 ms" in page
    assert "last day, prod" in page
    assert "preemption: 40" in page
    assert "can&#x27;t be placed on any of 1 machine" in page
    assert f'href="/jobs/cc/ubar/jfoo/?uid={world.job.uid}"' in page
    assert "Solar" not in page


def test_its_queries_do_not_depend_on_the_number_of_cells_and_jobs(sre, world) -> None:
    measure(world.cell)
    before = queries(sre)
    for number in range(3):
        cell = Cell.objects.create(name=f"other{number}")
        measure(cell)
        rows.a_machine(cell, "n1")
        rows.a_job(cell, world.tenant, f"waiting{number}", priority=200 + number)
    page = sre.get("/admin/").text
    assert page.count('<tr><th scope="row"><a href="?cell=') == 4
    assert (before, queries(sre)) == (before, before)
    assert before <= 45
    assert sre.get("/admin/?cell=cc").context["whole"].counts["machines_up"] == 1
    assert sre.get("/admin/").context["whole"].counts["machines_up"] == 4


def queries(client: Client) -> int:
    client.get("/admin/")
    with CaptureQueriesContext(connection) as captured:
        assert client.get("/admin/").status_code == 200
    # A query over all tasks of a cell would be slow. The others use the index of pending tasks, or of a machine.
    for one in captured:
        tasks = re.search(r'(?:FROM|JOIN) "?scheduling_task\b', one["sql"])
        assert tasks is None or "pending" in one["sql"] or "EXISTS" in one["sql"]
    return len(captured)


def test_each_table_of_ours_is_in_the_navigation_and_no_table_of_a_library(sre, world) -> None:
    known = {f"{model._meta.app_label}_{model._meta.model_name}" for model in site._registry}
    libraries = {f"django_celery_beat_{kind}schedule" for kind in ("interval", "crontab", "solar", "clocked")}
    assert {link.page for link in links()} == (known - libraries) | OWN_PAGES
    page = sre.get("/admin/tables/").text
    for link in links():
        assert f'href="{site.link(link.page)}"' in page
    assert "Solar" not in sre.get("/admin/django_celery_beat/").text
    assert Client().get("/admin/tables/").status_code == 302
    assert signed_in("owner").get("/admin/tables/", follow=True).status_code == 403


def test_alarms_come_before_work_that_waits() -> None:
    found = attention(Findings(orders=2, missing={"cc": 1}, down={"cc": 1}, cell_ids={"cc": 1}))
    assert [(one.urgent, one.entry) for one in found] == [(True, "BorgSchedulerMissing"), (False, ""), (False, "")]


def test_short_delays_raise_no_alarm() -> None:
    quiet = Findings(late={part: {"cc": limit} for part, limit in LATE_S.items()}, waits=[("cc", "production", 1, 900)])
    assert attention(quiet) == []
    late = Findings(late={part: {"cc": limit + 1} for part, limit in LATE_S.items()}, waits=[("cc", "batch", 1, 901)])
    assert [one.entry for one in attention(late)] == [
        "BorgCronLate",
        "BorgWorkflowsLate",
        "BorgAutoscalerLate",
        "BorgMeteringBehind",
        "BorgArchiveBehind",
    ]


def test_causes_outside_figure_3_raise_no_alarm() -> None:
    found = Statistics(timezone.now())
    found.include((Figure.RUNNING, True, ""), 0, 86_400.0, ())
    found.include((Figure.EVICTIONS, True, "update"), 40, 0.0, ())
    found.include((Figure.EVICTIONS, True, "preemption"), 2, 0.0, ())
    assert prod_evictions(found) == (14.0, 2)
    assert attention(Findings(evictions={"cc": prod_evictions(found)}, cell_ids={"cc": 1})) == []


def test_an_unknown_cell_is_named_and_a_failed_query_only_costs_its_section(sre, world) -> None:
    answer = sre.get("/admin/?cell=typo")
    assert answer.status_code == 404
    assert "There is no cell typo. The page shows all cells." in answer.text

    def fail() -> list[int]:
        raise OperationalError("canceling statement due to statement timeout")

    sections = Sections()
    assert sections.read("queue", fail, [1]) == [1]
    assert sections.unread == ["queue"]


def test_without_redis_the_page_shows_what_the_database_has(world) -> None:
    whole = FleetFigures([world.cell], {world.cell.id: Counter(machines_up=1)}, redis_away=True).of_all()
    assert (whole.measured, whole.counts["machines_up"]) == (0, 1)
    assert whole.amounts[0].used is None
    assert [one.entry for one in attention(Findings(redis_away=True))] == ["BorgPortalAway"]
