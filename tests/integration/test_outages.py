"""Tests of a web process whose database hangs, ends connections or has none free: it answers 503 in time.

A request that was answered with 503 has no effect later.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import connection, transaction

from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Role, Scope, system
from scheduling.models import Cell, Job
from tests.integration import portal_server, rows
from tests.integration.portal_world import signed_in
from tests.integration.world import a_file, a_user
from tests.quickness import stretch

pytestmark = pytest.mark.django_db(transaction=True)

DEADLINE_S = 5
JOBS = "/api/v1/cells/cc/jobs/"
NO_THREAD = "All threads of this process"


@pytest.fixture(scope="module")
def portal(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {
        "BORG_SECRET_KEY": settings.SECRET_KEY,
        "BORG_REQUEST_DEADLINE_S": str(DEADLINE_S),
        "BORG_DATABASE_POOL": "3",
    }
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **environment) as url:
        yield url


@pytest.fixture
def client(portal: str) -> Iterator[httpx.Client]:
    """Yield an HTTP client with the token of an operator, when the web process answers. The tenant has quota."""
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    user = a_user("ann", tenant=tenant, role=Role.OPERATOR)
    scopes = [Scope.READ.value, Scope.WRITE.value]
    _, secret = token_issue(principal=system("test"), user=user, name="t", scopes=scopes)
    cookies = {"sessionid": signed_in("ann").cookies["sessionid"].value}
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=portal, headers=headers, cookies=cookies, timeout=60.0) as made:
        until = time.monotonic() + 30.0
        while made.get(JOBS).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.1)
        yield made


@contextmanager
def standing_still(*, whole: bool = False) -> Iterator[None]:
    """Stop the PostgreSQL processes of the web process with SIGSTOP until the block ends, but not those of tests.

    `whole`: stop also the process that accepts new connections.
    """
    pids = _backends()
    assert pids
    if whole:
        stat = Path(f"/proc/{pids[0]}/stat").read_text()
        pids.append(int(stat.rpartition(")")[2].split()[1]))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _backends() -> list[int]:
    """Return the ids of the PostgreSQL processes that serve the connection pool of the web process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND application_name = 'borg-portal'"
        )
        return [row[0] for row in cursor.fetchall()]


