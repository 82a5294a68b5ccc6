"""Tests of the console's page of name servers, which may be up to date, late, loading, stale, silent or absent."""

from __future__ import annotations

import socket
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from naming.api.dns_server_status import TIMEOUT_S
from naming.dns.zones.directory import Status, ZoneDirectory
from scheduling.models import Job
from tests.integration import portal_world, rows
from tests.integration.name_servers import following, serving
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def world():
    return portal_world.make()


@pytest.fixture
def asked(settings):
    """Return a function that opens the page for a resolver and secondaries at given ports, and returns its context."""

    def ask(resolver: int, *secondaries: int):
        settings.BORG_DNS_HOST, settings.BORG_DNS_PORT = "127.0.0.1", resolver
        settings.BORG_DNS_SECONDARIES = [f"127.0.0.1@{port}" for port in secondaries]
        answer = signed_in("sre").get(reverse("admin:names"), {"cell": "cc", "ask": "1"})
        assert answer.status_code == 200
        assert "no-store" in answer["Cache-Control"]
        return answer.context

    return ask


def reported(context) -> list[tuple]:
    """Return the role, state, serial and revision of each server in the table of the page."""
    return [(role, strip_tags(label).strip(), *more) for _server, role, label, *more, _lag in context["table"]["rows"]]


def test_servers_that_have_caught_up_and_one_that_is_behind(world, asked) -> None:
    newest = world.cell.revision = rows.journal.newest(world.cell.id)
    up, late = following(newest), following(1, names_revision=1)
    with serving(up, following(0, names_revision=3), late) as (resolver, *secondaries):
        context = asked(resolver, *secondaries)
        assert reported(context) == [
            ("resolver", "caught up", "3", str(newest)),
            ("secondary", "caught up", "3", "–"),
            ("secondary", "behind", "1", "–"),
        ]
        assert (context["problem"], context["table"]["rows"][2][-1]) == ("", "2 serials behind")
        up.cells["cc"].revision = newest - 2
        context = asked(resolver)
        assert reported(context) == [("resolver", "behind", "3", str(newest - 2))]
        assert context["table"]["rows"][0][-1].startswith("2 revisions, ")


def test_whether_a_secondary_has_caught_up_nobody_knows_without_a_resolver(world, asked) -> None:
    with serving(ZoneDirectory(loaded=True, status=Status.OK), following(0, names_revision=3)) as (silent, secondary):
        context = asked(silent, secondary)
        assert reported(context)[1] == ("secondary", "not known", "3", "–")
        assert "cannot show whether" in context["problem"]
        (one,) = signed_in("sre").get("/bns/cc/").json()["secondaries"]
        assert (one["reached"], one["caught_up"], one["error"]) == (True, False, "unknown")


@pytest.mark.parametrize(
    "directory, state, advice",
    [
        (following(99, status=Status.STALE), "stale", "Check PostgreSQL and Redis."),
        (following(99, status=Status.LOADING, ready=False), "loading names", "answers SERVFAIL"),
        (ZoneDirectory(zone="other.example", loaded=True, status=Status.OK), "does not have the zone", "REFUSED"),
        (ZoneDirectory(loaded=True, status=Status.OK), "does not have the zone", "NXDOMAIN"),
    ],
)
def test_a_resolver_that_is_not_right_is_reported_with_what_it_means(world, asked, directory, state, advice) -> None:
    with serving(directory) as (port,):
        context = asked(port)
    assert [row[1] for row in reported(context)] == [state]
    ((_server, text),) = context["advice"]
    assert advice in text


def test_silent_servers_hold_the_page_up_no_longer_than_the_bound(world, asked) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        port = mute.getsockname()[1]
        began = time.monotonic()
        context = asked(port, *([port] * 20))
        took = time.monotonic() - began
    assert [row[1] for row in reported(context)] == ["no answer"] * 21
    assert "Timeout" in context["advice"][0][1]
    assert "cannot show whether the secondaries have caught up" in context["problem"]
    assert TIMEOUT_S <= took < 10 * TIMEOUT_S, "all at once, not one after the other"


def test_the_page_itself_asks_nobody_and_tells_what_rows_say(world, settings) -> None:
    settings.BORG_DNS_PORT = 1  # no server listens there
    Job.objects.update(labels={"service": "web"})
    client = signed_in("sre")
    path = reverse("admin:names")
    page = client.get(path).text
    assert "Zone cc.borg.internal" in page
    assert "Querying the resolver and the secondaries" in page
    assert 'hx-trigger="load, every 5s"' in page
    assert "Jobs without a serving task" in page
    assert '<a class="text-primary-600 dark:text-primary-500" href="/jobs/cc/ubar/jfoo/">' in page
    counts = client.get(path).context["counts"]
    assert counts == {"jobs": 1, "services": 1, "placed": 1, "serving": 0, "fail_open": 1}
    for tenant, name in (("ubar", "second"), ("other", "third")):
        rows.a_job(world.cell, rows.a_tenant(tenant) if tenant == "other" else world.tenant, name)
    Job.objects.update(labels={"service": "web"})  # jobs of two tenants make two services
    assert client.get(path).context["counts"]["services"] == 2
    portal_world.report(world.job, 0)
    assert client.get(path).context["failing"]["rows"] == []


def test_the_page_asks_rows_as_often_whatever_there_is(world) -> None:
    client = signed_in("sre")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.get(reverse("admin:names"))
        return len(captured)

    queries()  # records that the session is used
    few = queries()
    for number in range(5):
        job = rows.a_job(world.cell, rows.a_tenant(f"team-{number}"), f"job-{number}")
        portal_world.place(job, 0, world.machine)
    assert queries() == few


def test_a_setting_that_is_wrong_is_named(world, settings) -> None:
    settings.BORG_DNS_SECONDARIES = ["not an address"]
    page = signed_in("sre").get(reverse("admin:names"), {"ask": "1"}).text
    assert "BORG_DNS_SECONDARIES: &#x27;not an address&#x27;" in page


def test_only_sres_see_it_and_it_says_when_there_is_no_cell(db) -> None:
    portal_world.person("sre", is_staff=True, is_superuser=True)
    portal_world.person("viewer")
    assert signed_in("viewer").get(reverse("admin:names")).status_code == 302
    assert "There is no cell yet." in signed_in("sre").get(reverse("admin:names")).text
