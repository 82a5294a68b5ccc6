"""A case of `overload`: what twice the sustainable rate of submissions does to a portal.

A complete installation has 2,000 machines as rows, without Borglets. First, 16 clients submit jobs of one task as fast
as the portal answers: this is the maximum. Then jobs are submitted at twice this rate, without waiting for answers. At
the end, a few probes per second measure how soon each submission is accepted at once again.

`value`: accepted submissions per second under overload, as a share of the maximum (target: at least 0.9). `p99_s`: of
accepted submissions, from the time when they were due (target: at most 1 s). `recovery_s`: from the end of the overload
until all further probes are accepted within a second (target: at most 5 s). `answers`: counts per status; 0 stands for
no answer, which must not happen. `client_cpu`: the share of one core that the load generator used.

    OVERLOAD_SUBMIT_SECONDS=600    length of the overload in seconds
    OVERLOAD_MAXIMUM_SECONDS=30    length of the measurement of the maximum
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.bench import http_load
from tests.bench.commit import TENANT, Bench
from tests.bench.http_load import Answer, Connections, Request, share
from tests.bench.installation import installation

MACHINES, CLIENTS, TOKENS = 2_000, 16, 8
LEAST_GOODPUT, MOST_P99_S, MOST_RECOVERY_S = 0.9, 1.0, 5.0
_PROBES_PER_S, _PROBE_S = 4, 20.0
_ACCEPTED = 201


def measure() -> Iterator[dict[str, Any]]:
    with installation() as where:
        bench = Bench(where, machines=MACHINES)
        load = _Load(bench)

        async def run(connections: Connections) -> dict[str, Any]:
            maximum = await load.maximum(connections, float(os.environ.get("OVERLOAD_MAXIMUM_SECONDS", "30")))
            return await load.overload(
                connections, maximum, float(os.environ.get("OVERLOAD_SUBMIT_SECONDS", "600"))
            ) | {"load": round(os.getloadavg()[0], 1)}

        yield {"case": "submissions", "unit": "of the maximum", "better": "higher"} | http_load.run(
            run, "127.0.0.1", where.port
        )


class _Load:
    """Submissions to one installation, with several tokens."""

    def __init__(self, bench: Bench) -> None:
        self._path = bench.jobs
        made = [
            bench.client.post("/api/v1/tokens/", {"name": f"load{n}", "scopes": ["read", "write"]})
            for n in range(TOKENS)
        ]
        self._tokens = itertools.cycle(one["secret"] for one in made)
        self._numbers = itertools.count()

    def draw(self) -> Request:
        number, token = next(self._numbers), next(self._tokens)
        body = {
            "name": f"load{number}",
            "tenant": TENANT,
            "priority": 100,
            "task": {"command": ["/bin/server"], "limit": {"cpu": "50m", "ram": "64Mi", "disk": "64Mi"}},
        }
        headers = (f"Authorization: Bearer {token}",)
        return Request("submit", self._path, headers, json.dumps(body).encode(), "POST", token)

    async def maximum(self, connections: Connections, seconds: float) -> float:
        """Return how many submissions per second are accepted if each of some clients waits for its answers."""
        loop = asyncio.get_running_loop()
        until, accepted = loop.time() + seconds, 0

        async def one() -> None:
            nonlocal accepted
            while loop.time() < until:
                answer = await connections.send(self.draw(), loop.time())
                accepted += answer.status == _ACCEPTED

        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        return accepted / seconds

    async def overload(self, connections: Connections, maximum: float, seconds: float) -> dict[str, Any]:
        cpu_s, began = time.process_time(), time.monotonic()
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(http_load.at_rate(connections, 2 * maximum, seconds, self.draw))
        await asyncio.sleep(seconds)
        used = (time.process_time() - cpu_s) / (time.monotonic() - began)
        end = loop.time()
        probes = await http_load.at_rate(connections, _PROBES_PER_S, _PROBE_S, self.draw)
        answers = await running
        recovery_s = _recovery_s(probes)
        accepted = [answer.seconds for answer in answers if answer.status == _ACCEPTED]
        goodput, p99_s = len(accepted) / seconds / maximum, share(accepted, 0.99)
        counts = Counter(answer.status for answer in answers)
        wrong = [
            text
            for text, failed in (
                (f"goodput {goodput:.2f} is below {LEAST_GOODPUT}", goodput < LEAST_GOODPUT),
                (f"p99 {p99_s:.2f} s is above {MOST_P99_S:g} s", not p99_s <= MOST_P99_S),
                (f"recovery took {recovery_s:.1f} s", recovery_s > MOST_RECOVERY_S),
                (f"{counts[0]} requests got no answer", counts[0] > 0),
            )
            if failed
        ]
        return {
            "value": round(goodput, 3),
            "maximum_per_s": round(maximum, 1),
            "seconds": seconds,
            "p50_s": round(share(accepted, 0.5), 3),
            "p99_s": round(p99_s, 3),
            "rejected_p99_s": round(share([a.seconds for a in answers if a.status != _ACCEPTED], 0.99), 3),
            "recovery_s": round(recovery_s, 1),
            "last_answer_s": round(loop.time() - end - _PROBE_S, 1),
            "answers": {str(status): number for status, number in sorted(counts.items())},
            "client_cpu": round(used, 2),
            **({"failed": "; ".join(wrong)} if wrong else {}),
        }


def _recovery_s(probes: list[Answer]) -> float:
    """Return when the first probe of those was sent that were all accepted within a second, in seconds after the
    first probe.
    """
    bad = [n for n, answer in enumerate(probes) if answer.status != _ACCEPTED or answer.seconds > MOST_P99_S]
    return (bad[-1] + 1) / _PROBES_PER_S if bad else 0.0
