"""Tests of `python -m naming.server` as a process of its own on PostgreSQL and Redis, with real DNS questions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rcode
import psycopg
import pytest
from django.db import connection

from naming.table.table import serial_of, serial_start
from scheduling.models import Cell, Job
from tests.integration.naming_rows import place, report
from tests.integration.rows import a_cell, a_job, a_machine, a_tenant
from tests.ports import free_port
from tests.quickness import one_takes_less
from tests.unit.naming.cells import texts

pytestmark = pytest.mark.django_db(transaction=True)
BOUND_S = 40.0
ALL, BUT_ONE = {20_000, 20_001, 20_002}, {20_000, 20_002}
ROOT = Path(__file__).resolve().parents[2]


class Process:
    def __init__(self, port: int, **settings: str) -> None:
        url = os.environ["BORG_DATABASE_URL"]
        name = connection.settings_dict["NAME"]
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "portal.settings.test",
            "BORG_DATABASE_URL": re.sub(r"^(postgresql://[^/]*)/[^?]*", rf"\1/{name}", url),
            "BORG_DNS_HOST": "127.0.0.1",
            "BORG_DNS_PORT": str(port),
            **settings,
        }
        self.port = port
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "naming.server"], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )

    def ask(self, name: str, rdtype: str = "A", *, patience_s: float = BOUND_S) -> dns.message.Message:
        query = dns.message.make_query(f"{name}.borg.internal.", rdtype, use_edns=0)
        return dns.query.udp(query, "127.0.0.1", port=self.port, timeout=patience_s)

    def until(self, wanted: Callable[[], bool]) -> None:
        """Wait until the condition is true. While the process does not listen yet, the condition counts as false."""
        deadline = time.monotonic() + BOUND_S
        while True:
            try:
                if wanted():
                    return
            except (dns.exception.Timeout, OSError):
                assert self.popen.poll() is None, self.popen.stderr and self.popen.stderr.read()
            assert time.monotonic() < deadline, "not within the bound"
            time.sleep(0.01)

    def until_text(self, name: str, text: str) -> None:
        self.until(lambda: text in "".join(texts(self.ask(name, "TXT", patience_s=0.5))))

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        status = self.popen.wait(BOUND_S)
        if self.popen.stderr is not None:
            self.popen.stderr.close()
        return status


@pytest.fixture
def job() -> Job:
    cell = a_cell()
    machine, job = a_machine(cell), a_job(cell, a_tenant())
    place(cell, job, machine, 0, 1, 2)
    for index in range(3):
        report(cell, job, index)
    return job


@contextmanager
def started(port: int, status: str = "ok", **settings: str) -> Iterator[Process]:
    process = Process(port, **settings)
    try:
        process.until_text("health", f"status={status}")
        yield process
    finally:
        if process.popen.poll() is None:
            process.stop()


@pytest.fixture
def resolver(job: Job) -> Iterator[Process]:
    with started(free_port()) as process:
        yield process


@contextmanager
def closed_database() -> Iterator[None]:
    """Make PostgreSQL reject all connections to the test's database except the test's own, until the block ends."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as mine:
        mine.execute("SELECT pg_backend_pid()")
        (own,) = mine.fetchone()
    # Only a session of another database can close a database.
    with psycopg.connect(os.environ["BORG_DATABASE_URL"], autocommit=True) as outside, outside.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND pid <> %s",
                [name, own],
            )
            yield
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def ports(resolver: Process) -> set[int]:
    response = resolver.ask("_http._tcp.jfoo.ubar.cc", "SRV")
    return {rdata.port for rrset in response.answer for rdata in rrset}