@contextmanager
def cell_locked() -> Iterator[None]:
    """Lock the row of the cell until the block ends, so that submissions wait."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Cell.objects.select_for_update().get(name="cc")
            held.set()
            over.wait(60.0)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30.0)
    try:
        yield
    finally:
        over.set()
        thread.join()


def _unavailable(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["Retry-After"]) > 0
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == "database-unavailable"
    return problem


def test_every_door_answers_in_time_while_postgresql_stands_still(client: httpx.Client) -> None:
    slower, began = stretch(), time.monotonic()
    doors = ["/", "/admin/", "/accounts/login/", JOBS, "/bns/cc/ubar/jfoo", "/api/v1/feeds/prometheus/", "/metrics"]
    doors += ["/bns/cc/ubar/jfoo?after=1&wait_s=1", "/.well-known/jwks.json"]
    with standing_still(whole=True), ThreadPoolExecutor(len(doors)) as threads:
        answers = dict(zip(doors, threads.map(client.get, doors), strict=True))
        assert client.get("/healthz").status_code == 200
        took = time.monotonic() - began
    assert took < (DEADLINE_S + 5.0) * slower
    told = {door: answer.status_code for door, answer in answers.items()}
    assert set(told.values()) == {503}, told
    for door, answer in answers.items():
        assert answer.headers["Retry-After"]
        people = door in ("/", "/admin/", "/accounts/login/")
        kind = "text/html" if people else "application/problem+json"
        assert answer.headers["Content-Type"].startswith(kind), door


def test_the_process_recovers_without_the_connections_that_stood_still(client: httpx.Client) -> None:
    with standing_still():
        until = time.monotonic() + 60.0
        while client.get(JOBS).status_code != 200:
            assert time.monotonic() < until


def test_a_submission_that_was_given_up_is_never_applied(client: httpx.Client) -> None:
    with cell_locked():
        began = time.monotonic()
        _unavailable(client.post(JOBS, json=a_file("late")))
        assert time.monotonic() - began < (DEADLINE_S + 5.0) * stretch()
    time.sleep(1.0)
    assert not Job.objects.filter(name="late").exists()
    assert client.post(JOBS, json=a_file("late")).status_code == 201


def test_many_requests_during_a_slow_database_get_503_in_time(client: httpx.Client) -> None:
    """More submissions wait for a locked cell than there are connections, and than there are threads. Each is rejected
    with a time, and soon after the lock ends, submissions are accepted again.
    """
    number, slower, began = 60, stretch(), time.monotonic()
    with cell_locked(), ThreadPoolExecutor(number) as threads:
        answers = list(threads.map(lambda n: client.post(JOBS, json=a_file(f"slow{n}")), range(number)))
        assert time.monotonic() - began < (DEADLINE_S + 5.0) * slower
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) > 0
    codes = {answer.json()["code"] for answer in answers}
    assert {"overloaded", "database-unavailable"} <= codes <= {"overloaded", "database-unavailable", "cell-busy"}, codes
    until = time.monotonic() + 5.0 * slower
    while client.post(JOBS, json=a_file("afterwards")).status_code != 201:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert list(Job.objects.values_list("name", flat=True)) == ["afterwards"]


def patient(ask: Callable[[], httpx.Response], cause: str = "") -> httpx.Response:
    """Send a request until its answer is not 503, because other work may slow this host down. An answer 503 without the
    text `cause` is final.
    """
    until = time.monotonic() + 4 * DEADLINE_S * stretch()
    while (answer := ask()).status_code == 503 and cause in answer.text:
        assert int(answer.headers["Retry-After"]) > 0
        assert time.monotonic() < until, answer.text
        time.sleep(0.2)
    return answer


def test_bulk_submissions_do_not_starve_single_ones(client: httpx.Client) -> None:
    """More bulk submissions arrive than may run at once. Single submissions are accepted meanwhile, and each bulk
    submission is accepted, or rejected with a time.
    """

    def bulk(number: int) -> httpx.Response:
        return client.post("/api/v1/cells/cc/jobs:bulk", json=[a_file(f"b{number}-{n}", tasks=1) for n in range(20)])

    with ThreadPoolExecutor(5) as threads:
        bulks = [threads.submit(bulk, number) for number in range(5)]
        for number in range(10):
            single = a_file(f"single{number}", tasks=1)
            assert patient(partial(client.post, JOBS, json=single)).status_code in (200, 201)
        answers = [each.result() for each in bulks]
    assert any(answer.status_code == 200 for answer in answers)
    for answer in answers:
        assert answer.status_code == 200 or int(answer.headers["Retry-After"]) > 0, answer.text


def test_pages_about_errors_hold_no_connection(client: httpx.Client) -> None:
    """Pages about errors hold no database connection: Django makes them in more threads than there are connections."""
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda n: patient(partial(client.get, f"/no/such/page/{n}"), NO_THREAD), range(60)))
    assert {answer.status_code for answer in answers} == {404}
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda n: patient(partial(client.get, JOBS), NO_THREAD), range(12)))
    assert {answer.status_code for answer in answers} == {200}


def test_connections_that_clients_end_are_not_internal_errors(client: httpx.Client) -> None:
    """While an operator ends all connections again and again, submissions are accepted or answered with 503."""
    over = threading.Event()

    def end_them() -> None:
        while not over.wait(0.05):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND datname = current_database() AND application_name = 'borg-portal'"
                    " AND backend_type = 'client backend' AND pid = ANY(%s)",
                    [[pid for pid in _backends() if pid not in kept]],
                )
        connection.close()

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        kept = {cursor.fetchone()[0]}
    thread = threading.Thread(target=end_them)
    thread.start()
    try:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda n: client.post(JOBS, json=a_file(f"j{n}")), range(40)))
    finally:
        over.set()
        thread.join()
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {200, 201, 503}, statuses
    acknowledged = {f"j{n}" for n, status in enumerate(statuses) if status != 503}
    stored = list(Job.objects.values_list("name", flat=True))
    assert acknowledged <= set(stored)
    assert len(stored) == len(set(stored))
