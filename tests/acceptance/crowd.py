"""Load for a portal: 200 concurrent clients submit jobs, read REST endpoints and visit pages.

A client repeats a submission until the portal acknowledges it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

CLIENTS = 200
# A request without an answer after this time has failed. The portal ends each request after 50 s.
PATIENCE_S = 70.0
_JOBS = "/api/v1/cells/dev/jobs/"
_PAGES = ("/", "/admin/", "/accounts/login/", "/no/such/page")
_NOWHERE = {"attribute": "nowhere", "relation": "present"}
_READS = (_JOBS, "/api/v1/cells/", "/bns/dev/demo/none", "/api/v1/feeds/prometheus/", "/api/v1/tokens/")


@dataclass
class Seen:
    """The answers that the clients got during one phase of a test.

    `answers` counts them by HTTP status, `codes` counts those with status 503 by the code in the body. `wrong`
    describes answers that are not allowed, such as a 500, and requests without an answer. `slowest_s` is the longest
    time of an answer.
    """

    answers: Counter[int] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{sum(self.answers.values())} answers {dict(sorted(self.answers.items()))}, of 503: {dict(self.codes)}, "
            f"slowest {self.slowest_s:.1f} s, wrong {len(self.wrong)}"
        )


class Crowd:
    """Clients that send requests until `stop` is called.

    `acknowledged`: names of the jobs whose submission was answered with 2xx.
    """

    def __init__(self, url: str, token: str, people: tuple[str, str]) -> None:
        self.url, self.token, self.people = url, token, people
        self.phases: dict[str, Seen] = {}
        self.acknowledged: set[str] = set()
        self.sent: set[str] = set()
        self.health_s: list[float] = []
        self._numbers = itertools.count()
        self._stopped = asyncio.Event()
        logging.getLogger("httpx").setLevel(logging.WARNING)  # otherwise it writes a line per request
        self.begin("calm")

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.phases[phase] = Seen()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, limits=limits, trust_env=False) as client:
            cookies = await self._sign_in(client)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_health(client))
                for number in range(CLIENTS):
                    each = (self._submits, self._reads, self._looks, self._submits)[number % 4]
                    group.create_task(each(client, cookies))

    async def _sign_in(self, client: httpx.AsyncClient) -> dict[str, str]:
        page = await client.get("/accounts/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token is not None
        form = {"login": self.people[0], "password": self.people[1], "csrfmiddlewaretoken": token[1]}
        answer = await client.post("/accounts/login/", data=form)
        assert answer.status_code == 302, answer.text
        cookies = dict(client.cookies)
        client.cookies.clear()
        return cookies

    async def _submits(self, client: httpx.AsyncClient, cookies: dict[str, str]) -> None:
        """Submit one job after the other until `stop` is called.

        Each job has its own idempotency key. A submission that is answered with 5xx, or not at all, is repeated.
        """
        while not self._stopped.is_set():
            name = f"c{next(self._numbers)}"
            file = {"name": name, "task": {"command": ["true"], "constraints": [_NOWHERE]}}
            self.sent.add(name)
            while not self._stopped.is_set():
                headers = {**self._bearer(), "Idempotency-Key": f"key-of-{name}"}
                answer = await self._ask(client, "POST", _JOBS, json=file, headers=headers)
                if answer is not None and answer.is_success:
                    self.acknowledged.add(name)
                if answer is not None and answer.status_code < 500:
                    break
                await asyncio.sleep(0.5)
            await asyncio.sleep(1.0)

    async def _reads(self, client: httpx.AsyncClient, cookies: dict[str, str]) -> None:
        for path in itertools.cycle(_READS):
            if self._stopped.is_set():
                return
            await self._ask(client, "GET", path, headers=self._bearer())
            await asyncio.sleep(1.0)

    async def _looks(self, client: httpx.AsyncClient, cookies: dict[str, str]) -> None:
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        for path in itertools.cycle(_PAGES):
            if self._stopped.is_set():
                return
            await self._ask(client, "GET", path, headers=cookie)
            await asyncio.sleep(1.0)

    async def _watch_health(self, client: httpx.AsyncClient) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            await self._ask(client, "GET", "/healthz")
            self.health_s.append(time.monotonic() - began)
            await asyncio.sleep(0.5)

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response | None:
        began, seen = time.monotonic(), self.phases[self.phase]
        try:
            answer = await client.request(method, path, **more)
        except httpx.HTTPError as error:
            seen.wrong.append(f"{method} {path}: {type(error).__name__}: {error}")
            return None
        seen.answers[answer.status_code] += 1
        seen.slowest_s = max(seen.slowest_s, time.monotonic() - began)
        if answer.status_code == 503:
            if not answer.headers.get("Retry-After", "").isdigit():
                seen.wrong.append(f"{method} {path}: 503 without Retry-After: {answer.text[:200]}")
            kind = answer.headers["Content-Type"]
            seen.codes[answer.json()["code"] if kind == "application/problem+json" else "page"] += 1
        elif not (answer.is_success or answer.is_client_error or answer.is_redirect):
            seen.wrong.append(f"{method} {path}: {answer.status_code}: {answer.text[:200]}")
        return answer