def test_it_starts_from_rows_follows_the_journal_and_stops_cleanly(resolver: Process, job: Job) -> None:
    assert texts(resolver.ask("1.jfoo.ubar.cc")) == ["127.0.0.1"]
    assert ports(resolver) == {20_000, 20_001, 20_002}

    def follows(attempt: int) -> float:
        after = turned(job, attempt)
        revision, began = Cell.objects.get().revision, time.monotonic()
        resolver.until_text("cc", f'"revision={revision}"')
        took_s = time.monotonic() - began
        assert ports(resolver) == after
        return took_s

    one_takes_less(1.0, follows)
    assert resolver.stop() == 0


def turned(job: Job, attempt: int) -> set[int]:
    """Make task 1 unhealthy, or healthy if `attempt` is odd. Return the ports that the resolver should then answer."""
    report(job.cell, job, 1, health="healthy" if attempt % 2 else "unhealthy")
    return ALL if attempt % 2 else BUT_ONE


def answers_meanwhile_and_is_current_within_a_second_after(
    resolver: Process, job: Job, away: Callable[[], AbstractContextManager[None]], *, away_s: float
) -> None:
    def goes_and_comes_back(attempt: int) -> float:
        before = ports(resolver)
        with away():
            after = turned(job, attempt)
            ended = time.monotonic() + away_s
            while time.monotonic() < ended:
                assert ports(resolver) == before
        began = time.monotonic()
        resolver.until(lambda: ports(resolver) == after)
        return time.monotonic() - began

    one_takes_less(1.0, goes_and_comes_back)


def test_a_new_cell_is_answered(resolver: Process) -> None:
    cell = a_cell("dd")
    new = a_job(cell, a_tenant(), "db", tasks=1)
    place(cell, new, a_machine(cell), 0)
    resolver.until(lambda: texts(resolver.ask("db.ubar.dd")) == ["127.0.0.1"])


def test_answers_go_on_while_postgresql_refuses_and_are_current_within_a_second_after(
    resolver: Process, job: Job
) -> None:
    answers_meanwhile_and_is_current_within_a_second_after(resolver, job, closed_database, away_s=2.0)


def test_a_postgresql_that_stands_still_stops_no_answer_and_is_caught_up_with_when_it_moves_on(
    resolver: Process, job: Job
) -> None:
    answers_meanwhile_and_is_current_within_a_second_after(resolver, job, standing, away_s=1.0)
    with standing():
        time.sleep(0.6)  # by now it has asked again
        began = time.monotonic()
        assert resolver.stop() == 0
        assert time.monotonic() - began < 15.0


