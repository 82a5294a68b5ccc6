"""How fast pages and REST endpoints answer in the simulated year.

    each month:  one web process ─► p50 and p99 of `SAMPLES` requests per page
    at the end:  month 4 (a copy) ─► web process ─┐
                 the last day     ─► web process ─┴─► `PAIRS` requests per page to each in turn

The requests at the end find what became slower while the cell grew older. Both moments share the machine in the same
seconds, so that other work on it does not make one of them slower.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from portal.up.engines import postgres_binaries
from tests.bench import http_load
from tests.bench.api import ENDPOINTS, PAGES
from tests.bench.databases import databases
from tests.bench.http_load import Answer, Connections, Request, share
from tests.bench.year import figures
from tests.bench.year.clock import Clock
from tests.ports import free_port

WARM_UP = 1
SAMPLES = int(os.environ.get("BENCH_SAMPLES", "20"))
PAIRS = int(os.environ.get("BENCH_PAIRS", "200"))
AGAIN = 4
_READY_S = 60.0
# The first does not depend on the cell. The second waits for resolvers, and none runs.
_NO_PAGE = ("/api/v1/schema/", "/bns/{cell}")

Latency = tuple[float, float]  # p50 and p99 in ms


@contextmanager
def web(home: Path) -> Iterator[int]:
    """Run a web process with the clock of the year, and yield its port. Its databases are those of this process."""
    from django.conf import settings

    port = free_port()
    env = {
        **os.environ,
        "BENCH_CLOCK": str(home / "clock"),
        "DJANGO_SETTINGS_MODULE": "tests.bench.year.web_settings",
        "BORG_SECRET_KEY": settings.SECRET_KEY,
        "BORG_PORTAL_URL": f"http://127.0.0.1:{port}",
        "BORG_ALLOWED_HOSTS": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.bench.year.web", "--port", str(port), "--processes", "1"]
    log = home / "web.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        until = time.monotonic() + _READY_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the web process did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(15)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def requests(number: int, *, now: dt.datetime, seed: int) -> dict[str, list[Request]]:
    """Return `number` requests of an SRE for each page and endpoint. Jobs and machines are drawn from the cell."""
    from scheduling.models import Job, Machine
    from tests.bench.year import upkeep

    rng = np.random.default_rng(seed)
    sre = upkeep.people()[-1]
    headers = {
        "api": (f"Authorization: Bearer {upkeep.token_of(sre, now=now)}",),
        "page": (f"Cookie: sessionid={upkeep.sign_in(sre)}",),
    }
    jobs = list(Job.objects.filter(state="running").order_by("id").values_list("name", "tenant__name", "cell__name"))
    machines = list(Machine.objects.order_by("id").values_list("hostname", flat=True))

    def draw(kind: str, pattern: str) -> Request:
        job, tenant, cell = jobs[rng.integers(len(jobs))]
        path = pattern.format(cell=cell, tenant=tenant, job=job, machine=machines[rng.integers(len(machines))])
        return Request(kind, path, headers[kind], user=kind)

    patterns = [("api", path) for path in ENDPOINTS if path not in _NO_PAGE] + [("page", path) for path in PAGES]
    return {pattern: [draw(kind, pattern) for _ in range(number)] for kind, pattern in patterns}


def latencies(home: Path, *, now: dt.datetime, seed: int) -> dict[str, Latency]:
    """Return p50 and p99 of every page and endpoint, for one client."""
    found = {}
    with web(home) as port:
        for pattern, drawn in requests(SAMPLES + WARM_UP, now=now, seed=seed).items():
            left = iter(drawn)
            answers, _ = http_load.run(
                lambda c, left=left, n=len(drawn): http_load.by_clients(c, 1, n, lambda: next(left)), "127.0.0.1", port
            )
            found[pattern] = _latency(answers)
    return found


def _latency(answers: list[Answer]) -> Latency:
    wrong = [answer for answer in answers if answer.status != 200]
    if wrong:
        raise RuntimeError(f"{wrong[0].path} was answered with {wrong[0].status}")
    ms = [1000 * answer.seconds for answer in answers[WARM_UP:]]
    return round(statistics.median(ms), 1), round(share(ms, 0.99), 1)


# --- two moments of the year beside each other


def copy(home: Path, target: Path) -> None:
    """Copy the state of the year to the folder `target`, while PostgreSQL runs. Files of the archive never change, so
    they become hard links.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    target.chmod(0o711)
    data = target / "postgres"
    command = [str(postgres_binaries() / "pg_basebackup"), "-d", os.environ["BORG_DATABASE_URL"], "-D", str(data)]
    subprocess.run([*command, "-c", "fast"], check=True)
    subprocess.run(["chown", "-R", f"--reference={home / 'postgres'}", str(data)], check=True)
    subprocess.run(["cp", "-al", str(home / "archive"), str(target / "archive")], check=True)
    shutil.copy(home / "clock", target / "clock")


def compare(homes: list[Path], *, seed: int) -> dict[str, list[Latency]]:
    """Return p50 and p99 of every page and endpoint in each of the homes, for one client that asks them in turn. Pages
    that seem to be slower in the last home are measured again with `AGAIN` times as many requests, because the 99th
    percentile of few requests is mostly chance.
    """
    with ExitStack() as stack:
        served = [stack.enter_context(_served(home, seed)) for home in homes]
        return asyncio.run(_in_turn(served))


async def _in_turn(served: list[tuple[int, dict[str, list[Request]]]]) -> dict[str, list[Latency]]:
    clock = asyncio.get_running_loop().time
    connections = [Connections("127.0.0.1", port) for port, _ in served]

    async def measured(pattern: str, pairs: int) -> list[Latency]:
        answers: list[list[Answer]] = [[] for _ in served]
        for number in range(pairs + WARM_UP):
            for to, (_, drawn), so_far in zip(connections, served, answers, strict=True):
                so_far.append(await to.send(drawn[pattern][number % len(drawn[pattern])], clock()))
        return [_latency(one) for one in answers]

    try:
        found = {pattern: await measured(pattern, PAIRS) for pattern in served[0][1]}
        for pattern in figures.slower(found):
            found[pattern] = await measured(pattern, AGAIN * PAIRS)
    finally:
        for to in connections:
            to.close()
    return found


@contextmanager
def _served(home: Path, seed: int) -> Iterator[tuple[int, dict[str, list[Request]]]]:
    """Run the databases and a web process of a home in a child process. Yield the port, and requests for it."""
    command = [sys.executable, "-m", "tests.bench.year.pages", str(home), str(seed)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        served = json.loads(child.stdout.readline())
        drawn = {pattern: [Request(**one) for one in many] for pattern, many in served["requests"].items()}
        yield served["port"], drawn
    finally:
        child.stdin.close()  # the child ends
        child.wait(60)


def _serve(home: Path, seed: int) -> None:
    with databases(home):
        clock = Clock(home / "clock")
        clock.follow()
        import django

        django.setup()
        drawn = requests(PAIRS + WARM_UP, now=clock.now(), seed=seed)
        with web(home) as port:
            print(
                json.dumps({"port": port, "requests": {name: list(map(_fields, many)) for name, many in drawn.items()}})
            )
            sys.stdout.flush()
            sys.stdin.read()


def _fields(request: Request) -> dict[str, Any]:
    return {"kind": request.kind, "path": request.path, "headers": request.headers, "user": request.user}


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
