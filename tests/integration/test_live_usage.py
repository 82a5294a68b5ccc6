"""Tests of live pages over real sockets: the web process as in production, Redis, PostgreSQL and a client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import strip_tags
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from portal.live.hub import OUTBOX, Hub, Viewer
from portal.live.page_changes import MOST_ROWS, MachinesTopic, TasksTopic, news_of
from quota.models import Membership
from scheduling.core.vocabulary import task_events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.models import Job
from scheduling.tasks import transitions
from tests.integration import portal_server, portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 30.0
MOST_WATCHES = 6
JOB = "live/jobs/cc/ubar/jfoo/"
MACHINES = "live/cells/cc/machines/"


@pytest.fixture(scope="module")
def portal(django_db_setup, tmp_path_factory):
    # A session is only a row, so sessions of the test client are valid at the server too.
    environment = {"BORG_SECRET_KEY": settings.SECRET_KEY, "BORG_MAX_WATCHES_PER_CALLER": str(MOST_WATCHES)}
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **environment) as url:
        yield url


@pytest.fixture
def world():
    return portal_world.make()


@contextmanager
def watching(portal: str, path: str, client: Client | None, *, revision: int = 0, origin: str | None = None):
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value if client else ""
    with connect(
        f"{portal.replace('http', 'ws')}/{path}?revision={revision}",
        origin=origin or portal,
        additional_headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"} if cookie else {},
        open_timeout=WAIT_S,
    ) as socket:
        yield socket


def until(socket: Any, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read messages until one is as wanted, and return it. Their sequence numbers must have no gap."""
    seq = None
    for _message in range(50):
        message = json.loads(socket.recv(timeout=WAIT_S))
        assert seq is None or message["seq"] == seq + 1
        seq = message["seq"]
        if wanted(message):
            return message
    raise AssertionError("the message did not come")


def test_a_job_page_receives_what_changed(portal, world) -> None:
    now = journal.newest(world.cell.id)
    row = f"task-{task_id(world.job.id, 0)}"
    with watching(portal, JOB, signed_in("viewer"), revision=now) as socket:
        hello = json.loads(socket.recv(timeout=WAIT_S))
        assert (hello["hello"], hello["resync"], hello["revision"]) == (True, False, now)
        portal_world.report(world.job, 0)
        news = until(socket, lambda message: row in message.get("rows", {}))
        assert "running" in news["rows"][row]
        assert "1 of 3 tasks running" in news["parts"]["job-status"]
        assert "The only placed task is serving" in news["parts"]["job-answers"]
        assert "task 0 is up on m1" in strip_tags(news["parts"]["job-events"])
        assert news["revision"] == now + 1
        assert list(news["rows"]) == [row]


def test_a_cell_page_receives_machines_and_counters(portal, world) -> None:
    now = journal.newest(world.cell.id)
    row = f"machine-{world.machine.id}"
    with watching(portal, MACHINES, signed_in("stranger"), revision=now) as socket:
        json.loads(socket.recv(timeout=WAIT_S))
        portal_world.place(world.job, 1, world.machine)
        news = until(socket, lambda message: row in message.get("rows", {}))
        assert '<td class="num" data-label="Tasks">2</td>' in news["rows"][row]
        assert "cell-counts" in news["parts"]
        assert not news["resync"]
        rows.a_machine(world.cell, "m2")
        assert until(socket, lambda message: message["resync"])


def test_a_page_made_before_the_news_reads_itself_again(portal, world) -> None:
    with watching(portal, JOB, signed_in("viewer"), revision=0) as socket:
        assert json.loads(socket.recv(timeout=WAIT_S))["resync"] is True


def test_a_user_who_watches_too_much_is_asked_to_come_later_and_others_are_not(portal, world) -> None:
    owner = signed_in("owner")
    cookies = {settings.SESSION_COOKIE_NAME: owner.cookies[settings.SESSION_COOKIE_NAME].value}

    def poll() -> httpx.Response:
        asked = {"after": journal.newest(world.cell.id), "wait_s": 0.1}
        return httpx.get(f"{portal}/bns/cc/ubar/jfoo/", params=asked, cookies=cookies, timeout=WAIT_S)

    def why_not(path: str) -> int:
        with watching(portal, path, owner) as socket, pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=WAIT_S)
        return closed.value.rcvd.code

    with ExitStack() as held:
        for path in [JOB, MACHINES] * (MOST_WATCHES // 2):
            socket = held.enter_context(watching(portal, path, owner))
            assert json.loads(socket.recv(timeout=WAIT_S))["hello"]
        assert [why_not(path) for path in (JOB, "ws/bns/cc/ubar/jfoo/")] == [4429, 4429]
        refused = poll()
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert refused.json()["code"] == "too-many-watches"
        with watching(portal, JOB, signed_in("viewer")) as socket:
            assert json.loads(socket.recv(timeout=WAIT_S))["hello"]
    ends_at = time.monotonic() + WAIT_S
    while poll().status_code == 429:  # until the portal has noticed that they are closed
        assert time.monotonic() < ends_at
    for _ in range(MOST_WATCHES + 1):  # a poll returns what it has taken from the limit
        assert poll().status_code == 200


def test_the_verdict_on_pending_tasks_comes_though_it_is_not_an_event(portal, world) -> None:
    from django.utils import timezone

    from scheduling.models import PendingVerdict

    now = journal.newest(world.cell.id)
    with watching(portal, JOB, signed_in("viewer"), revision=now) as socket:
        socket.recv(timeout=WAIT_S)
        PendingVerdict.objects.create(
            job=world.job,
            revision=now,
            at=timezone.now(),
            whys=[
                {
                    "tasks": [[world.job.id, 2]],
                    "machines": 4,
                    "ruled_out": [{"code": "machine-state", "subject": "", "machines": 4}],
                }
            ],
        )
        news = until(socket, lambda message: "job-status" in message.get("parts", {}))
        assert "4 machines not up" in news["parts"]["job-status"]


@pytest.mark.parametrize(
    "path, name, code, reason",
    [
        (JOB, None, 4401, "sign in"),
        (JOB, "stranger", 4404, "no job"),
        ("live/jobs/cc/ubar/none/", "viewer", 4404, "no job"),
        ("live/cells/xx/machines/", "viewer", 4404, "no cell"),
        ("live/elsewhere/", "viewer", 4404, "no live page"),
    ],
)
def test_a_user_who_may_not_watch_is_reported_why(portal, world, path, name, code, reason) -> None:
    with watching(portal, path, signed_in(name) if name else None) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd.code == code
        assert reason in closed.value.rcvd.reason


def test_a_page_of_another_site_may_not_watch(portal, world) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        watching(portal, JOB, signed_in("viewer"), origin="https://evil.example"),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_what_a_viewer_sends_is_of_no_consequence(portal, world) -> None:
    now = journal.newest(world.cell.id)
    with watching(portal, JOB, signed_in("viewer"), revision=now) as socket:
        socket.recv(timeout=WAIT_S)
        socket.send("{not json")
        socket.send(b"\x00\xff")
        portal_world.report(world.job, 0)
        assert until(socket, lambda message: message.get("rows"))


def test_a_member_who_was_removed_does_not_come_in_again(portal, world) -> None:
    client = signed_in("viewer")
    Membership.objects.filter(user__username="viewer").delete()
    with watching(portal, JOB, client) as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=WAIT_S)
    assert closed.value.rcvd.code == 4404


