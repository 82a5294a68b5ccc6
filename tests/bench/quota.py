"""`quota`: admitted jobs per second over REST in bulk requests, with quota charged in the same transaction (§2.5).

A complete installation runs with durable commits, and with 1,000 machines as rows without Borglets. The master places
admitted jobs at the same time. Four clients send requests of 100 jobs of one task each, in an order that a seed
shuffles. Some jobs are beyond the quota, and the portal rejects them. At the end the bench checks each tenant: the
charged amounts must equal those of its live jobs, and its whole quota must be used.

Cases: `many-tenants`: 1,000 tenants with ten jobs each, a tenth of them with quota for only five jobs; the client has
an SRE's token. `hot-tenant`: one tenant with 10,000 jobs, 9,500 of which have quota; the client has its own token.

`value`: admitted jobs per second, from the first request to the last answer. `request_ms_p50`, `request_ms_p99`: time
of a request of 100 jobs. `refused_share`: the share of rejected jobs. `load`: the load average before.

    BENCH_RUNS=1 python -m tests.bench quota      number of runs instead of three
    BENCH_CASES=many                              run only cases whose name begins with this
"""

from __future__ import annotations

import os
import queue
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from portal.cli.client import Client
from tests.bench.commit import Bench, quantile
from tests.bench.installation import Installation, installation
from tests.bench.wanted import wanted

TENANTS, JOBS_EACH, FEWER = 1_000, 10, 5
HOT_JOBS, HOT_ADMITTED = 10_000, 9_500
MACHINES = 1_000
AT_ONCE, CLIENTS = 100, 4
LIMIT = (10, 2**24, 2**20, 0, 0, 0)
TARGET = 500
_SEED = 5
_WARM_UP = 5


def measure() -> Iterator[dict[str, Any]]:
    cases = wanted(["many-tenants", "hot-tenant"])
    if not cases:
        return
    with installation() as where:
        bench = _Admissions(where)
        for case in cases:
            load = round(os.getloadavg()[0], 1)
            runs = [bench.run(case) for _ in range(int(os.environ.get("BENCH_RUNS", "3")))]
            yield bench.result(case, runs) | {"load": load, "fsync_ms": bench.fsync_ms}


