"""Tests of watching names over real sockets: long polls, WebSockets and `borgctl`, as in production."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from portal.live.consumers import LivePage
from portal.live.name_watch import NamesWatch
from quota.models import Token
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Scope, system
from scheduling.cells.cells import cell_new_history
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.models import Cell, Job, Machine
from scheduling.tasks import transitions
from serving.ports import reserved
from tests.integration import portal_server, portal_world, rows
from tests.integration.cli_world import Cli, started
from tests.integration.cuts import Cut
from tests.integration.name_servers import following, serving
from tests.integration.naming_rows import evict, place, report, use
from tests.integration.portal_world import World, signed_in

pytestmark = pytest.mark.django_db(transaction=True)
JOB = "bns/cc/ubar/jfoo"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def dns_ports() -> Iterator[list[int]]:
    """Reserve ports for two resolvers and a secondary, so that no other connection gets them, and yield them."""
    with ExitStack() as stack:
        yield [stack.enter_context(reserved("127.0.0.1", 0)) for _ in range(3)]


@pytest.fixture(scope="module")
def portal(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, dns_ports: list[int]) -> Iterator[str]:
    first, second, secondary = (f"127.0.0.1@{port}" for port in dns_ports)
    environment = {
        # A session is only a row, so sessions of the test client are valid at the server too.
        "BORG_SECRET_KEY": settings.SECRET_KEY,
        "BORG_DNS_RESOLVERS": f"{first},{second}",
        "BORG_DNS_SECONDARIES": secondary,
    }
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **environment) as url:
        yield url


@pytest.fixture
def world() -> World:
    return portal_world.make()


def token(name: str = "viewer") -> dict[str, str]:
    from django.contrib.auth import get_user_model

    user = get_user_model().objects.get(username=name)
    _, secret = token_issue(principal=system("test"), user=user, name="t", scopes=[Scope.READ.value])
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def ann(portal: str, world: World) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=portal, headers=token(), timeout=WAIT_S, trust_env=False) as client:
        yield client


def get(client: httpx.Client, path: str = JOB, status: int = 200, **query: Any) -> Any:
    answer = client.get(f"/{path}/", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


@contextmanager
def later(do: Any) -> Iterator[None]:
    """Call `do` in another thread, 0.3 s after the block has begun."""

    def soon() -> None:
        time.sleep(0.3)
        do()
        connection.close()

    thread = threading.Thread(target=soon)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# -- long polls


def test_a_poll_is_answered_as_soon_as_the_name_has_changed(ann: httpx.Client, world: World) -> None:
    before = get(ann)
    assert get(ann, after=before["revision"] - 1, wait_s=30)["revision"] == before["revision"]  # it exists already
    began = time.monotonic()
    with later(lambda: report(world.cell, world.job, 0)):
        answer = get(ann, after=before["revision"], wait_s=30, history=before["history"])
    assert 0.2 < time.monotonic() - began < 20.0
    assert answer["revision"] > before["revision"]
    assert answer["endpoints"][0]["serving"]
    assert answer == get(ann)  # the very answer that Django gives


def test_a_poll_without_news_is_answered_with_the_same_when_its_time_is_over(ann: httpx.Client, world: World) -> None:
    before = get(ann)
    rows.a_job(world.cell, rows.a_tenant("other"))  # increases the cell's revision, but does not change this name
    answer = get(ann, after=before["revision"], wait_s=0.5)
    assert without_revision(answer, before) == before["endpoints"]
    assert answer["revision"] >= before["revision"]


def test_a_client_that_waits_for_another_history_is_answered_at_once(ann: httpx.Client, world: World) -> None:
    now = get(ann)
    assert get(ann, after=now["revision"], wait_s=30, history=7)["history"] == now["history"]
    assert get(ann, after=now["revision"] + 1_000, wait_s=30)["revision"] == now["revision"]
    with later(lambda: Cell.objects.update(history_ordinal=2, revision=now["revision"] - 1)):
        assert get(ann, after=now["revision"], wait_s=30)["history"] == 2


def test_a_client_that_does_not_tell_a_history_misses_no_restore(ann: httpx.Client, world: World) -> None:
    """After a restore, a poll that does not name the cell's history is answered at once, whatever its revision is."""
    lost = get(ann)["revision"] + 7
    cell_new_history(principal=rows.ME, cell=world.cell)
    began = time.monotonic()
    task = get(ann, f"{JOB}/0", after=lost, wait_s=30)
    now = get(ann, after=lost, wait_s=30)
    assert time.monotonic() - began < 10.0
    assert now["revision"] > lost
    assert (now["history"], task["history"], now["endpoints"][0]["history"]) == (2, 2, 2)
    with later(lambda: report(world.cell, world.job, 0)):  # after that, polls wait as before
        assert get(ann, after=now["revision"], wait_s=30)["serving"] == 1