class Loop:
    """A stand-in for the event loop of a viewer, which calls functions at once."""

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)


def ticks(hub: Hub) -> int:
    with CaptureQueriesContext(connection) as captured:
        hub._tick()
    return len(captured)


def test_a_tick_costs_the_same_for_one_viewer_and_for_fifty(world) -> None:
    hub = Hub()
    hub._thread = object()  # type: ignore[assignment]  # ticks are ours
    topic = TasksTopic(world.cell.id, world.job.id)
    first = Viewer(topic, Loop())  # type: ignore[arg-type]
    hub.watch(first, revision=0)
    portal_world.report(world.job, 0, phase="starting", up=False)
    alone = ticks(hub)
    others = [Viewer(topic, Loop()) for _ in range(50)]  # type: ignore[arg-type]
    for viewer in others:
        hub.watch(viewer, revision=0)
    portal_world.report(world.job, 0)
    assert ticks(hub) == alone
    assert ticks(hub) <= 2
    assert [viewer.outbox.qsize() for viewer in others] == [1] * 50
    for viewer in (first, *others):
        hub.leave(viewer)
    assert hub._cells() == frozenset()


def test_rows_cost_the_same_for_one_task_that_stops_and_for_many(world) -> None:
    many = rows.a_job(world.cell, world.tenant, "many", tasks=5)
    for index in range(5):
        portal_world.place(many, index, world.machine, port=20100)
    topic = TasksTopic(world.cell.id, many.id)

    def reported(*indexes: int) -> int:
        before = journal.newest(world.cell.id)
        with journal.write(world.cell.id, rows.ME) as entry:
            endings = [task_events.Ending(task_id(many.id, index), "killed") for index in indexes]
            transitions.tasks_end(entry, endings)
        news = news_of(world.cell.id, after=before, until=journal.newest(world.cell.id))
        with CaptureQueriesContext(connection) as captured:
            changed = topic.changes(news)
        assert changed is not None
        assert len(changed.rows) == len(indexes)
        assert all("is still stopping on m1" in strip_tags(row) for row in changed.rows.values())
        return len(captured)

    assert reported(0) == reported(1, 2, 3)


def test_a_slow_viewer_loses_messages_and_is_asked_to_read_again(world) -> None:
    viewer = Viewer(TasksTopic(1, 1), Loop())  # type: ignore[arg-type]
    for seq in range(OUTBOX + 1):
        viewer.put({"seq": seq, "revision": seq, "rows": {}, "parts": {}, "resync": False})
    assert viewer.outbox.qsize() == 1
    assert viewer.outbox.get_nowait() == {"seq": OUTBOX, "revision": OUTBOX, "resync": True}


def test_too_much_news_asks_for_the_page_instead_of_rows(world) -> None:
    big = rows.a_job(world.cell, world.tenant, "big", tasks=MOST_ROWS + 1)
    before = journal.newest(world.cell.id)
    with journal.write(world.cell.id, rows.ME) as entry:
        transitions.tasks_place(
            entry, [Assignment(big.id, index, world.machine.id, (20100 + index,)) for index in range(MOST_ROWS + 1)]
        )
    news = news_of(world.cell.id, after=before, until=journal.newest(world.cell.id))
    told = TasksTopic(world.cell.id, big.id).changes(news)
    assert told is not None
    assert (told.rows, told.resync) == ({}, True)
    assert TasksTopic(world.cell.id, world.job.id).changes(news) is None
    assert Job.objects.get(pk=big.id).tasks_running == MOST_ROWS + 1
    of_machines = MachinesTopic(world.cell.id).changes(news)
    assert of_machines is not None
    assert list(of_machines.rows) == [f"machine-{world.machine.id}"]
