"""Tests that no page of DNS and BNS names is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from naming.dns.zones.directory import Status, ZoneDirectory
from scheduling.models import Job
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import portal_server, portal_world, rows
from tests.integration.name_servers import following, serving

LONG = "a-name-as-long-as-dns-allows-it-63-characters-in-one-label-abcd"
PAGES = {
    "names-job": "/jobs/cc/ubar/web/",
    "names-job-long": f"/jobs/cc/ubar/{LONG}/",
    "names-job-unplaced": "/jobs/cc/ubar/waiting/",
    "names-task": "/jobs/cc/ubar/web/0/",
    "names-task-long": f"/jobs/cc/ubar/{LONG}/0/",
    "names-task-unplaced": "/jobs/cc/ubar/waiting/0/",
    "names-service": "/services/cc/ubar/shop/",
    "names-service-long": f"/services/cc/ubar/{LONG}/",
    "names-service-missing": "/services/cc/ubar/none/",
    "names": "/names/",
    "names-found": "/names/?q=web",
    "names-none": "/names/?q=nothing",
    "names-wrong": "/names/?q=j_foo.ubar.cc.borg.internal",
    "names-job-canary": "/jobs/cc/ubar/web-canary/",
    "admin-names": "/admin/names/",
}


@pytest.fixture(scope="module")
def portal(django_db_setup, tmp_path_factory) -> Iterator[str]:
    """Yield the address of a portal whose DNS servers are in different states, for the page that lists them.

    Its resolver has stale data. One secondary has caught up, one lags behind, one lacks the zone, one does not answer.
    """
    elsewhere = ZoneDirectory(zone="example.org", loaded=True)
    resolver = following(12, names_revision=12, status=Status.STALE)
    with (
        serving(resolver, following(0, names_revision=12), following(0), elsewhere) as (first, *others),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute,
    ):
        mute.bind(("127.0.0.1", 0))
        told = [*others, mute.getsockname()[1]]
        settings = {
            "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
            "BORG_DNS_PORT": str(first),
            "BORG_DNS_SECONDARIES": ",".join(f"127.0.0.1@{port}" for port in told),
        }
        with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **settings) as url:
            yield url


@pytest.fixture
def furnished(world):
    """Create jobs whose names have answers, have only a task that does not serve, or have no task, and a very long
    name."""
    web = rows.a_job(world.cell, world.tenant, "web", tasks=6)
    for index in range(5):
        portal_world.place(web, index, world.machine)
        portal_world.report(web, index)
    portal_world.report(web, 4, phase="starting", up=False)
    assert len(LONG) == 63
    long = rows.a_job(world.cell, world.tenant, LONG, tasks=2)
    portal_world.place(long, 0, world.machine)
    rows.a_job(world.cell, world.tenant, "waiting", tasks=1)
    Job.objects.filter(pk=long.pk).update(port_names=["http", LONG], labels={"service": LONG})
    canary = rows.a_job(world.cell, world.tenant, "web-canary", tasks=3)
    for index in range(3):
        portal_world.place(canary, index, world.machine)
        portal_world.report(canary, index)
    weights = [[0, 0, 3], [2, 2, 0]]
    Job.objects.filter(pk=canary.pk).update(published={"ttl_s": 30, "weights": weights})
    Job.objects.filter(name__startswith="web").update(labels={"service": "shop"})
    return world


def test_pages_of_names_look_right(page, furnished) -> None:
    sign_in(page, "sre")
    for name, path in PAGES.items():
        page.goto(path)
        if name == "admin-names":
            look_at(page, "admin-names-asking", fits=False)
            page.get_by_text("The servers were queried at").wait_for()
        look_at(page, name, fits=not name.startswith("admin"))
