"""`api`: response times of the web pages and the REST API of a full-size cell while its master schedules.

The cell is that of `tests.bench.full_cell`. Cases:

    worst-page, worst-endpoint   p99 (ms) of the slowest page and of the slowest REST GET, for one client at a time.
                                 `slowest` lists the ten slowest paths
    plan-p99                     p99 (ms) of `POST …/plan/`, one client
    submit-cpu                   CPU time (ms) that the web processes use per submission, one client
    singles                      submissions per second by 16 clients, one job per request. `value` counts jobs that
                                 were placed, `accepted_per_s` counts jobs that were accepted
    mixed-50                     p99 (ms) of a mixed load of 50 requests per second, for one minute
    mixed-max                    the highest rate (requests per second) of the mixed load at which p99 is at most
                                 500 ms and no request fails

The mixed load has 55 % REST GETs, 20 % pages, 15 % polls of a name, and 10 % submissions, by 20 users with randomly
chosen jobs and machines. A response time begins when the request is due, even if the client sends it later.
`client_cpu` is the share of one core that this client used.

    BENCH_CASES=worst,mixed-50    run only cases whose name begins with one of these
    BENCH_SECONDS=20              seconds of `mixed-50`; each rate of `mixed-max` takes a third of them
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.bench import http_load
from tests.bench.full_cell import JOBS, MACHINES, TENANTS, full_cell, users
from tests.bench.http_load import Answer, Connections, Request, share
from tests.bench.installation import Installation

SAMPLES = 20
SUBMISSIONS, CLIENTS = 3_000, 16
RATE = 50
RATES = (10, 15, 20, 30, 50, 75, 100, 150, 200, 300)
MOST_MS = 500.0
_SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))

# Paths of GET requests. {tenant}, {job} and {machine} are replaced by random names.
ENDPOINTS = [
    "/api/v1/schema/",
    "/api/v1/tokens/",
    "/api/v1/tenants/",
    "/api/v1/tenants/{tenant}/",
    "/api/v1/tenants/{tenant}/members/",
    "/api/v1/notices/",
    "/api/v1/notices/kinds/",
    "/api/v1/notices/channels/",
    "/api/v1/capabilities/",
    "/api/v1/records/",
    "/api/v1/quota/",
    "/api/v1/quota/bands/",
    "/api/v1/quota/grants/",
    "/api/v1/quota/prices/?cell={cell}",
    "/api/v1/quota/orders/",
    "/api/v1/quota/calendar/?cell={cell}&band=production",
    "/api/v1/quota/markets/{cell}/",
    "/api/v1/quota/balances/",
    "/api/v1/quota/usage/?tenant={tenant}&cell={cell}&band=production",
    "/api/v1/quota/shortfalls/",
    "/api/v1/quota/rules/",
    "/api/v1/cells/",
    "/api/v1/cells/{cell}/",
    "/api/v1/cells/{cell}/events/",
    "/api/v1/cells/{cell}/events/?limit=1000",
    "/api/v1/cells/{cell}/machines/",
    "/api/v1/cells/{cell}/machines/?limit=1000",
    "/api/v1/cells/{cell}/machines/{machine}/",
    "/api/v1/cells/{cell}/drains/",
    "/api/v1/cells/{cell}/brakes/",
    "/api/v1/cells/{cell}/quarantine/",
    "/api/v1/cells/{cell}/packages/",
    "/api/v1/cells/{cell}/jobs/",
    "/api/v1/cells/{cell}/jobs/?limit=1000",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/versions/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/events/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/why/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/tasks/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/tasks/?limit=1000",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/tasks/0/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/tasks/0/usage/",
    "/bns/{cell}",
    "/bns/{cell}/{tenant}/{job}",
    "/bns/{cell}/machine/{machine}",
    "/api/v1/feeds/prometheus/",
    "/api/v1/feeds/prometheus/?tenant={tenant}",
    "/api/v1/feeds/traefik/?tenant={tenant}",
    "/readyz",
    "/metrics",
]
PAGES = [
    "/",
    "/cells/",
    "/cells/{cell}/",
    "/cells/{cell}/machines/{machine}/",
    "/find/?q=job1",
    "/jobs/",
    "/jobs/?q=job1",
    "/jobs/{cell}/{tenant}/{job}/",
    "/jobs/{cell}/{tenant}/{job}/events/",
    "/jobs/{cell}/{tenant}/{job}/specs/",
    "/jobs/{cell}/{tenant}/{job}/update/",
    "/jobs/{cell}/{tenant}/{job}/0/",
    "/names/",
    "/submit/",
    "/tokens/",
    "/packages/",
    "/quota/",
    "/tenants/",
    "/tenants/{tenant}/",
    "/tenants/{tenant}/records/",
    "/notices/",
    "/shop/",
    "/orders/",
    "/approvals/",
    "/billing/",
    "/costs/",
    "/planning/",
    "/admin/",
    "/admin/scheduling/machine/",
    "/admin/scheduling/job/",
    "/admin/scheduling/task/",
    "/admin/scheduling/event/",
    "/admin/scheduling/cell/",
    "/admin/quota/tenant/",
    "/admin/quota/quota/",
]


def measure() -> Iterator[dict[str, Any]]:
    with full_cell() as where:
        bench = Bench(where)
        for case, run in (
            ("worst-endpoint", lambda: bench.worst("worst-endpoint", ENDPOINTS, bench.by_token)),
            ("worst-page", lambda: bench.worst("worst-page", PAGES, bench.by_session)),
            ("plan-p99", bench.plans),
            ("submit-cpu", bench.submit_cpu),
            ("singles", bench.singles),
            ("mixed-50", bench.mixed_at_rate),
            ("mixed-max", bench.mixed_most),
        ):
            if any(case.startswith(wanted) for wanted in os.environ.get("BENCH_CASES", case).split(",")):
                load = round(os.getloadavg()[0], 1)
                yield {"case": case, **run(), "load": load}


class Bench:
    """The requests, users and cases of the benchmark, for one running installation."""

    def __init__(self, where: Installation, *, machines: int = MACHINES, jobs: int = JOBS) -> None:
        self.where = where
        self.machines, self.jobs = machines, jobs
        *self.users, self.sre = users(where)
        self.cell = where.client("admin").profile.cell
        self.rng = np.random.default_rng(2026)
        self._numbers = itertools.count()
        # The measurements begin when the master serves the cell.
        self.placed_within(60.0)

    # -- requests

    def by_token(self, path: str, user: dict[str, str]) -> Request:
        return Request("api", path, (f"Authorization: Bearer {user['token']}",), user=user["name"])

    def by_session(self, path: str, user: dict[str, str]) -> Request:
        return Request("page", path, (f"Cookie: sessionid={user['session']}",), user=user["name"])

    def path(self, pattern: str, user: dict[str, str] | None = None) -> str:
        """Return the pattern with a cell, a tenant, a job and a machine filled in, chosen at random.

        If `user` is given, the job belongs to the tenant of this user.
        """
        number = int(self.rng.integers(self.jobs // TENANTS)) * TENANTS + (
            int(user["tenant"][1:]) if user else int(self.rng.integers(TENANTS))
        )
        job = self._job_names()[number]
        machine = f"bench{self.rng.integers(self.machines)}"
        return pattern.format(cell=self.cell, tenant=f"t{number % TENANTS:02d}", job=job, machine=machine)

    def _job_names(self) -> list[str]:
        if not hasattr(self, "_names"):
            rows = self.where.client("admin").pages(f"/api/v1/cells/{self.cell}/jobs/")
            old = [row["name"] for row in rows if row["name"].startswith(("job", "web")) and row["tenant"][0] == "t"]
            names = {int(name[3:]): name for name in old}
            self._names = [names[number] for number in range(self.jobs)]
        return self._names

    def submission(self, user: dict[str, str]) -> Request:
        body = json.dumps(
            {
                "name": f"fresh{next(self._numbers)}",
                "tenant": user["tenant"],
                "priority": 100,
                "task": {"command": ["/bin/server"], "limit": {"cpu": "50m", "ram": "64Mi", "disk": "64Mi"}},
            }
        )
        headers = (f"Authorization: Bearer {user['token']}",)
        return Request("submit", f"/api/v1/cells/{self.cell}/jobs/", headers, body.encode(), "POST", user["name"])

    def mixed(self) -> Request:
        user = self.users[self.rng.integers(len(self.users))]
        drawn = self.rng.random()
        if drawn < 0.55:
            return self.by_token(self.path(_draw(self.rng, _READS), user), user)
        if drawn < 0.75:
            return self.by_session(self.path(_draw(self.rng, _LOOKS), user), user)
        if drawn < 0.90:
            poll = self.path("/bns/{cell}/{tenant}/{job}?after=1&wait_s=10", user)
            return Request("poll", poll, (f"Authorization: Bearer {user['token']}",), user=user["name"])
        return self.submission(user)

    # -- cases

    def worst(
        self, case: str, patterns: Sequence[str], make: Callable[[str, dict[str, str]], Request]
    ) -> dict[str, Any]:
        taken: dict[str, list[float]] = {}
        wrong = Counter[str]()
        for pattern in patterns:
            answers, _ = self._run(
                lambda c, p=pattern: http_load.by_clients(c, 1, SAMPLES + 2, lambda: make(self.path(p), self.sre))
            )
            taken[pattern] = [1000 * answer.seconds for answer in answers[2:]]
            wrong.update(f"{pattern}: {answer.status}" for answer in answers if answer.status != 200)
        slowest = sorted(taken, key=lambda pattern: -share(taken[pattern], 0.99))
        return {
            "value": round(share(taken[slowest[0]], 0.99), 1),
            "unit": "ms",
            "better": "lower",
            "p50_of_all": round(statistics.median(itertools.chain(*taken.values())), 1),
            "slowest": {
                pattern: [round(statistics.median(taken[pattern])), round(share(taken[pattern], 0.99))]
                for pattern in slowest[:10]
            },
            **_failed(wrong),
        }

    def plans(self) -> dict[str, Any]:
        def draw() -> Request:
            user = self.users[self.rng.integers(len(self.users))]
            made = self.submission(user)
            return Request("plan", f"{made.path}{user['tenant']}/fresh0/plan/", made.headers, made.body, "POST")

        def one() -> Request:
            request = draw()
            name = json.loads(request.body)["name"]
            return Request("plan", request.path.replace("fresh0", name), request.headers, request.body, "POST")

        answers, _ = self._run(lambda c: http_load.by_clients(c, 1, 2 * SAMPLES, one))
        return {
            "value": round(1000 * share([answer.seconds for answer in answers], 0.99), 1),
            "unit": "ms",
            "better": "lower",
            "p50": round(1000 * statistics.median(answer.seconds for answer in answers), 1),
            **_failed(Counter(str(answer.status) for answer in answers if answer.status != 200)),
        }

    def submit_cpu(self) -> dict[str, Any]:
        number = 200
        self._submit(1, 20)
        before = self._web_cpu_s()
        answers, _ = self._submit(1, number)
        used = self._web_cpu_s() - before
        return {
            "value": round(1000 * used / number, 2),
            "unit": "ms",
            "better": "lower",
            "p50": round(1000 * statistics.median(answer.seconds for answer in answers), 1),
            **_failed(Counter(str(answer.status) for answer in answers if answer.status != 201)),
        }

    def singles(self) -> dict[str, Any]:
        self._submit(CLIENTS, 200)
        began = time.monotonic()
        answers, accepted_s = self._submit(CLIENTS, SUBMISSIONS)
        self.placed_within(120.0)
        took = time.monotonic() - began
        return {
            "value": round(SUBMISSIONS / took, 1),
            "unit": "1/s",
            "better": "higher",
            "accepted_per_s": round(SUBMISSIONS / accepted_s, 1),
            "p99_ms": round(1000 * share([answer.seconds for answer in answers], 0.99)),
            **_failed(Counter(str(answer.status) for answer in answers if answer.status != 201)),
        }

    def mixed_at_rate(self) -> dict[str, Any]:
        return {"unit": "ms", "better": "lower", **self._mixed(RATE)}

    def mixed_most(self) -> dict[str, Any]:
        """Raise the rate of the mixed load in steps until p99 exceeds 500 ms or a request fails. Return the last good
        rate."""
        reached, steps = 0, {}
        for rate in RATES:
            step = self._mixed(rate, _SECONDS / 3)
            steps[rate] = step["value"]
            if step["value"] > MOST_MS or "failed" in step:
                break
            reached = rate
        return {"value": reached, "unit": "1/s", "better": "higher", "p99_ms": steps}

    def _mixed(self, rate: float, seconds: float = _SECONDS) -> dict[str, Any]:
        self._job_names()
        cpu, began = time.process_time(), time.monotonic()
        answers: list[Answer] = self._run(lambda c: http_load.at_rate(c, rate, seconds, self.mixed))
        kinds = defaultdict(list)
        for answer in answers:
            kinds[answer.kind].append(1000 * answer.seconds)
        everything = list(itertools.chain(*kinds.values()))
        return {
            "value": round(share(everything, 0.99), 1),
            "p50": round(share(everything, 0.5), 1),
            "p99_by_kind": {kind: round(share(values, 0.99)) for kind, values in kinds.items()},
            "client_cpu": round((time.process_time() - cpu) / (time.monotonic() - began), 2),
            **_failed(Counter(f"{a.kind} {a.status}" for a in answers if a.status not in (200, 201))),
        }

    # -- helpers

    def _run(self, work: Callable[[Connections], Any]) -> Any:
        return http_load.run(work, "127.0.0.1", self.where.port)

    def _submit(self, clients: int, number: int) -> tuple[list[Answer], float]:
        drawn = itertools.cycle(self.users)
        found: tuple[list[Answer], float] = self._run(
            lambda c: http_load.by_clients(c, clients, number, lambda: self.submission(next(drawn)))
        )
        return found

    def _web_cpu_s(self) -> float:
        return sum(
            sum(process.cpu_times()[:2]) for process in self.where.processes() if "portal.web" in process.cmdline()
        )

    def placed_within(self, seconds: float) -> None:
        """Submit one small job, and wait until it runs. Raises `TimeoutError` after `seconds`.

        Jobs of one priority are placed in the order of submission, so all earlier jobs are placed then.
        """
        user = self.users[0]
        request = self.submission(user)
        name = json.loads(request.body)["name"]
        self._run(lambda c: c.send(request, asyncio.get_running_loop().time()))
        client = self.where.client("admin")
        until = time.monotonic() + seconds
        while not client.get(f"{request.path}{user['tenant']}/{name}/")["tasks_running"]:
            if time.monotonic() > until:
                raise TimeoutError(f"not placed within {seconds:g} s")
            time.sleep(0.02)


_READS = [
    "/api/v1/cells/{cell}/jobs/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/tasks/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/events/",
    "/api/v1/cells/{cell}/jobs/{tenant}/{job}/why/",
    "/api/v1/cells/{cell}/machines/{machine}/",
    "/api/v1/quota/",
    "/api/v1/cells/{cell}/",
    "/bns/{cell}/{tenant}/{job}",
    "/api/v1/feeds/prometheus/?tenant={tenant}",
]
_LOOKS = [
    "/",
    "/jobs/",
    "/jobs/{cell}/{tenant}/{job}/",
    "/jobs/{cell}/{tenant}/{job}/0/",
    "/cells/{cell}/",
    "/quota/",
    "/shop/",
]


def _draw(rng: np.random.Generator, of: Sequence[str]) -> str:
    return of[rng.integers(len(of))]


def _failed(wrong: Counter[str]) -> dict[str, Any]:
    return {"failed": dict(wrong.most_common(10))} if wrong else {}
