"""`dns-outage`: how soon a resolver is up to date after an outage of PostgreSQL and Redis (§2.6).

The resolver has 100,000 names and one core, and gets 500 queries per second all the time. Cases:

    away      PostgreSQL and Redis are stopped for ten minutes (BENCH_SECONDS changes this)
    hanging   SIGSTOP freezes both for 20 s, as a disk that does not respond would
    killed    PostgreSQL is killed and must recover from its log; Redis continues
    deaf      only Redis is stopped, for 20 s

The value is the larger of two times in seconds: from the first answer of PostgreSQL until the resolver reports `ok`,
and the slowest time from a commit to the answer that shows it. For this, ten changes per second are committed for three
seconds after the outage. A case fails if the value is above 1 s, or if an answer was lost or wrong. `p99_ms`: p99 of
the answer times during the outage.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dns.message
import psutil

from tests.bench import link_cell
from tests.bench.databases import databases
from tests.bench.dns_changes import a_resolver, make_cell
from tests.bench.dns_resolver import CELL, JOBS, TASKS, TENANT, ZONE
from tests.bench.wanted import wanted

CASES = ["away", "hanging", "killed", "deaf"]
AWAY_S = float(os.environ.get("BENCH_SECONDS", "600"))
SHORT_S = 20.0
RATE = 500
CHANGES, EVERY_S = 30, 0.1
WANTED_S = 1.0
LOST_S = 2.0
READY_S = 60.0


class Asker(threading.Thread):
    """A thread that queries the addresses of random tasks at a steady rate, and counts the answers.

    `took`: answer times in seconds. `lost`: queries without an answer. `wrong`: answers that are not NOERROR.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)  # after a pause all answers arrive at once
        self._socket.setblocking(False)
        self._sent: dict[int, float] = {}
        self._ended = threading.Event()
        self._queries = [
            dns.message.make_query(f"{task}.job{job}.{TENANT}.{CELL}.{ZONE}.", "A").to_wire()[2:]
            for job, task in ((random.randrange(JOBS), random.randrange(TASKS)) for _ in range(5_000))
        ]
        self.asked = self.lost = self.wrong = 0
        self.took: list[float] = []

    def run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            self._read()
            now = time.monotonic()
            if now >= due:
                self.asked += 1
                due = max(due + 1 / RATE, now - 0.1)
                number = self.asked % 65_536
                if number in self._sent:
                    self.lost += 1  # sent 131 s ago, and still without an answer
                self._sent[number] = now
                self._send(number.to_bytes(2) + self._queries[self.asked % len(self._queries)])
            select.select([self._socket], [], [], max(0.0, due - time.monotonic()))

    def _send(self, query: bytes) -> None:
        try:
            self._socket.send(query)
        except OSError:  # no server listens, so the query will count as lost
            time.sleep(0.01)

    def _read(self) -> None:
        while True:
            try:
                answer = self._socket.recv(4_096)
            except (BlockingIOError, ConnectionError):
                return
            sent = self._sent.pop(int.from_bytes(answer[:2]), None)
            if sent is not None:
                self.took.append(time.monotonic() - sent)
                self.wrong += bool(answer[3] & 15)

    def figures(self) -> dict[str, Any]:
        """Return the figures since the last call, and start to count again."""
        now = time.monotonic()
        late = [number for number, sent in list(self._sent.items()) if now - sent > LOST_S]
        for number in late:
            del self._sent[number]
        took, self.took = sorted(self.took), []
        told = {
            "answers": len(took),
            "lost": self.lost + len(late),
            "wrong": self.wrong,
            "p50_ms": _ms(took, 0.5),
            "p99_ms": _ms(took, 0.99),
            "max_ms": _ms(took, 1.0),
        }
        self.lost = self.wrong = 0
        return told

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._socket.close()


def measure() -> Iterator[dict[str, Any]]:
    cases = wanted(CASES)
    with databases() as home, Engines(home) as engines:
        make_cell()
        os.environ["BORG_DNS_SNAPSHOT"] = str(home / "names")
        with a_resolver(home) as (_, port):
            asker = Asker(port)
            asker.start()
            try:
                outages: dict[str, Callable[[], None]] = {
                    "away": engines.away,
                    "hanging": engines.hanging,
                    "killed": engines.killed,
                    "deaf": engines.deaf,
                }
                for case in cases:
                    time.sleep(LOST_S)
                    asker.figures()
                    outages[case]()
                    yield _result(case, asker, port)
            finally:
                asker.end()