def test_what_makes_no_sense_is_refused_by_field(ann: httpx.Client) -> None:
    for query, field in (
        ({"after": "x", "wait_s": 1}, "after"),
        ({"after": "-1"}, "after"),
        ({"after": 1, "wait_s": 61}, "wait_s"),
        ({"after": 1, "wait_s": "1e1"}, "wait_s"),
        ({"wait_s": 1}, "after"),
        ({"after": 1, "history": "old"}, "history"),
    ):
        assert list(get(ann, status=422, **query)["fields"]) == [field], query


def test_a_client_that_may_not_see_a_job_does_not_wait_for_it(portal: str, world: World) -> None:
    waits = {"after": 10**6, "wait_s": 30}
    with httpx.Client(base_url=portal, trust_env=False) as nobody:
        assert get(nobody, status=401, **waits)["code"] == "not-authenticated"
    with httpx.Client(base_url=portal, headers=token("stranger"), trust_env=False) as eve:
        assert get(eve, status=404, **waits)["code"] == "not-found"
        assert get(eve, f"{JOB}/0", status=404, **waits)["code"] == "not-found"
        assert get(eve, "bns/cc/ubar/service/front", status=404, **waits)["code"] == "not-found"


def test_a_browser_polls_by_its_session(portal: str, world: World) -> None:
    cookies = {settings.SESSION_COOKIE_NAME: signed_in("viewer").cookies[settings.SESSION_COOKIE_NAME].value}
    with httpx.Client(base_url=portal, cookies=cookies, trust_env=False, timeout=WAIT_S) as browser:
        now = get(browser)["revision"]
        with later(lambda: report(world.cell, world.job, 0)):
            assert get(browser, after=now, wait_s=30)["serving"] == 1


def test_a_job_that_ends_is_not_found_by_a_client_that_waits_for_it(ann: httpx.Client, world: World) -> None:
    def end() -> None:
        with journal.write(world.cell.id, rows.ME) as entry:
            transitions.tasks_end(
                entry, [task_events.Ending(task_id(world.job.id, index), "killed") for index in range(3)]
            )

    now = get(ann)["revision"]
    with later(end):
        assert get(ann, after=now, wait_s=30, status=404)["code"] == "not-found"


def test_services_and_tasks_are_waited_for_too(ann: httpx.Client, world: World) -> None:
    label(world.job, {"service": "front"})
    service, task = get(ann, "bns/cc/ubar/service/front"), get(ann, f"{JOB}/0")
    with later(lambda: report(world.cell, world.job, 0)):
        assert get(ann, "bns/cc/ubar/service/front", after=service["revision"], wait_s=30)["serving"] == 1
    assert get(ann, f"{JOB}/0", after=task["revision"], wait_s=30)["serving"]


def label(job: Job, labels: dict[str, str]) -> None:
    with journal.write(job.cell_id, rows.ME) as entry:
        Job.objects.filter(pk=job.pk).update(labels=labels)
        entry.append(
            events.JobChanged(
                job_id=job.id,
                priority=job.priority,
                latency_sensitive=True,
                spec_version=1,
                labels=labels,
                port_names=("http",),
            )
        )


def test_hundreds_wait_with_few_connections_and_hear_the_same(portal: str, world: World) -> None:
    number = 150

    def send_report() -> None:
        report(world.cell, world.job, 0)
        connection.close()

    headers = token()

    async def poll(client: httpx.AsyncClient, after: int) -> Any:
        answer = await client.get(f"/{JOB}/", params={"after": after, "wait_s": 60})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def everybody(after: int) -> tuple[list[Any], int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=portal, headers=headers, timeout=60, limits=limits, trust_env=False
        ) as client:
            waiting = [asyncio.create_task(poll(client, after)) for _ in range(number)]
            for _ in range(200):  # until all of them wait
                await asyncio.sleep(0.05)
                if await asyncio.to_thread(quiet):
                    break
            assert not any(task.done() for task in waiting)
            busy = await asyncio.to_thread(sessions)
            await asyncio.to_thread(send_report)
            return await asyncio.gather(*waiting), busy

    before = journal.newest(world.cell.id)
    answers, busy = asyncio.run(everybody(before))
    assert busy <= 8 + 2, "PostgreSQL sessions of the web process"
    assert len(answers) == number
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["serving"] == 1