class _Admissions(Bench):
    """The installation of the bench `commit`, with tenants, their quota, and clients that submit jobs for them."""

    def __init__(self, where: Installation) -> None:
        super().__init__(where, machines=MACHINES)
        from quota.models import PriorityBand, Quota, Tenant

        self.bulk = f"/api/v1/cells/{self.cell}/jobs:bulk"
        self._number = 0
        self.many = Tenant.objects.bulk_create(Tenant(name=f"t{i}") for i in range(TENANTS))
        self.hot = Tenant.objects.create(name="hot", max_jobs=HOT_JOBS)
        band = PriorityBand.objects.get(name="production")
        allowed = [(tenant, self._allowed(i)) for i, tenant in enumerate(self.many)]
        Quota.objects.bulk_create(
            Quota(
                tenant=tenant,
                cell=self.cell,
                band=band,
                amounts=[number * value for value in LIMIT],
                starts_at="2020-01-01T00:00:00Z",
                beyond_capacity=True,
            )
            for tenant, number in [*allowed, (self.hot, HOT_ADMITTED)]
        )
        for _ in range(_WARM_UP):
            self.client.post(self.bulk, [self._file(tenant.name) for tenant in self.many[:AT_ONCE]])
        self.clear()

    def run(self, case: str) -> dict[str, Any]:
        """Submit all jobs of a case once, and return the figures. Raises `RuntimeError` if a charge is wrong."""
        if case == "hot-tenant":
            tenants, token = ["hot"] * HOT_JOBS, self._token_of("hot")
            expected = {"hot": HOT_ADMITTED}
        else:
            tenants, token = [tenant.name for tenant in self.many] * JOBS_EACH, None
            expected = {tenant.name: self._allowed(i) for i, tenant in enumerate(self.many)}
        random.Random(_SEED).shuffle(tenants)
        files = [self._file(name) for name in tenants]
        requests = [files[i : i + AT_ONCE] for i in range(0, len(files), AT_ONCE)]
        cpu = self.where.cpu_s()
        told = self._send(requests, token)
        used_cpu = self.where.cpu_s() - cpu
        self._check(expected)
        if told["admitted"] != sum(expected.values()):
            raise RuntimeError(f"{told['admitted']} jobs were admitted, not {sum(expected.values())}")
        self.clear()
        return told | {"cpu_s": used_cpu}

    def result(self, case: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        value = round(statistics.median(one["admitted"] / one["seconds"] for one in runs))
        asked, admitted = runs[0]["asked"], runs[0]["admitted"]
        taken = sorted(one for run in runs for one in run["requests_s"])
        found = {
            "case": case,
            "value": value,
            "unit": "admissions/s",
            "better": "higher",
            "runs": len(runs),
            "each": [round(one["admitted"] / one["seconds"]) for one in runs],
            "asked": asked,
            "refused_share": round(1 - admitted / asked, 3),
            "jobs_a_request": AT_ONCE,
            "clients": CLIENTS,
            "request_ms_p50": round(1000 * statistics.median(taken), 1),
            "request_ms_p99": round(1000 * quantile(taken, 0.99), 1),
            "cpu_s": round(statistics.median(one["cpu_s"] for one in runs), 2),
            "machines": MACHINES,
        }
        if case == "many-tenants":
            found |= {"tenants": TENANTS, "target": TARGET}
            if value < TARGET:
                found["failed"] = f"fewer than {TARGET} admissions a second"
        return found

    def _send(self, requests: Sequence[list[dict[str, Any]]], token: str | None) -> dict[str, Any]:
        """Send the requests from `CLIENTS` concurrent clients, each with its own connection. Return times and
        counts."""
        clients: queue.SimpleQueue[Client] = queue.SimpleQueue()
        profile = self.client.profile
        for _ in range(CLIENTS):
            clients.put(Client(profile if token is None else replace(profile, token=token)))

        def post(given: list[dict[str, Any]]) -> tuple[float, int]:
            client = clients.get()
            began = time.monotonic()
            answer = client.post(self.bulk, given)
            taken = time.monotonic() - began
            clients.put(client)
            refused = [one for one in answer["results"] if one["outcome"] == "refused"]
            if wrong := [one for one in refused if one["problem"]["code"] != "quota-exceeded"]:
                raise RuntimeError(f"refused for something else: {wrong[0]}")
            return taken, answer["submitted"]

        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            done = list(pool.map(post, requests))
        seconds = time.monotonic() - began
        return {
            "seconds": seconds,
            "asked": sum(map(len, requests)),
            "admitted": sum(number for _, number in done),
            "requests_s": [taken for taken, _ in done],
        }

    def _check(self, expected: dict[str, int]) -> None:
        """Check that each tenant has as many live jobs as its quota allows, and is charged exactly for these."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT t.name, u.used, count(j.id), coalesce(sum(j.requested[1]), 0), coalesce(sum(j.requested[2]), 0)"
                " FROM quota_tenant AS t JOIN quota_quotause AS u ON u.tenant_id = t.id AND u.cell = %s"
                " LEFT JOIN scheduling_job AS j ON j.tenant_id = t.id AND j.state <> 'dead'"
                " WHERE t.name = ANY(%s) GROUP BY t.name, u.used",
                [self.cell, list(expected)],
            )
            rows = {name: rest for name, *rest in cursor.fetchall()}
        for name, number in expected.items():
            used, jobs, cpu, ram = rows[name]
            wanted_now = [number * value for value in LIMIT]
            if jobs != number or used != wanted_now or [cpu, ram] != wanted_now[:2]:
                raise RuntimeError(f"{name}: {jobs} jobs live, {used} charged, {number} have quota")

    def _token_of(self, tenant: str) -> str:
        from django.contrib.auth import get_user_model

        from quota.models import Membership, Tenant
        from quota.tenancy.tokens import token_issue
        from quota.vocabulary.permissions import system

        user, _ = get_user_model().objects.get_or_create(username=f"of-{tenant}")
        row = Tenant.objects.get(name=tenant)
        Membership.objects.get_or_create(tenant=row, user=user, defaults={"role": "operator"})
        _, secret = token_issue(
            principal=system("bench"), user=user, name="bench", scopes=["read", "write"], tenant=row
        )
        return secret

    def _file(self, tenant: str) -> dict[str, Any]:
        self._number += 1
        return {
            "name": f"q{self._number}",
            "tenant": tenant,
            "priority": 200,
            "tasks": 1,
            "task": {"command": ["/bin/server"], "limit": {"cpu": f"{LIMIT[0]}m", "ram": LIMIT[1], "disk": LIMIT[2]}},
        }

    @staticmethod
    def _allowed(place: int) -> int:
        return FEWER if place % 10 == 0 else JOBS_EACH