def _result(case: str, asker: Asker, port: int) -> dict[str, Any]:
    returned = time.monotonic()
    with _Changes(port) as changes:
        ok_s = link_cell.until(
            lambda: b"status=ok" in (changes.ask(f"health.{ZONE}") or b""), what="status=ok", seconds=60, every_s=0.01
        )
        changes.make()
    ok_s = min(ok_s, time.monotonic() - returned)
    time.sleep(LOST_S)
    catch_up_s = max([ok_s, *changes.took])
    result = {
        "case": case,
        "value": round(catch_up_s, 3),
        "unit": "s",
        "better": "lower",
        "ok_s": round(ok_s, 3),
        "change_p50_s": round(sorted(changes.took)[len(changes.took) // 2], 3),
        "changes": len(changes.took),
        "away_s": AWAY_S if case == "away" else SHORT_S,
        **asker.figures(),
        "names": JOBS * TASKS,
        "load": round(os.getloadavg()[0], 1),
    }
    wrong = []
    if catch_up_s > WANTED_S:
        wrong.append(f"caught up after {catch_up_s:.2f} s, wanted {WANTED_S:.0f}")
    if result["lost"] or result["wrong"]:
        wrong.append(f"{result['lost']} answers lost, {result['wrong']} wrong")
    return result | ({"failed": "; ".join(wrong)} if wrong else {})


class _Changes:
    """Commit changes of a task's health in this process, and measure how long until the DNS answers show them."""

    def __init__(self, port: int) -> None:
        self.took: list[float] = []
        self._port = port
        self._socket = socket.socket(type=socket.SOCK_DGRAM)

    def __enter__(self) -> _Changes:
        self._socket.connect(("127.0.0.1", self._port))
        self._socket.settimeout(0.5)
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def ask(self, name: str) -> bytes | None:
        query = dns.message.make_query(f"{name}.", "TXT", use_edns=-1)
        try:
            self._socket.send(query.to_wire())
            return self._socket.recv(4_096)
        except (TimeoutError, ConnectionError):
            return None

    def make(self) -> None:
        from scheduling.models import Cell, Job
        from tests.integration.naming_rows import report

        cell, job = Cell.objects.get(), Job.objects.order_by("id").first()
        assert job is not None
        began = time.monotonic()
        for number in range(CHANGES):
            time.sleep(max(0.0, began + number * EVERY_S - time.monotonic()))
            was = self._health(job.name, number)
            report(cell, job, number, health="unhealthy" if was else "healthy")
            committed = time.monotonic()
            link_cell.until(
                lambda number=number, was=was: self._health(job.name, number) is not was,
                what="the change in the answers",
                seconds=30,
                every_s=0.005,
            )
            self.took.append(time.monotonic() - committed)

    def _health(self, job: str, index: int) -> bool:
        answer = None
        while answer is None:
            answer = self.ask(f"{index}.{job}.{TENANT}.{CELL}.{ZONE}")
        return b"health=healthy" in answer


class Engines:
    """PostgreSQL and Redis of `databases`. Each method makes one outage, and returns when PostgreSQL answers again."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._mine = ExitStack()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        self._mine.close()

    def away(self) -> None:
        self._stop("redis", signal.SIGTERM)
        self._stop("postgres", signal.SIGINT)
        time.sleep(AWAY_S)
        self._start("redis")
        self._start("postgres")

    def hanging(self) -> None:
        with self._standing(*self._processes("postgres"), *self._processes("redis")):
            time.sleep(SHORT_S)
        self._answers()

    def killed(self) -> None:
        self._stop("postgres", signal.SIGKILL)
        time.sleep(SHORT_S)
        self._start("postgres")

    def deaf(self) -> None:
        self._stop("redis", signal.SIGTERM)
        time.sleep(SHORT_S)
        self._answers()

    def _processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of this bench's own PostgreSQL or Redis, the main process first."""
        data = str(self._home / name)
        found = [one for one in psutil.Process().children() if one.cwd() == data]
        return [process for one in found for process in (one, *one.children(recursive=True))]

    @contextmanager
    def _standing(self, *processes: psutil.Process) -> Iterator[None]:
        try:
            for process in processes:
                process.suspend()
            yield
        finally:
            for process in processes:
                process.resume()

    def _stop(self, name: str, number: signal.Signals) -> None:
        main, *children = self._processes(name)
        main.send_signal(number)
        psutil.wait_procs([main, *children], timeout=READY_S)

    def _start(self, name: str) -> None:
        from portal.up import engines

        prepare = {"postgres": engines.prepare_postgres, "redis": engines.prepare_redis}[name]
        log = self._mine.enter_context((self._home / "engines.log").open("ab"))
        engine = engines.start(prepare(self._home), output=log.fileno())
        self._mine.callback(engine.stop)
        if name == "postgres":
            self._answers()
        else:
            engine.wait_ready(READY_S)

    def _answers(self) -> None:
        """Wait until PostgreSQL answers a query."""
        from django.db import DatabaseError, connection

        def answered() -> bool:
            connection.close()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
            except DatabaseError:
                return False
            return True

        link_cell.until(answered, what="PostgreSQL's answer", seconds=READY_S, every_s=0.005)


def _ms(ordered: list[float], share: float) -> float:
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else -1.0