@contextmanager
def standing() -> Iterator[None]:
    """Stop all PostgreSQL processes of the test's database except the test's own with SIGSTOP, until the block ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        backends = [pid for (pid,) in cursor.fetchall()]
    assert backends
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_without_redis_changes_are_answered_within_a_second(job: Job, tmp_path: Path) -> None:
    with started(free_port(), BORG_REDIS_URL=f"unix://{tmp_path}/nobody") as resolver:

        def follows(attempt: int) -> float:
            began, after = time.monotonic(), turned(job, attempt)
            resolver.until(lambda: ports(resolver) == after)
            return time.monotonic() - began

        one_takes_less(1.0, follows)


def test_a_start_without_postgresql_answers_from_what_was_kept_and_catches_up(job: Job, tmp_path: Path) -> None:
    port, kept = free_port(), {"BORG_DNS_SNAPSHOT": str(tmp_path / "names")}
    with started(port, **kept) as first:
        assert ports(first) == {20_000, 20_001, 20_002}
        assert first.stop() == 0
    report(job.cell, job, 1, health="unhealthy")
    with closed_database(), ExitStack() as stack:
        second = stack.enter_context(started(port, "stale", **kept))
        assert ports(second) == {20_000, 20_001, 20_002}
        serial = second.ask("cc", "SOA").answer[0][0].serial
        still = stack.pop_all()
    with still:
        second.until_text("health", "status=ok")
        assert ports(second) == {20_000, 20_002}
        assert second.ask("cc", "SOA").answer[0][0].serial > serial


def test_processes_on_one_port_answer_alike_and_one_that_dies_is_missed_by_nobody(job: Job) -> None:
    """Two workers on one port give equal answers. If one is killed, it is replaced, and no question fails."""
    figures, port = free_port(), free_port()
    with started(port, BORG_DNS_PROCESSES="2", BORG_DNS_METRICS_PORT=str(figures)) as both:
        second = Process(port, BORG_DNS_PROCESSES="2")
        workers = children(both.popen.pid)
        assert len(workers) == 2
        report(job.cell, job, 1, health="unhealthy")
        cell = Cell.objects.get()
        serial = serial_of(cell.revision, start=serial_start(cell.created_at.timestamp()))
        # Each question comes from a port of its own, so 40 questions practically always reach both processes.
        both.until(lambda: {both.ask("cc", "SOA").answer[0][0].serial for _ in range(40)} == {serial})
        both.until(lambda: reported(figures, "queries_total") >= 40)  # a process publishes its figures once per second
        before = reported(figures, "queries_total")
        os.kill(workers[1], signal.SIGKILL)
        both.until(lambda: len(children(both.popen.pid)) == 2 and children(both.popen.pid) != workers)
        answered = [both.ask("1.jfoo.ubar.cc").rcode() for _ in range(100)]
        assert set(answered) == {dns.rcode.NOERROR}
        query = dns.message.make_query("jfoo.ubar.cc.borg.internal.", "A")
        assert len(dns.query.tcp(query, "127.0.0.1", port=both.port, timeout=BOUND_S).answer[0]) == 1
        # The figures are those of both processes, at most a second old. The new one continues those of the dead one.
        both.until(lambda: reported(figures, "queries_total") > before + 100)
        assert reported(figures, "worker_restarts_total") == 1
        assert reported(figures, "revision") == cell.revision
        assert reported(figures, "serial") == serial
        _, said = second.popen.communicate(timeout=BOUND_S)
        assert second.popen.returncode == 1
        assert f"BORG_DNS_PORT={port} on 127.0.0.1 cannot be used: it is taken by process " in said
        both.popen.kill()
        assert both.stop() == -signal.SIGKILL  # its workers still end while the next one starts
    with started(port, BORG_DNS_PROCESSES="2") as both:
        # A worker of the killed resolver may have answered. The new one handles signals once it has workers.
        both.until(lambda: len(children(both.popen.pid)) == 2)
        workers = children(both.popen.pid)
        assert both.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def reported(port: int, figure: str) -> float:
    """Return the sum of all samples of a metric of the resolver."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=BOUND_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"borg_resolver_{figure}{{"))


def children(pid: int) -> list[int]:
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("BORG_DNS_METRICS_PORT", "77777"),
        ("BORG_DNS_HOST", "localhost"),
        ("BORG_DNS_STALE", "-4"),
        ("BORG_DNS_CAA", "x"),
    ],
)
def test_a_setting_without_sense_ends_the_start_and_is_named(name: str, given: str) -> None:
    process = Process(free_port(), **{name: given})
    try:
        _, told = process.popen.communicate(timeout=BOUND_S)
    finally:
        process.popen.kill()
    assert process.popen.returncode == 2
    assert told.startswith(f"{name}={given!r}: ")
    assert "give" in told


def test_dig_reads_the_answers(resolver: Process) -> None:
    def dig(*arguments: str) -> str:
        command = ["dig", "@127.0.0.1", "-p", str(resolver.port), "+tries=1", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=BOUND_S).stdout

    assert dig("+short", "2.jfoo.ubar.cc.borg.internal").split() == ["127.0.0.1"]
    assert dig("+short", "+tcp", "jfoo.ubar.cc.borg.internal", "SRV").count("jfoo.ubar.cc.borg.internal.") == 3
    assert "status: NXDOMAIN" in dig("9.jfoo.ubar.cc.borg.internal")
    assert "status: REFUSED" in dig("example.org")
    assert "WARNING: recursion requested but not available" in dig("cc.borg.internal", "SOA")