def quiet(seen: list[int] = []) -> bool:  # noqa: B006 - the results of earlier calls
    """Return whether the last three calls found no recent query of the web process; the first ten return False."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND query_start > now() - interval '0.4 s'"
            " AND query LIKE '%%quota_token%%'"
        )
        (busy,) = cursor.fetchone()
    connection.close()
    seen.append(busy)
    return len(seen) > 10 and not any(seen[-3:])


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        (number,) = cursor.fetchone()
    connection.close()
    return int(number)


def test_no_change_is_lost_between_polls(ann: httpx.Client, world: World) -> None:
    """While a job changes quickly, a client that polls with the revision of its last answer ends up to date."""
    heard_of, done = threading.Event(), threading.Event()

    def disturb() -> None:
        for number in range(60):
            if number == 30:  # a busy portal would send all changes at once
                heard_of.wait(WAIT_S)
            report(world.cell, world.job, 0, health="unhealthy" if number % 2 else "healthy")
        report(world.cell, world.job, 0, health="healthy")
        place(world.cell, world.job, Machine.objects.get(), 2, ports=21_000)
        done.set()
        connection.close()

    known = get(ann)
    thread = threading.Thread(target=disturb)
    thread.start()
    answers = 0
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and not (done.is_set() and known["placed"] == 2):
        known = get(ann, after=known["revision"], wait_s=5, history=known["history"])
        answers += 1
        heard_of.set()
    thread.join()
    assert without_revision(get(ann), known) == known["endpoints"]
    assert 2 <= answers <= 62, "there were no more changes"
    last = get(ann, after=known["revision"], wait_s=0.3)
    assert without_revision(last, known) == known["endpoints"], "and there is no more to come"


def without_revision(answer: Any, like: Any) -> Any:
    """Return the endpoints of an answer with the revisions of the endpoints of `like`, so that both can be compared."""
    return [
        {**one, "revision": other["revision"]}
        for one, other in zip(answer["endpoints"], like["endpoints"], strict=True)
    ]


# -- WebSockets


@contextmanager
def watching(
    portal: str,
    name: str = "cc/ubar/jfoo",
    *,
    headers: dict[str, str] | None = None,
    session: Client | None = None,
    origin: str | None = "",
) -> Iterator[ClientConnection]:
    if session is not None:
        cookie = session.cookies[settings.SESSION_COOKIE_NAME].value
        headers = {**(headers or {}), "Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"}
    with connect(
        f"{portal.replace('http', 'ws')}/ws/bns/{name}/",
        origin=portal if origin == "" else origin,  # type: ignore[arg-type]
        additional_headers=headers or {},
        open_timeout=WAIT_S,
        proxy=None,
    ) as socket:
        yield socket


def heard(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(timeout=WAIT_S))


def test_a_program_with_a_token_needs_no_origin_but_a_session_does(portal: str, world: World) -> None:
    with watching(portal, headers=token(), origin=None) as socket:
        assert heard(socket)["type"] == "state"
    # Browsers send the user in an address as Basic credentials, which are not a token.
    for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": ""}):
        for origin in (None, "https://evil.example"):
            session = signed_in("viewer")
            with pytest.raises(InvalidStatus), watching(portal, headers=headers, session=session, origin=origin):
                pass


def test_an_empty_token_is_none(portal: str, world: World) -> None:
    for value in ("", "Basic YTpi", "Bearer", "Bearer nonsense"):
        for query in ("", "?after=0&wait_s=1"):
            answer = httpx.get(f"{portal}/{JOB}/{query}", headers={"Authorization": value})
            assert answer.status_code == 401, (value, query)


def test_a_watcher_gets_the_state_then_what_changes(portal: str, world: World) -> None:
    with watching(portal, headers=token()) as socket:
        first = heard(socket)
        assert (first["type"], first["state"]["placed"]) == ("state", 1)
        socket.send("of no consequence")
        report(world.cell, world.job, 0)
        change = heard(socket)
        assert (change["type"], change["facts"]["serving"], change["gone"]) == ("change", 1, [])
        assert [(one["index"], one["serving"]) for one in change["changed"]] == [(0, True)]
        assert change["revision"] > first["revision"]
        evict(world.cell, world.job, 0)
        change = heard(socket)
        assert (change["changed"], change["gone"]) == ([], ["/bns/cc/ubar/jfoo/0"])
        assert change["facts"]["placed"] == 0


def test_a_watcher_of_a_browser_hears_of_loads_and_the_end(portal: str, world: World) -> None:
    with watching(portal, session=signed_in("viewer")) as socket:
        assert heard(socket)["type"] == "state"
        use(world.job, 0, cpu_milli=30)
        change = heard(socket)
        assert [one["load"] for one in change["changed"]] == [0.3]
        with journal.write(world.cell.id, rows.ME) as entry:
            transitions.tasks_end(
                entry, [task_events.Ending(task_id(world.job.id, index), "killed") for index in range(3)]
            )
        assert heard(socket)["type"] == "gone"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4404


def test_tasks_and_services_are_watched_by_their_names(portal: str, world: World) -> None:
    label(world.job, {"service": "front"})
    with (
        watching(portal, "cc/ubar/service/front", headers=token()) as service,
        watching(portal, "cc/ubar/jfoo/0", headers=token("operator")) as task,
    ):
        assert heard(service)["state"]["jobs"] == ["/bns/cc/ubar/jfoo"]
        assert heard(task)["state"]["index"] == 0
        report(world.cell, world.job, 0)
        assert heard(service)["facts"]["serving"] == 1
        assert [one["serving"] for one in heard(task)["changed"]] == [True]


def test_a_client_that_may_not_watch_gets_the_reason(portal: str, world: World) -> None:
    viewer, stranger, ended = token(), token("stranger"), token("operator")
    Token.objects.filter(user__username="operator").update(revoked_at="2020-01-01T00:00:00Z")
    for name, headers, code in (
        ("cc/ubar/jfoo", None, 4401),
        ("cc/ubar/jfoo", ended, 4401),
        ("cc/ubar/jfoo", stranger, 4404),
        ("cc/ubar/jfoo/0", stranger, 4404),
        ("cc/ubar/service/front", stranger, 4404),
        ("cc/ubar/none", viewer, 4404),
        ("cc/ubar/jfoo/9", viewer, 4404),
        ("cc/ubar/service/none", viewer, 4404),
        ("cc/machine/m1", viewer, 4404),
        ("cc/ubar", viewer, 4422),
        ("cc/ubar/j_foo", viewer, 4422),
    ):
        with watching(portal, name, headers=headers) as socket:
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=WAIT_S)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == code, name


def test_rights_are_asked_for_again_after_the_database_was_away(world: World) -> None:
    asked: list[bool] = []
    closed: list[int] = []

    def away_at_first() -> None:
        asked.append(True)
        if len(asked) % 2:
            raise OperationalError("the server closed the connection")

    class Watch(NamesWatch):
        recheck_s = 0.0

        def find(self) -> None:
            away_at_first()

        async def close(self, code: int | None = None, reason: str | None = None) -> None:
            closed.append(code or 0)

    class Page(LivePage):
        recheck_s = 0.0

        def find(self) -> None:
            away_at_first()

        async def close(self, code: int | None = None, reason: str | None = None) -> None:
            closed.append(code or 0)

    asyncio.run(asyncio.wait_for(Watch().recheck(), WAIT_S))
    asyncio.run(asyncio.wait_for(Page().recheck(), WAIT_S))
    assert (len(asked), closed) == (4, [4401, 4401])


def test_a_page_of_another_site_may_not_watch(portal: str, world: World) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        watching(portal, session=signed_in("viewer"), origin="https://evil.example"),
    ):
        pass
    assert refused.value.response.status_code == 403


# -- borgctl


@pytest.fixture
def cli(portal: str, world: World, tmp_path: Path) -> Cli:
    return Cli(tmp_path, portal, BORG_TOKEN=token()["Authorization"].removeprefix("Bearer "))


def test_borgctl_resolves_services_and_machines(cli: Cli, world: World) -> None:
    label(world.job, {"service": "front"})
    report(world.cell, world.job, 0)
    use(world.job, 0, cpu_milli=42)
    expected = [
        "/bns/cc/ubar/jfoo/0",
        "0.jfoo.ubar.cc.borg.internal",
        "127.0.0.1",
        "http=20000",
        "yes",
        "healthy",
        "1",
        "42%",
        "5s",
        "up",
        "m1",
    ]
    assert cli.out("resolve", "service/front").splitlines()[1].split() == expected
    machine = ["/bns/cc/machine/m1", "m1.machine.cc.borg.internal", "127.0.0.1", "5s", "up"]
    assert cli.out("resolve", "machine/m1").splitlines()[1].split() == machine
    assert cli.json("resolve", "/bns/cc/ubar/service/front")["jobs"] == ["/bns/cc/ubar/jfoo"]
    assert cli.run("resolve", "service/none", "--watch").returncode == 1


def test_borgctl_tells_each_change_on_a_line_and_outlives_the_connection(cli: Cli, portal: str, world: World) -> None:
    way = Cut(portal)
    cli.environment["BORG_URL"] = way.url
    try:
        with started(cli, "resolve", "jfoo", "--watch") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines = process.stdout
            told = lines.readline()
            assert "/bns/cc/ubar/jfoo/0  127.0.0.1:20000  not serving  unknown  weight 1  load -" in told
            assert "no task serves, so clients get all tasks" in lines.readline()
            report(world.cell, world.job, 0)
            assert "/bns/cc/ubar/jfoo/0  127.0.0.1:20000  serving  healthy" in lines.readline()
            assert "tasks serve again" in lines.readline()
            way.cut()
            assert "Trying again in 0.5 s." in process.stderr.readline()
            place(world.cell, world.job, Machine.objects.get(), 1, ports=21_000)
            assert "/bns/cc/ubar/jfoo/1  127.0.0.1:21001  not serving" in lines.readline(), "and nothing twice"
            evict(world.cell, world.job, 1)
            assert lines.readline().endswith("/bns/cc/ubar/jfoo/1  gone\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
    finally:
        way.close()


def test_borgctl_prints_messages_and_ends_with_the_job(cli: Cli, world: World) -> None:
    with started(cli, "resolve", "jfoo/0", "--watch", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["state"]["index"] == 0
        report(world.cell, world.job, 0)
        assert json.loads(process.stdout.readline())["changed"][0]["serving"]
        with journal.write(world.cell.id, rows.ME) as entry:
            transitions.tasks_end(
                entry, [task_events.Ending(task_id(world.job.id, index), "killed") for index in range(3)]
            )
        assert json.loads(process.stdout.readline())["type"] == "gone"
        assert json.loads(process.stdout.read())["code"] == "not-found"
        assert process.wait(WAIT_S) == 1


def test_waiting_for_visible_names_who_is_behind(
    cli: Cli, ann: httpx.Client, world: World, dns_ports: list[int]
) -> None:
    waits = ("wait", "jfoo", "--for", "visible", "--timeout")
    place(world.cell, world.job, Machine.objects.get(), 1, 2)
    for index in range(3):
        report(world.cell, world.job, index)
    now = journal.newest(world.cell.id)
    sentence, _ = cli.failing(*waits, "0.1")
    assert f"resolver 127.0.0.1:{dns_ports[0]} does not report its version (silent" in sentence
    first, second, secondary = following(now), following(now - 1), following(0, names_revision=2)
    with serving(first, second, secondary, at=dns_ports):
        sentence, _ = cli.failing(*waits, "0.1")
        assert (
            f"3 of 3 tasks running, but resolver 127.0.0.1:{dns_ports[1]} is at {now - 1}, not yet at {now}" in sentence
        )
        followed = get(ann, "bns/cc")
        assert (followed["zone"], followed["revision"], followed["serial"]) == ("cc.borg.internal", now - 1, 3)
        assert [(one["reached"], one["caught_up"]) for one in followed["resolvers"]] == [(True, True), (True, False)]
        second.cells["cc"].revision = now
        sentence, _ = cli.failing(*waits, "0.1")
        assert f"secondary 127.0.0.1:{dns_ports[2]} is at 2, not yet at 3" in sentence
        assert cli.out(*waits, "9", "--without-secondaries") == "cc/ubar/jfoo: 3 of 3 tasks running.\n"
        secondary.cells["cc"].names_revision = 3
        assert cli.out(*waits, "9") == "cc/ubar/jfoo: 3 of 3 tasks running.\n"
        (one,) = get(ann, "bns/cc")["secondaries"]
        assert one == {
            "address": f"127.0.0.1:{dns_ports[2]}",
            "kind": "secondary",
            "serial": 3,
            "revision": None,
            "reached": True,
            "caught_up": True,
            "error": "",
        }
    assert get(ann, "bns/none", 404)["code"] == "not-found"
    for seconds in ("0", "2.1", "soon"):
        assert list(get(ann, "bns/cc", 422, within_s=seconds)["fields"]) == ["within_s"]
